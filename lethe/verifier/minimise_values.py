"""Plainer values for a failing case: zeros and ones wherever they do, and few elements that matter.

What may be replaced is what the inputs' domains allow (fairness rule 33). Whole inputs are made constant
first; what must stay is then searched for along whole slices, and among single elements last. Once only a
few elements are left, they are moved into smaller tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lethe.verifier import domains, layout
from lethe.verifier.docket import Case, Sizes
from lethe.verifier.minimise import fewest
from lethe.verifier.problem import ProblemError
from lethe.verifier.structure import flatten, unflatten

if TYPE_CHECKING:
    from lethe.verifier.counterexample_probe import Bench
    from lethe.verifier.minimise_case import Search

CONSTANTS = frozenset({"ORD-02", "RES-01", "RES-02", "INTEGRITY"})
"""Gates for which the values hardly matter: only constants are tried."""
SPECIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "nonfinite": lambda t: ~t.isfinite(),
    "subnormal": lambda t: (t != 0) & (t.abs() < torch.finfo(t.dtype).tiny),
    "signed_zero": lambda t: t == 0,
}
"""Kinds of cases that put special values among ordinary ones -> which those are."""
FEW = 64
"""Of so few elements the values are worth rounding; more are better kept as they were drawn."""


@dataclass
class Values:
    """The input tensors of a case and which of their elements are to stay."""

    case: Case
    own: list[Tensor]
    skeleton: Any
    rest: dict[int, float]
    """Value of the elements that do not stay, for each input that may be changed."""
    zeros: dict[int, Tensor | None]
    """Elements that are zero in every draw (fairness rule 33)."""
    stay: dict[int, Tensor]
    """bool mask, for each input that may be changed."""
    signs: dict[int, str]
    marks: dict[int, Tensor]
    """Elements that hold the special value of a placed case."""

    def made(self, change: Callable[[Tensor], Tensor] | None = None) -> Case:
        """The case with everything replaced that does not stay; `change` is applied to what does."""
        tensors = list(self.own)
        for i, stay in self.stay.items():
            own = self.own[i]
            plain = torch.full_like(own, self.rest[i])
            if (zeros := self.zeros[i]) is not None:
                plain = plain.masked_fill(zeros.to(own.device), 0.0)
            kept = change(own).where(~self.marks[i], own) if change is not None else own
            tensors[i] = _laid_out(torch.where(stay, kept, plain), own)
        return replace(self.case, inputs=unflatten(tensors, self.skeleton))


def _laid_out(values: Tensor, like: Tensor) -> Tensor:
    """`values` in the layout of `like`; as they are where elements of `like` share a place, as expanded ones
    do: other values cannot."""
    alike = values.stride() == like.stride() and layout.lead(values) == layout.lead(like)
    if alike or 0 in like.stride():
        return values
    return layout.copied(like).copy_(values)


def _values(bench: Bench, case: Case) -> Values:
    own, skeleton = flatten(case.inputs)
    free = {}
    for i, d in enumerate(domains.describe(bench.instance(case.sizes))):
        if d.kind == "real" and not d.symmetric and not d.ascending and own[i].numel():
            free[i] = d
    special = SPECIAL.get(case.kind, lambda t: torch.zeros_like(t, dtype=torch.bool))
    return Values(
        case,
        own,
        skeleton,
        rest={i: _constants(d.sign)[0] for i, d in free.items()},
        zeros={i: d.zeros for i, d in free.items()},
        stay={i: torch.ones_like(own[i]).bool() for i in free},
        signs={i: d.sign for i, d in free.items()},
        marks={i: special(own[i]) for i in free},
    )


def _constants(sign: str) -> tuple[float, ...]:
    """The plainest values that the domain allows."""
    return {
        "positive": (1.0,),
        "negative": (-1.0,),
        "nonpositive": (0.0, -1.0),
    }.get(sign, (0.0, 1.0))


Fails = Callable[[], bool]


def simplify(search: Search) -> Values | None:
    """Make the values plain, at the sizes of the best case; returns them if few elements matter then."""
    values = _values(search.bench, search.best.case)
    changed = list(values.stay)

    def fails() -> bool:
        return search.takes(values.made())

    if not changed:
        return None
    if not _constant(values, changed, fails):
        for i in changed:
            _constant(values, [i], fails)
    if search.probe.gate in CONSTANTS:
        return None
    for i in changed:
        if bool((values.stay[i] & ~values.marks[i]).any()):
            _slices(values, i, search.best.finding.where, fails)
        _elements(values, i, fails)
    if sum(int(s.sum()) for s in values.stay.values()) > FEW:
        return None
    any(search.takes(values.made(change)) for change in (torch.sign, torch.round))
    values.own, _ = flatten(search.best.case.inputs)
    floating = [i for i, t in enumerate(values.own) if t.is_floating_point()]
    return values if set(floating) == set(changed) and search.best.case.kind != "layout" else None


def moved(values: Values, bench: Bench, sizes: Sizes) -> Case | None:
    """The case at smaller sizes: the elements that matter at the nearest place there is, the rest as it was.

    None where the sizes are none of the reference's.
    """
    try:
        drawn = bench.instance(sizes).draw(values.case.seed)
        there = _values(bench, replace(values.case, sizes=sizes, inputs=drawn))
    except ProblemError:
        return None
    if set(there.stay) != set(values.stay):
        return None
    for i, stay in values.stay.items():
        own, mask = torch.full_like(there.own[i], values.rest[i]), torch.zeros_like(there.stay[i])
        for at in stay.nonzero().tolist():
            near = tuple(min(k, n - 1) for k, n in zip(at, own.shape, strict=True))
            own[near], mask[near] = values.own[i][tuple(at)], True
        there.own[i], there.stay[i], there.rest[i] = own, mask, values.rest[i]
    return there.made()


def _constant(values: Values, which: list[int], fails: Fails) -> bool:
    """Try to make the inputs `which` zero, then one, special values aside."""
    before = {i: (values.stay[i], values.rest[i]) for i in which}
    for k in range(2):
        for i in which:
            allowed = _constants(values.signs[i])
            values.stay[i] = values.marks[i]
            values.rest[i] = allowed[min(k, len(allowed) - 1)]
        if fails():
            return True
    for i, (stay, rest) in before.items():
        values.stay[i], values.rest[i] = stay, rest
    return False


def _slices(values: Values, i: int, where: tuple[int, ...], fails: Fails) -> None:
    """Keep only some slices along each dimension; what the finding points at is tried first."""
    own, marks = values.own[i], values.marks[i]
    if len(where) == own.dim() and all(w < n for w, n in zip(where, own.shape, strict=True)):
        for depth in range(own.dim(), 0, -1):
            point = torch.zeros_like(marks)
            point[where[:depth]] = True
            if _keep(values, i, point | marks, fails):
                break
    for d in sorted(range(own.dim()), key=lambda d: -own.shape[d]):
        before = values.stay[i]
        present = [k for k in range(own.shape[d]) if bool(before.select(d, k).any())]

        def only(ks: list[int], d: int = d, before: Tensor = before) -> Tensor:
            mask = torch.zeros_like(before)
            for k in ks:
                mask.select(d, k).fill_(True)
            return (before & mask) | marks

        if len(present) > 1:
            fewest(present, lambda ks, only=only: _keep(values, i, only(ks), fails))  # type: ignore[misc]


def _elements(values: Values, i: int, fails: Fails) -> None:
    """Keep only some of the elements that are left, special ones included."""
    stay = values.stay[i]
    left = stay.reshape(-1).nonzero().reshape(-1).tolist()

    def only(at: list[int]) -> Tensor:
        mask = torch.zeros(stay.numel(), dtype=torch.bool, device=stay.device)
        mask[torch.tensor(at, dtype=torch.long, device=stay.device)] = True
        return mask.reshape(stay.shape)

    if len(left) > 1:
        fewest(left, lambda at: _keep(values, i, only(at), fails))


def _keep(values: Values, i: int, mask: Tensor, fails: Fails) -> bool:
    """Let only `mask` stay, if that still fails."""
    before = values.stay[i]
    values.stay[i] = mask
    if fails():
        return True
    values.stay[i] = before
    return False
