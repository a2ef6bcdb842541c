"""The same weights on both sides (fairness rule 23).

Reference and candidate are constructed after the same seed, so that their random
initialisation usually agrees already. Only where it does not are values copied, by name
and exact shape: copying in order broadcasts silently, and a copy leaves tensors stale
that the candidate derived from its own values. What stays ambiguous is not audited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn


class HasState(Protocol):
    """What a suspect reports after construction (`custody.Built`)."""

    @property
    def state(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Alignment:
    """How the candidate comes to the reference's weights."""

    how: str
    """``"none"`` (the reference holds none), ``"seeded"`` (equal after seeding), ``"copied"`` (copy `state`),
    or ``"not_auditable"``."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What to copy into the candidate, by its own names; empty unless `how` is ``"copied"``."""
    reason: str = ""
    """One sentence; empty unless `how` is ``"not_auditable"``."""


def align(reference: Mapping[str, Tensor], built: HasState, other: HasState | None = None) -> Alignment:
    """Decide how `built` (the candidate's state after seeding) is given the weights of `reference`.

    Both are state dicts (parameters and persistent buffers). `other` is the candidate built
    at another seed, if it was: its extra tensors that are equal in both builds do not depend
    on the initialisation, so that a copy cannot make them stale.
    """
    candidate = dict(built.state)
    if not reference:
        return Alignment("none")
    if seeded_alike(reference, candidate):
        return Alignment("seeded")
    needed = {n: t for n, t in reference.items() if not _uniform(t)}
    for name in reference:
        if name not in candidate and name in needed:
            return Alignment("not_auditable", reason=_missing(name, candidate))
    for name, t in reference.items():
        if name in candidate and candidate[name].shape != t.shape:
            return Alignment(
                "not_auditable",
                reason=f"{name} has shape {tuple(candidate[name].shape)}, "
                f"the reference's has {tuple(t.shape)}",
            )
    for name, t in candidate.items():
        if name not in reference and not _uniform(t) and not _independent(name, t, other):
            return Alignment(
                "not_auditable",
                reason=f"weights differ after seeding, and copying them could leave {name}, which only the "
                "candidate holds, stale",
            )
    return Alignment("copied", {n: t for n, t in reference.items() if n in candidate})


def seeded_alike(reference: Mapping[str, Tensor], candidate: Mapping[str, Tensor]) -> bool:
    """Rule 23: after the same seed both sides hold the same weights already, so that nothing is copied.

    Names may differ, and weights may be transposed or repacked; tensors of one value throughout need no
    counterpart.
    """
    needed = {n: t for n, t in reference.items() if not _uniform(t)}
    return not _unmatched(needed, candidate) and _no_namesake_differs(reference, candidate)


def uniform_names(module: nn.Module) -> list[str]:
    """Floating parameters and buffers of more than one element that hold one value throughout, and parameters
    that hold a regular sequence (such as ``A_log``, the logarithms of 1, 2, 3...).

    No seed moves them, so a kernel may hold them as constants of its own without being seen.
    """
    learned = {n for n, p in module.named_parameters() if p.requires_grad}
    return [
        n
        for n, t in module.state_dict().items()
        if t.is_floating_point() and t.numel() > 1 and (_uniform(t) or (n in learned and _regular(t)))
    ]


LONG_RUN = 8
"""A random draw of so many values is monotone with probability 2 / 8! = 5e-5."""


def _regular(t: Tensor) -> bool:
    """Values that no random draw gives: equal rows, or a monotone sequence of `LONG_RUN` or more."""
    rows = t.reshape(-1, t.shape[-1])
    if rows.shape[0] > 1 and rows.shape[1] > 1 and bool((rows == rows[0]).all()):
        return True
    step = rows.diff(dim=-1)
    return rows.shape[1] >= LONG_RUN and bool((step >= 0).all() or (step <= 0).all())


def vary_uniform(module: nn.Module, seed: int) -> None:
    """Replace uniform weights in place: c (1 + u/4) with u uniform in [-1, 1), or noise of 1/4 around zero.

    Ones, zeros and running statistics are what most constructors set, so that a kernel which ignores
    them agrees with the reference until somebody loads trained weights. Signs are kept: a variance
    stays positive.
    """
    import torch

    g = torch.Generator().manual_seed(seed)
    state = module.state_dict()
    with torch.no_grad():
        for name in uniform_names(module):
            t = state[name]
            noise = (torch.rand(t.shape, generator=g) * 2 - 1).to(t)
            t.copy_(t * (1 + noise / 4) if bool((t != 0).any()) else noise / 4)


def stirred(state: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The floating tensors of `state` as a few steps of training would leave them: c (1 + u/4), or noise of
    1/4 where c is zero, with u uniform in [-1, 1). Signs are kept: a variance stays positive.
    """
    import torch

    g = torch.Generator().manual_seed(seed)
    found = {}
    for name, t in state.items():
        if t.is_floating_point() and t.numel():
            noise = (torch.rand(t.shape, generator=g) * 2 - 1).to(t) / 4
            found[name] = torch.where(t == 0, noise, t * (1 + noise))
    return found


def _missing(name: str, candidate: Mapping[str, Tensor]) -> str:
    held = ", ".join(list(candidate)[:4]) or "no tensors"
    return f"no tensor of the candidate holds the values of {name}, nor has its name (it holds {held})"


def _uniform(t: Tensor) -> bool:
    """True if all elements are alike (ones, zeros, counters): both constructors set such values."""
    return t.numel() == 0 or bool((t == t.reshape(-1)[0]).all())


def _same(reference: Tensor, candidate: Tensor) -> bool:
    """Equal bytes at the candidate's dtype, NaN included."""
    cast = reference.detach().cpu().to(candidate.dtype)
    return bool(((cast == candidate.cpu()) | (cast != cast) & (candidate != candidate).cpu()).all())


def _unmatched(needed: Mapping[str, Tensor], candidate: Mapping[str, Tensor]) -> list[str]:
    """Reference tensors whose values the candidate holds neither under the same name nor, possibly
    transposed or repacked, under another."""
    left = dict(candidate)
    open_names = []
    for name, t in needed.items():
        held = left.get(name)
        if held is not None and held.shape == t.shape and _same(t, held):
            del left[name]
        else:
            open_names.append(name)
    unmatched = []
    for name in open_names:
        match = next((n for n, h in left.items() if _rearranged(needed[name], h)), None)
        if match is None or (name in candidate and match != name):
            unmatched.append(name)
        else:
            del left[match]
    return unmatched


def _rearranged(reference: Tensor, candidate: Tensor) -> bool:
    if (
        reference.numel() != candidate.numel()
        or reference.is_floating_point() != candidate.is_floating_point()
        or reference.is_complex() != candidate.is_complex()
    ):
        return False
    from lethe.verifier.perturbation import real_view

    return _same(*(real_view(t.detach()).reshape(-1).sort().values for t in (reference, candidate)))


def _no_namesake_differs(reference: Mapping[str, Tensor], candidate: Mapping[str, Tensor]) -> bool:
    """No tensor has the same name on both sides but other values (rearranged ones were matched)."""
    return all(
        n not in candidate
        or (candidate[n].shape == t.shape and _same(t, candidate[n]))
        or _rearranged(t, candidate[n])
        for n, t in reference.items()
    )


def _independent(name: str, t: Tensor, other: HasState | None) -> bool:
    if other is None or name not in other.state:
        return False
    second = other.state[name]
    return second.shape == t.shape and _same(t, second)
