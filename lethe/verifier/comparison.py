"""Comparing a value with a band: the worst element, and what kind of breach it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lethe.verifier.conditioning import real_view

if TYPE_CHECKING:
    from lethe.verifier.profiling import Selection
    from lethe.verifier.tolerance import Band


RARE = 2.0**-7
"""Share of the elements that breach by chance at most: of elements at a kink that lets half of all errors
through, 2^-8 have met only those of the other half in 8 perturbed runs; twice that for a margin."""


@dataclass(frozen=True)
class Comparison:
    """One value tensor against its band."""

    ratio: float
    """Largest error / bound over the valid elements; above 1 is a breach; inf if a valid element is not
    finite."""
    index: tuple[int, ...]
    """Where that is (in the real view for complex tensors); empty for a scalar or if nothing is valid."""
    error: float
    bound: float
    expected: float
    got: float
    checked: int
    """How many elements could have been charged."""
    breaches: int
    """How many elements exceed their bound."""
    minted: int
    """Valid elements that are NaN or infinite in the value."""
    swallowed: int
    """Elements where oracle and reference agree on a NaN or infinity and the value holds something else."""

    @property
    def within(self) -> bool:
        """True if no valid element exceeds its bound."""
        return self.ratio <= 1.0

    @property
    def rare(self) -> bool:
        """True if the breaches are finite and so few that they may lie where no perturbed run looked."""
        return math.isfinite(self.ratio) and self.breaches <= RARE * self.checked

    @property
    def finite(self) -> bool:
        """True if the worst valid element is a number."""
        return math.isfinite(self.got) or not self.checked

    @property
    def finite_mismatch(self) -> bool:
        """True if finiteness differs somewhere from what oracle and reference agree on."""
        return bool(self.minted or self.swallowed)


def same_nonfinite(a: Tensor, b: Tensor) -> Tensor:
    """True where both are NaN, or both the same infinity. NaN payload and sign do not count (rule 5)."""
    return (a.isnan() & b.isnan()) | (a.isinf() & b.isinf() & (torch.signbit(a) == torch.signbit(b)))


def compare(value: Tensor, truth: Tensor, allowed: Band) -> Comparison:
    """Compare `value` (any dtype or device) with the oracle's `truth` under `allowed`.

    Index outputs are judged by the values they select (`compare_selection`).
    Raises ValueError if the shapes differ: shape is another gate's business.
    """
    if value.shape != truth.shape:
        raise ValueError(f"the value has shape {tuple(value.shape)}, the truth {tuple(truth.shape)}")
    if allowed.selected is not None and judged_by_selection(allowed.selected):
        return compare_selection(value, allowed.selected)
    y = real_view(truth).double()
    v = real_view(value.detach()).to(device=y.device, dtype=torch.float64)
    if v.shape != y.shape:  # one is complex, the other is not
        v = torch.stack([v, torch.zeros_like(v)], dim=-1) if v.dim() < y.dim() else v[..., 0]
    swallowed = (allowed.nonfinite & ~same_nonfinite(v, y)).sum() if allowed.nonfinite is not None else 0
    return _worst(v, y, allowed.bound.to(y.device), allowed.valid.to(y.device), swallowed)


def _worst(v: Tensor, y: Tensor, bound: Tensor, valid: Tensor, swallowed: Tensor | int) -> Comparison:
    if not v.numel():
        return Comparison(0.0, (), 0.0, 0.0, math.nan, math.nan, 0, 0, 0, int(swallowed))
    error = (v - y).abs()
    same = (error == 0) | same_nonfinite(v, y)
    minted = valid & ~v.isfinite() & ~same
    ratio = torch.where(valid & ~same, error / bound, 0.0).masked_fill(minted, math.inf)
    at = ratio.reshape(-1).argmax()
    # not `[at]`, which reads the index first
    values = [t.expand(ratio.shape).reshape(-1).take(at) for t in (ratio, error, bound, y, v)]
    counts = [valid.sum(), (ratio > 1).sum(), minted.sum(), torch.as_tensor(swallowed, device=v.device), at]
    # one read of everything: a wait for a device that others share costs more than the comparison
    read = torch.stack([t.double() for t in (*values, *counts)]).tolist()
    checked, breaches, minted_count, swallowed_count, flat = map(int, read[5:])
    if not checked:
        return Comparison(0.0, (), 0.0, 0.0, math.nan, math.nan, 0, 0, 0, swallowed_count)
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), ratio.shape)) if ratio.dim() else ()
    return Comparison(
        ratio=read[0],
        index=index,
        error=read[1],
        bound=read[2],
        expected=read[3],
        got=read[4],
        checked=checked,
        breaches=breaches,
        minted=minted_count,
        swallowed=swallowed_count,
    )


def judged_by_selection(selected: Selected) -> bool:
    """Rule 16: an index is judged by the value it points at, wherever it can be looked up."""
    return bool(selected.expected.shape == selected.truth.shape)


@dataclass(frozen=True)
class Selected:
    """What a valid index output points at: values, and how far from them another faithful choice may be."""

    source: Tensor
    """float64; the values that were compared to choose."""
    dim: int
    expected: Tensor
    """float64, shape of the index output: the values that the oracle's indices point at."""
    slack: Tensor
    """float64, like `source`: rounding band of each source value; 0 where the source is an input."""
    distinct: bool
    """Indices along `dim` must differ from one another (topk, sort)."""
    truth: Tensor
    """The oracle's indices."""


def selected_from(selection: Selection, truth: Tensor, slack: Tensor) -> Selected | None:
    """Make the index output `truth` comparable by value; None if it does not index `selection.source` as it
    stands."""
    source, dim = selection.source, selection.dim
    if dim is None:
        source, slack, dim = source.reshape(-1), slack.reshape(-1), 0
    dim = dim % max(1, source.dim())
    distinct = selection.op in ("topk", "sort")
    chosen = Selected(source, dim, torch.empty(0), slack, distinct, truth)
    found = _gathered(source, dim, truth)
    if found is None:
        return None
    return Selected(source, dim, found, chosen.slack, distinct, truth)


def also_chosen(selected: Selected, index: Tensor) -> Selected:
    """The same with what the reference's own run chose allowed too: where it rounds before it compares, its
    choice may lie further from the oracle's than any perturbed run shows."""
    index = index.to(selected.source.device).long()
    value = _gathered(selected.source, selected.dim, index)
    if value is None or not selected.source.dim():
        return selected
    away = (value - selected.expected).abs().nan_to_num(0.0, 0.0, 0.0)
    full = index.dim() == selected.source.dim()
    where, away = (index, away) if full else (index.unsqueeze(selected.dim), away.unsqueeze(selected.dim))
    slack = selected.slack.scatter_reduce(selected.dim, where, away, "amax")
    return replace(selected, slack=slack)


def _gathered(source: Tensor, dim: int, index: Tensor) -> Tensor | None:
    """``source`` at ``index`` along ``dim``, whether or not the index kept the reduced dimension."""
    if source.dim() == 0:
        return source.expand(index.shape)
    full = index
    if index.dim() == source.dim() - 1:
        full = index.unsqueeze(dim)
    if full.dim() != source.dim() or any(
        full.shape[d] != source.shape[d] for d in range(source.dim()) if d != dim
    ):
        return None
    if full.numel() and (int(full.min()) < 0 or int(full.max()) >= source.shape[dim]):
        return None
    return source.gather(dim, full).reshape(index.shape)


def compare_selection(value: Tensor, selected: Selected) -> Comparison:
    """Judge indices by the values they select; ties are free (rule 16).

    The error of an index is |source[got] - source[expected]| against the rounding slack of both source
    values; an index out of range, or repeated where indices must differ, is an infinite ratio.
    """
    y = selected.expected
    got = value.detach().to(selected.source.device)
    whole = got.long() if not got.is_floating_point() else got.nan_to_num(-1.0).long()
    size = selected.source.shape[selected.dim] if selected.source.dim() else 1
    outside = (whole < 0) | (whole >= size) | (whole.double() != got.double())
    inside = whole.clamp(0, size - 1)
    v = _gathered(selected.source, selected.dim, inside)
    slack_got = _gathered(selected.slack, selected.dim, inside)
    slack_expected = _gathered(selected.slack, selected.dim, selected.truth)
    if v is None or slack_got is None or slack_expected is None:
        raise ValueError(f"an index output of shape {tuple(value.shape)} does not fit its source")
    bad = outside
    if selected.distinct and got.dim() == selected.source.dim():
        ordered = whole.sort(dim=selected.dim).values
        twice = (ordered.diff(dim=selected.dim) == 0).any(dim=selected.dim, keepdim=True)
        bad = bad | twice.expand(bad.shape)
    everything = torch.ones(y.shape, dtype=torch.bool, device=y.device)
    v = torch.where(bad, math.nan, v)
    y_safe = torch.where(bad & ~y.isfinite(), 0.0, y)
    return _worst(v, y_safe, slack_got + slack_expected, everything, 0)
