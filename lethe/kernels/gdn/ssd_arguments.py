"""What `ssd` refuses, each in one sentence that gives the argument the name it has there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lethe.kernels.gdn.checks import (
    INPUTS,
    check_devices,
    check_packing,
    check_shape,
    either,
    require_tensors,
)


def check_ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_states: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Raise TypeError or ValueError unless the arguments are as the docstring of `ssd` says."""
    if isinstance(D, int):
        raise TypeError(
            f"D must be a tensor or None; it is the number {D}"
            " (ssd takes no chunk_size: its chunks have 64 tokens)"
        )
    needed = {"x": x, "dt": dt, "A": A, "B": B, "C": C}
    optional = {"D": D, "z": z, "dt_bias": dt_bias, "initial_states": initial_states}
    require_tensors(needed, optional | {"cu_seqlens": cu_seqlens})
    _check_shapes(x, B, cu_seqlens, {**needed, **optional})
    present: dict[str, Tensor] = {name: t for name, t in {**needed, **optional}.items() if t is not None}
    _check_dtypes(x.dtype, present)
    check_devices(present if cu_seqlens is None else present | {"cu_seqlens": cu_seqlens})


def _check_shapes(x: Tensor, B: Tensor, cu_seqlens: Tensor | None, tensors: dict[str, Any]) -> None:
    if x.dim() != 4 or not all(x.shape):
        raise ValueError(f"x has shape {tuple(x.shape)}, expected [B, L, H, P] without an empty axis")
    batch, length, heads, width = x.shape
    if B.dim() != 4 or B.shape[:2] != x.shape[:2] or not all(B.shape) or heads % B.shape[2]:
        raise ValueError(
            f"B has shape {tuple(B.shape)}, expected ({batch}, {length}, G, N) with G dividing H={heads}"
        )
    check_packing(cu_seqlens, "x", batch)
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    expected = {
        "C": tuple(B.shape),
        "dt": (batch, length, heads),
        "A": (heads,),
        "z": (batch, length, heads, width),
        "dt_bias": (heads,),
        "initial_states": (sequences, heads, width, B.shape[3]),
    }
    for name, shape in expected.items():
        check_shape(name, tensors[name], shape)
    D = tensors["D"]
    if D is not None and tuple(D.shape) not in ((heads,), (heads, width)):
        raise ValueError(f"D has shape {tuple(D.shape)}, expected {(heads,)} or {(heads, width)}")


def _check_dtypes(io: torch.dtype, tensors: dict[str, Tensor]) -> None:
    if io not in INPUTS:
        raise TypeError(f"x is {io}; choose bfloat16, float16, float32 or float64")
    sums = torch.float64 if io == torch.float64 else torch.float32
    alone = {**dict.fromkeys(("x", "B", "C", "z"), io), "initial_states": sums}
    for name, tensor in tensors.items():
        first, second = (alone[name], alone[name]) if name in alone else (io, sums)
        if tensor.dtype not in (first, second):
            raise TypeError(f"{name} is {tensor.dtype}; with x of {io} it must be {either(first, second)}")
