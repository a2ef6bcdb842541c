"""Single values and memory layouts put into inputs that are otherwise the reference's own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lethe.verifier.domains import Domain, describe
from lethe.verifier.problem import Instance
from lethe.verifier.structure import flatten, unflatten

PLACEMENTS = ("first", "last", "interior", "whole_row", "tile_edges")
TILES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Block sizes of published kernels, whose edges are where masks go wrong."""
SUBNORMAL_UNIT = 2.0**-149
"""Smallest positive float32."""
SUBNORMAL_BITS = 19
"""Subnormals reach 2^-130, so that a sum of sixteen of them is subnormal too."""


class IllegalDraw(ValueError):
    """The domain of the reference's inputs does not allow this; the message says why."""


def _target(instance: Instance, inputs: list[Any], which: int) -> tuple[list[Tensor], Any, Domain]:
    tensors, skeleton = flatten(inputs)
    if not 0 <= which < len(tensors) or not tensors[which].is_floating_point():
        raise IllegalDraw("there is no such floating input")
    if not tensors[which].numel():
        raise IllegalDraw("the input is empty")
    return tensors, skeleton, describe(instance)[which]


def _objection(d: Domain, value: float) -> str:
    """Why the value is outside the domain, or ``""``."""
    if not d.free or d.kind == "binary":
        return f"inputs of kind {d.kind} hold no such value"
    if d.ascending:
        return "the input is sorted"
    if math.isinf(value):
        if d.kind != "real":
            return f"infinity is no {d.kind.replace('_', '-')}"
        if value < 0 and d.sign in ("positive", "nonnegative"):
            return f"the input is {d.sign}"
        if value > 0 and d.sign in ("negative", "nonpositive"):
            return f"the input is {d.sign}"
    return ""


def place_nonfinite(
    instance: Instance,
    inputs: list[Any],
    which: int,
    value: float,
    placement: str,
    unread: Tensor | None = None,
) -> list[Any]:
    """A copy of `inputs` with `value` (NaN or an infinity) in floating tensor `which`.

    `placement` is ``"first"``, ``"last"``, ``"interior"`` (one element), ``"whole_row"`` (a row of
    the last dimension) or ``"tile_edges"`` (both sides of each block boundary along the last
    dimension, each in a row of its own). Structural zeros are left alone (rule 30), as are the elements
    of the mask `unread` (rule 7), symmetry is kept (rule 33). Raises IllegalDraw with the reason.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"unknown placement {placement!r}; known are {', '.join(PLACEMENTS)}")
    tensors, skeleton, d = _target(instance, inputs, which)
    objection = _objection(d, value)
    if objection:
        raise IllegalDraw(objection)
    x = tensors[which].clone(memory_format=torch.contiguous_format)
    allowed = torch.ones(x.shape, dtype=torch.bool) if d.zeros is None else ~d.zeros.cpu()
    if unread is not None:
        allowed &= ~unread.cpu()
    at = _positions(allowed, placement)
    if not at:
        raise IllegalDraw("no element is outside the zero pattern" if placement != "tile_edges" else _NO_EDGE)
    x.view(-1)[torch.tensor(at, device=x.device)] = value
    if d.symmetric:
        mirrored = x.mT
        x = torch.where(mirrored.isfinite(), x, mirrored)
    tensors[which] = x
    result: list[Any] = unflatten(tensors, skeleton)
    return result


_NO_EDGE = (
    f"the input has no row or tensor longer than {TILES[0]} elements, or the reference reads none of those "
    "at the edges of tiles"
)


def _positions(allowed: Tensor, placement: str) -> list[int]:
    """Flat positions, in row-major order, among the allowed elements."""
    flat = allowed.reshape(-1)
    legal = flat.nonzero().view(-1)
    if not legal.numel():
        return []
    if placement in ("first", "last"):
        return [int(legal[0 if placement == "first" else -1])]
    middle = int(legal[legal.numel() // 2])
    if placement == "interior":
        return [middle]
    width = allowed.shape[-1] if allowed.dim() else 1
    if placement == "whole_row":
        start = middle // width * width
        return [i for i in range(start, start + width) if bool(flat[i])]
    rows = allowed.numel() // width
    if width <= TILES[0]:
        width, rows = allowed.numel(), 1
    table = flat.view(rows, width)
    at = []
    for k, edge in enumerate(e for t in TILES if t < width for e in (t - 1, t)):
        usable = table[:, edge].nonzero().view(-1)
        if usable.numel():
            at.append(int(usable[k % usable.numel()]) * width + edge)
    return at


def place_subnormals(instance: Instance, inputs: list[Any], which: int, seed: int = 0) -> list[Any]:
    """A copy of `inputs` whose tensor `which` holds subnormals: every element of the even rows of
    the last dimension, every second one of the odd rows. Raises IllegalDraw with the reason.
    """
    tensors, skeleton, d = _target(instance, inputs, which)
    if d.kind != "real" or d.ascending:
        raise IllegalDraw(f"inputs of kind {'sorted' if d.ascending else d.kind} hold no subnormals")
    x = tensors[which].clone(memory_format=torch.contiguous_format)
    g = torch.Generator().manual_seed(seed)
    steps = 2.0 ** (torch.rand(x.shape, generator=g) * SUBNORMAL_BITS)
    tiny = (steps.floor().double() * SUBNORMAL_UNIT).float()
    sign = torch.where(x.cpu() < 0, -1.0, 1.0)
    width = x.shape[-1] if x.dim() else 1
    flat = torch.arange(x.numel()).reshape(x.shape)
    chosen = ((flat // width) % 2 == 0) & (x.numel() > width) | (flat % 2 == 0)
    if d.zeros is not None:
        chosen &= ~d.zeros.cpu()
    x = torch.where(chosen.to(x.device), (tiny * sign).to(x), x)
    if d.symmetric:
        x = x.triu() + x.triu(1).mT
    tensors[which] = x
    result: list[Any] = unflatten(tensors, skeleton)
    return result


def place_signed_zeros(instance: Instance, inputs: list[Any], which: int) -> list[Any]:
    """A copy of `inputs` in whose tensor `which` every third element is -0 and every third +0. Raises
    IllegalDraw with the reason."""
    tensors, skeleton, d = _target(instance, inputs, which)
    if d.kind != "real" or d.ascending or d.symmetric or d.sign in ("positive", "negative"):
        raise IllegalDraw(f"inputs of kind {d.kind} hold no zeros of either sign")
    x = tensors[which].clone(memory_format=torch.contiguous_format)
    position = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 3
    x = torch.where(position == 0, -0.0, torch.where(position == 1, 0.0, x))
    tensors[which] = x if d.zeros is None else torch.where(d.zeros.to(x.device), tensors[which], x)
    result: list[Any] = unflatten(tensors, skeleton)
    return result


def layouts(inputs: list[Any], which: int | None = None) -> list[tuple[str, list[Any]]]:
    """The same values in other memory layouts, by name; `which` restricts it to one tensor.

    ``transposed`` swaps the strides of the last two dimensions, ``channels_last`` is torch's memory
    format of that name, ``sliced`` takes every second element of a wider tensor, ``padded`` rows of a
    wider matrix, ``offset`` starts in the middle of a storage. What lies between is NaN (the largest
    value for integers), so that a kernel that ignores strides does not find the right values by luck.
    """
    tensors, skeleton = flatten(inputs)
    found = []
    for name, relaid in (
        ("transposed", _transposed),
        ("channels_last", _channels_last),
        ("sliced", _sliced),
        ("padded", _padded),
        ("offset", _offset),
    ):
        changed = [relaid(t) if which in (None, i) else t for i, t in enumerate(tensors)]
        if any(a is not b for a, b in zip(changed, tensors, strict=True)):
            found.append((name, unflatten(changed, skeleton)))
    return found


def _filled(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    if t.is_floating_point():
        return torch.full(shape, math.nan, dtype=t.dtype, device=t.device)
    if t.dtype is torch.bool:
        return torch.ones(shape, dtype=t.dtype, device=t.device)
    return torch.full(shape, torch.iinfo(t.dtype).max, dtype=t.dtype, device=t.device)


def _transposed(t: Tensor) -> Tensor:
    if t.dim() < 2 or 1 in t.shape[-2:]:
        return t
    return t.mT.contiguous().mT


def _channels_last(t: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def _sliced(t: Tensor) -> Tensor:
    if not t.dim() or t.shape[-1] < 2 or t.is_complex():
        return t
    wide = _filled(t, (*t.shape[:-1], 2 * t.shape[-1]))
    view = wide[..., ::2]
    view.copy_(t)
    return view


def _padded(t: Tensor) -> Tensor:
    if t.dim() < 2 or t.shape[-2] < 2 or t.is_complex():
        return t
    wide = _filled(t, (*t.shape[:-1], t.shape[-1] + 5))
    view = wide[..., : t.shape[-1]]
    view.copy_(t)
    return view


def _offset(t: Tensor) -> Tensor:
    if not t.numel() or t.is_complex():
        return t
    long = _filled(t, (t.numel() + 3,))
    view = long[3:].view(t.shape)
    view.copy_(t)
    return view
