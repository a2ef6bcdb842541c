"""How a tensor lies in its storage: what a copy to another device or dtype must keep.

``t.cpu()`` and ``t.to(dtype)`` keep the strides of tensors without gaps only: a slice comes out contiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lethe.verifier.channel import span

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PAGE = 4096
"""Allocations of torch begin at multiples of 64 bytes on a CPU and of 512 on a GPU; both divide this. Where
a tensor begins within a page is all that a kernel can tell of its offset."""


def lead(t: Tensor) -> int:
    """Elements between the start of a page and the first element of `t`, if its storage begins a page."""
    return int(t.storage_offset() % (PAGE // t.element_size()))


def copied(t: Tensor, *, dtype: torch.dtype | None = None, device: str | None = None) -> Tensor:
    """A copy in a storage of its own: strides and lead of `t`, and what lies between its elements, are kept.

    A place that several elements share is copied once, so an expanded tensor stays one.
    """
    import torch

    dtype = t.dtype if dtype is None else dtype
    start, shape, stride = lead(t), tuple(t.shape), tuple(t.stride())
    reach = span(shape, stride)
    storage = torch.empty(start + reach, dtype=dtype, device=t.device if device is None else device)
    storage[start:].copy_(t.detach().as_strided((reach,), (1,)))
    return storage.as_strided(shape, stride, start)
