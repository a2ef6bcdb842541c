"""What the operator refuses, in one sentence that names the argument. Nothing is ever broadcast or cast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

INPUTS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Dtypes of q, k and v (one for all three), and so of the outputs."""


@dataclass(frozen=True)
class Arguments:
    """Checked arguments in the form that every backend takes.

    q, k [B, L, H, dk]; v [B, L, H, dv]; g, b [B, L, H, dk or 1] and w [B, L, H, dv or 1] or None for no
    decay, no erasure and w = 1; initial_state [N, H, dk, dv] or None; cu_seqlens [N + 1] or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    b: Tensor | None
    w: Tensor | None
    initial_state: Tensor | None
    cu_seqlens: Tensor | None
    scale: float

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        sequences = self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1
        return sequences, self.q.shape[2], self.q.shape[3], self.v.shape[3]

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of states, decays and sums: float64 for float64 inputs, else float32."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        named = {name: getattr(self, name) for name in TENSORS}
        return {name: t for name, t in named.items() if t is not None}


TENSORS = ("q", "k", "v", "g", "b", "w", "initial_state", "cu_seqlens")
"""Tensor fields of `Arguments` in order; all but the last have gradients."""


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    w: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    erase: str = "beta",
) -> Arguments:
    """Raise TypeError or ValueError, or return the arguments in the common form (see `gated_delta_rule`).

    `erase` is what messages call the erase gate.
    """
    check_layout(q, k, v)
    optional = {"g": g, erase: beta, "w": w, "initial_state": initial_state, "cu_seqlens": cu_seqlens}
    require_tensors({}, optional)
    heads, channels, values = tuple(q.shape[:3]), q.shape[3], v.shape[3]
    g, b, w = _gate("g", g, heads, channels), _gate(erase, beta, heads, channels), _write(beta, w)
    w = _gate("w", w, heads, values)
    found = Arguments(q, k, v, g, b, w, initial_state, cu_seqlens, _number(scale, channels))
    check_packing(cu_seqlens, "q", q.shape[0])
    check_shape("initial_state", initial_state, found.state_shape)
    _check_dtypes(found, erase)
    check_devices({erase if name == "b" else name: t for name, t in found.tensors().items()})
    return found


def contiguous(a: Arguments) -> Arguments:
    """The same with dense tensors, as kernels read them."""
    dense: dict[str, Any] = {name: t.contiguous() for name, t in a.tensors().items()}
    return replace(a, **dense)


def require_tensors(needed: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """TypeError unless each of them is a tensor; an optional one may be None."""
    for names, wanted in ((needed, "a tensor"), (optional, "a tensor or None")):
        for name, given in names.items():
            if not (isinstance(given, Tensor) or (given is None and names is optional)):
                raise TypeError(f"{name} must be {wanted}; it is {_what(given)}")


def check_layout(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise TypeError or ValueError unless q and k are [B, L, H, dk] and v [B, L, H, dv], none empty."""
    require_tensors({"q": q, "k": k, "v": v}, {})
    if q.dim() != 4 or v.dim() != 4:
        raise ValueError(f"q must be [B, L, H, dk] and v [B, L, H, dv]; {_shapes(q=q, v=v)}")
    if not all((*q.shape, v.shape[3])):
        raise ValueError(f"no axis may be empty; {_shapes(q=q, v=v)}")
    check_shape("k", k, tuple(q.shape))
    check_shape("v", v, (*q.shape[:3], v.shape[3]))


def check_shape(name: str, tensor: Tensor | None, expected: tuple[int, ...]) -> None:
    """ValueError unless the tensor has this shape, or is not there."""
    if tensor is not None and tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}")


def check_devices(tensors: Mapping[str, Tensor]) -> None:
    """ValueError unless all lie where the first one does."""
    first, *_ = tensors
    device = tensors[first].device
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, {first} is on {device}")


def check_packing(cu: Tensor | None, first: str, batch: int) -> None:
    """ValueError for a `cu_seqlens` of a wrong form, or with more than a batch of 1 in the tensor `first`."""
    if cu is None:
        return
    if cu.dtype not in (torch.int32, torch.int64) or cu.dim() != 1 or cu.shape[0] < 2:
        raise ValueError(
            f"cu_seqlens must be int32 or int64 [N + 1] with N >= 1; it is {cu.dtype} {tuple(cu.shape)}"
        )
    if batch != 1:
        raise ValueError(f"cu_seqlens packs sequences in a batch of 1, but {first} has a batch of {batch}")


def check_cuts(cu_seqlens: Tensor, length: int) -> Tensor:
    """The same on the host, where it is read; ValueError unless it rises from 0 to `length`."""
    cuts = cu_seqlens.cpu()
    values = cuts.tolist()
    wrong = ""
    if values[0] != 0:
        wrong = f"it begins with {values[0]}"
    elif values[-1] != length:
        wrong = f"it ends with {values[-1]}"
    else:
        falls = (i for i, (a, z) in enumerate(pairwise(values), 1) if z < a)
        if (i := next(falls, None)) is not None:
            wrong = f"its entry {i} is {values[i]} after {values[i - 1]}"
    if wrong:
        raise ValueError(f"cu_seqlens must rise from 0 to L={length}; {wrong}")
    return cuts


def either(first: torch.dtype, second: torch.dtype) -> str:
    """Two dtypes as a message offers them."""
    return str(first) if first == second else f"{first} or {second}"


def _number(scale: Any, channels: int) -> float:
    """The scale, channels**-0.5 for None."""
    if scale is None:
        return float(channels**-0.5)
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise TypeError("scale must be a number; it is a tensor that requires a gradient, and would get none")
    try:
        number = float(scale)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"scale must be a number; it is {_what(scale)}") from None
    if not math.isfinite(number):
        raise ValueError(f"scale must be finite; it is {number}")
    return number


def _what(given: Any) -> str:
    """How a message calls what is no tensor, or no number."""
    if isinstance(given, Tensor):
        return f"a tensor of shape {tuple(given.shape)}"
    return "None" if given is None else f"of type {type(given).__name__}"


def _shapes(**tensors: Tensor) -> str:
    return " and ".join(f"{name} is {tuple(t.shape)}" for name, t in tensors.items())


def _gate(name: str, gate: Tensor | None, heads: tuple[int, ...], channels: int) -> Tensor | None:
    """[B, L, H] as [B, L, H, 1], [B, L, H, d] as it is."""
    if gate is None or tuple(gate.shape) == (*heads, channels):
        return gate
    if tuple(gate.shape) != heads:
        raise ValueError(
            f"{name} has shape {tuple(gate.shape)}, expected {heads} for one number a head"
            f" or {(*heads, channels)} for one a channel"
        )
    return gate[..., None]


def _write(beta: Tensor | None, w: Tensor | None) -> Tensor | None:
    if w is not None or beta is None:
        return w
    if beta.dim() == 3:
        return beta
    raise ValueError("w is needed when beta has one number a channel; only beta of shape [B, L, H] implies w")


def _check_dtypes(a: Arguments, erase: str) -> None:
    io, compute = a.q.dtype, a.compute_dtype
    if io not in INPUTS:
        raise TypeError(f"q is {io}; choose bfloat16, float16, float32 or float64")
    for name in ("k", "v"):
        if getattr(a, name).dtype != io:
            raise TypeError(f"{name} is {getattr(a, name).dtype}, q is {io}; q, k and v share one dtype")
    for name in ("g", "initial_state"):
        tensor = getattr(a, name)
        if tensor is not None and tensor.dtype != compute:
            raise TypeError(f"{name} is {tensor.dtype}; with q of {io} it must be {compute}")
    for name, public in (("b", erase), ("w", "w")):
        tensor = getattr(a, name)
        if tensor is not None and tensor.dtype not in (io, compute):
            raise TypeError(f"{public} is {tensor.dtype}; with q of {io} it must be {either(io, compute)}")
