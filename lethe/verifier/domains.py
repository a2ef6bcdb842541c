"""What a reference's own draws have in common: the structure that every other draw keeps.

Rule 33: zero patterns, symmetry, order and the operator's domain (probabilities,
variances, decays, masks, indices) are part of the problem; a kernel may rely on them.
They are found from three draws. One thing they cannot tell is whether an input that
happens to be non-negative must be: ``torch.rand`` is KernelBench's generic input, and a
ReLU that returns its input unchanged must not pass. So the functions that an input went
through in ``get_inputs`` are recorded too: plain uniform or normal numbers, scaled and
reshaped, restrict nothing unless the reference turns non-finite on signed ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lethe.verifier.problem import Instance, ProblemError
from lethe.verifier.reference import run_apart
from lethe.verifier.structure import flatten, unflatten

DRAWS = 3
SEEDS = tuple(982_451_653 + k for k in range(DRAWS))
"""Seeds of the draws that structure is read from, apart from those that gates use."""
SUM_TOLERANCE = 1e-4
"""Rows of float32 probabilities sum to 1 within sqrt(n) u, 4e-6 for rows of 4096."""
AWAY = 0.01
"""A minimum above this share of the maximum: uniform numbers on [0, 1) come closer to 0."""
FEW = 512
"""Below this number of elements a minimum says nothing: three draws of 512 uniform numbers all
stay above 0.01 with probability 2e-7, of 64 with 0.15."""

GENERIC = frozenset(
    {
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "normal",
        "normal_",
        "uniform_",
        "mul",
        "__mul__",
        "__rmul__",
        "mul_",
        "add",
        "__add__",
        "__radd__",
        "add_",
        "sub",
        "__sub__",
        "__rsub__",
        "sub_",
        "div",
        "__truediv__",
        "div_",
        "neg",
        "__neg__",
        "reshape",
        "view",
        "flatten",
        "unsqueeze",
        "squeeze",
        "transpose",
        "t",
        "permute",
        "contiguous",
        "to",
        "float",
        "double",
        "half",
        "clone",
        "detach",
        "requires_grad_",
        "expand",
        "repeat",
        "cat",
        "stack",
        "chunk",
        "split",
        "triu",
        "tril",
        "__get__",
        "__getitem__",
        "zeros",
        "empty",
        "ones",
        "type",
        "matmul",
        "__matmul__",
        "mm",
    }
)
"""Functions that keep a generic input generic."""


@dataclass(frozen=True)
class Domain:
    """Structure of one input tensor."""

    kind: str
    """``"real"`` (floating, may take values by `sign`), ``"probability"``, ``"log_probability"``,
    ``"unit"`` (inside (0, 1)), ``"binary"`` (two values), ``"integral"`` (floating whole numbers),
    ``"masked"`` (holds -inf or other non-finites), ``"fixed"`` (every draw alike),
    ``"index"`` or ``"boolean"``."""
    sign: str = "any"
    """``"any"``, ``"positive"``, ``"nonnegative"``, ``"negative"`` or ``"nonpositive"``."""
    dim: int = -1
    """Dimension along which (log-)probabilities are normalised."""
    zeros: Tensor | None = None
    """bool: elements that are zero in every draw (triangles, bands, diagonals); None if there are none."""
    symmetric: bool = False
    """Equal to its transpose in the last two dimensions."""
    ascending: bool = False
    """Sorted along the last dimension."""
    values: tuple[float, float] = (0.0, 0.0)
    """The two values of a binary input, or the range of an index or whole-number input."""
    generic: bool = False
    """Drawn as plain random numbers, so that the sign of its own draws restricts nothing."""

    @property
    def free(self) -> bool:
        """True if its values may be replaced."""
        return self.kind in ("real", "probability", "log_probability", "unit", "binary")


class _Ancestry(TorchFunctionMode):
    """Names of the functions that each tensor went through."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, set[str]] = {}
        self._alive: list[Tensor] = []

    def of(self, t: Tensor) -> set[str]:
        return self.names.get(id(t), set())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        given = [*_tensors(args), *_tensors(kwargs)]
        ancestors = {name}.union(*(self.of(a) for a in given))
        if name in ("mul", "__mul__") and len(given) == 2 and given[0] is given[1]:
            ancestors.add("square")
        changed = given[:1] if name.endswith("_") or name == "__setitem__" else []
        for t in (*_tensors((out,)), *changed):
            self.names[id(t)] = self.of(t) | ancestors
            self._alive.append(t)
        return out


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def describe(instance: Instance) -> list[Domain]:
    """The domain of each input tensor, in flatten order (found once per instance)."""
    if "domains" not in instance.notes:
        instance.notes["domains"] = _describe(instance)
    found: list[Domain] = instance.notes["domains"]
    return found


def _describe(instance: Instance) -> list[Domain]:
    with _Ancestry() as ancestry:
        first, skeleton = flatten(instance.draw(SEEDS[0]))
    drawn = [first] + [flatten(instance.draw(s))[0] for s in SEEDS[1:]]
    if len({len(d) for d in drawn}) != 1:
        raise ProblemError(f"{instance.problem.name}: the number of inputs differs from draw to draw")
    domains = []
    for i, t in enumerate(first):
        names, draws = ancestry.of(t), [d[i] for d in drawn]
        domain = _domain(draws, bool(names) and names <= GENERIC)
        if domain.generic and domain.sign != "any" and _signed_is_finite(instance, first, skeleton, i):
            domain = replace(domain, sign="any")
        domains.append(domain)
    return domains


ALL_WHOLE = 2.0**23
"""From here on every float32 is a whole number, so that being whole says nothing."""


def _domain(draws: list[Tensor], generic: bool) -> Domain:
    x = draws[0]
    if x.dtype is torch.bool:
        return Domain("boolean")
    if not x.is_floating_point():
        if x.is_complex() or not x.numel():
            return Domain("fixed")
        return Domain("index", values=(_least(draws), _greatest(draws)))
    if not x.numel() or any(t.shape != x.shape for t in draws) or all(torch.equal(x, t) for t in draws[1:]):
        return Domain("fixed")
    if not all(bool(t.isfinite().all()) for t in draws):
        return Domain("masked")
    low, high = _least(draws), _greatest(draws)
    whole = max(abs(low), abs(high)) < ALL_WHOLE and all(bool((t.round() == t).all()) for t in draws)
    if whole or (x.numel() > 2 and _two_valued(draws, low, high)):
        return Domain("binary" if _two_valued(draws, low, high) else "integral", values=(low, high))
    zeros = _zero_pattern(draws)
    symmetric = x.dim() > 1 and x.shape[-1] == x.shape[-2] > 1 and all(torch.equal(t, t.mT) for t in draws)
    ascending = x.shape[-1:] > (2,) and all(bool((t.diff(dim=-1) >= 0).all()) for t in draws)
    sign = _sign(draws, zeros, low, high)
    if sign in ("positive", "nonnegative"):
        dim = _normalised(draws, lambda t, d: t.sum(d) - 1)
        if dim is not None:
            return Domain("probability", sign, dim)
    if sign in ("negative", "nonpositive"):
        dim = _normalised(draws, lambda t, d: t.logsumexp(d))
        if dim is not None:
            return Domain("log_probability", sign, dim)
    near, far = sorted((abs(low), abs(high)))
    if sign != "any" and x.numel() >= FEW and near > AWAY * far:
        generic = False
    kind = "unit" if not generic and sign == "positive" and high < 1 else "real"
    return Domain(kind, sign, -1, zeros, symmetric, ascending, (low, high), generic)


def _least(draws: list[Tensor]) -> float:
    return min(float(t.min()) for t in draws)


def _greatest(draws: list[Tensor]) -> float:
    return max(float(t.max()) for t in draws)


def _two_valued(draws: list[Tensor], low: float, high: float) -> bool:
    return low < high and all(bool(((t == low) | (t == high)).all()) for t in draws)


def _zero_pattern(draws: list[Tensor]) -> Tensor | None:
    pattern = draws[0] == 0
    if not bool(pattern.any()) or not all(torch.equal(pattern, t == 0) for t in draws[1:]):
        return None
    return pattern.cpu()


def _sign(draws: list[Tensor], zeros: Tensor | None, low: float, high: float) -> str:
    """Sign of the elements outside the zero pattern."""
    inside = draws if zeros is None else [t[~zeros.to(t.device)] for t in draws]
    if low >= 0:
        return "positive" if all(bool((t > 0).all()) for t in inside) else "nonnegative"
    if high <= 0:
        return "negative" if all(bool((t < 0).all()) for t in inside) else "nonpositive"
    return "any"


def _normalised(draws: list[Tensor], excess: Any) -> int | None:
    for d in range(draws[0].dim() - 1, -1, -1):
        if draws[0].shape[d] > 1 and all(float(excess(t, d).abs().max()) < SUM_TOLERANCE for t in draws):
            return d
    return None


def _signed_is_finite(instance: Instance, tensors: list[Tensor], skeleton: Any, i: int) -> bool:
    """Whether the reference stays finite when input `i` takes both signs."""
    x = tensors[i]
    flips = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 2 == 0
    changed = [*tensors[:i], torch.where(flips, -x, x), *tensors[i + 1 :]]
    try:
        before, after = (
            [bool(t.isfinite().all()) for t in flatten(run_apart(instance, unflatten(ts, skeleton)))[0]]
            for ts in (tensors, changed)
        )
    except ProblemError:
        return False
    return all(after) or not all(before)
