"""What the operator refuses, in one sentence that names the argument. Nothing is ever broadcast or cast."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
) -> Arguments:
    """Raise TypeError or ValueError, or return the arguments in the common form (see `gated_delta_rule`)."""
    if q.dim() != 4 or v.dim() != 4:
        raise ValueError(f"q must be [B, L, H, dk] and v [B, L, H, dv]; {_shapes(q=q, v=v)}")
    if not all((*q.shape, v.shape[3])):
        raise ValueError(f"no axis may be empty; {_shapes(q=q, v=v)}")
    heads, channels, values = tuple(q.shape[:3]), q.shape[3], v.shape[3]
    _shape("k", k, (*heads, channels))
    _shape("v", v, (*heads, values))
    g, b, w = _gate("g", g, heads, channels), _gate("beta", beta, heads, channels), _write(beta, w)
    w = _gate("w", w, heads, values)
    scale = channels**-0.5 if scale is None else float(scale)
    found = Arguments(q, k, v, g, b, w, initial_state, cu_seqlens, scale)
    _check_packing(found)
    _shape("initial_state", initial_state, found.state_shape)
    _check_dtypes(found)
    for name, tensor in found.tensors().items():
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, q is on {q.device}")
    return found


def contiguous(a: Arguments) -> Arguments:
    """The same with dense tensors, as kernels read them."""
    dense: dict[str, Any] = {name: t.contiguous() for name, t in a.tensors().items()}
    return replace(a, **dense)


def _shapes(**tensors: Tensor) -> str:
    return " and ".join(f"{name} is {tuple(t.shape)}" for name, t in tensors.items())


def _shape(name: str, tensor: Tensor | None, expected: tuple[int, ...]) -> None:
    if tensor is not None and tuple(tensor.shape) != expected:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {expected}")


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


def _check_packing(a: Arguments) -> None:
    cu = a.cu_seqlens
    if cu is None:
        return
    if cu.dtype not in (torch.int32, torch.int64) or cu.dim() != 1 or cu.shape[0] < 2:
        raise ValueError(
            f"cu_seqlens must be int32 or int64 [N + 1] with N >= 1; it is {cu.dtype} {tuple(cu.shape)}"
        )
    if a.q.shape[0] != 1:
        raise ValueError(f"cu_seqlens packs sequences in a batch of 1, but q has a batch of {a.q.shape[0]}")


def _check_dtypes(a: Arguments) -> None:
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
    for name, public in (("b", "beta"), ("w", "w")):
        tensor = getattr(a, name)
        if tensor is not None and tensor.dtype not in (io, compute):
            raise TypeError(f"{public} is {tensor.dtype}; with q of {io} it must be that or {compute}")
