"""Which precision did a result come from? The averaged statistics of PRC-01 (regime) and PRC-02 (carry).

A single element says little: one TF32 error may be as small as a float32 one. The root mean square over
a tensor separates the regimes, because each multiplies it by the ratio of unit roundoffs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from lethe.verifier.conditioning import perturbed_run, real_view
from lethe.verifier.modes import EagerMode, widened
from lethe.verifier.operations import CONVOLUTIONS, MAX_DECOMPOSITION_DEPTH, decompositions, kind_of
from lethe.verifier.oracle import (
    ReferenceFailed,
    call,
    cast_floating,
    default_dtype,
    dtype_named,
    module_copy,
    pinned_backends,
    reference_errors,
)
from lethe.verifier.problem import Instance
from lethe.verifier.structure import flatten

BITS = {"tf32": 11, "float16": 11, "bfloat16": 8}
"""Significant bits, the implicit one included (NVIDIA PTX ISA, alternate floating point formats)."""

NARROWER = {
    "float32": ("tf32", "bfloat16", "float16"),
    "float16": ("bfloat16",),
    "bfloat16": (),
    "float64": (),
}
"""Regimes that are narrower than a declared dtype in range or precision of the significand."""

ELEVEN_BITS = "tf32 or float16"
LABELS = {"tf32": ELEVEN_BITS, "float16": ELEVEN_BITS, "bfloat16": "bfloat16"}
"""What a regime is called by its rounding alone, which is the same in TF32 and in float16."""

SEPARATION = 8.0
"""Levels closer than this factor are not told apart: the threshold, their geometric mean, then lies within
2.8 of both, about the factor between two faithful summation orders. float32 and TF32 differ by 2^13 /
sqrt(n)."""

REACH = math.sqrt(SEPARATION)
"""How far above the largest simulated level of a regime (`ceiling`) its error may lie: the simulations
accumulate exactly, and a real order of summation adds up to the 2.8 of `SEPARATION`."""

CHUNK = 32
"""Terms that a narrow-carry kernel adds up before it rounds its carry: the usual BLOCK_K of a tile."""

CARRY_REACH = 2.0 * CHUNK
"""How far above the simulated level a narrow carry's error may lie. A carry that is rounded after every term
rounds `CHUNK` times as often, and rounding errors add at most linearly; truncation doubles each."""

FP16_MAX = 65504.0
FP16_SPACING = 2.0**-24


def rounded(t: Tensor, kind: str, truncate: bool = False) -> Tensor:
    """`t` (float64) rounded to nearest in ``"tf32"``, ``"bfloat16"`` or ``"float16"``, still float64.

    Significand by Veltkamp's splitting (T. Dekker, Numer. Math. 18 (1971) 224); float16 also by its range.
    truncate: toward zero instead, as tensor cores do that ignore the low bits of a float32 operand.
    """
    if truncate:
        out = (t.view(torch.int64) & -(1 << (53 - BITS[kind]))).view(torch.float64)
    else:
        c = t * (2.0 ** (53 - BITS[kind]) + 1)
        out = torch.where(c.isfinite(), c - (c - t), t)
    if kind == "float16":
        steps = t / FP16_SPACING
        coarse = (steps.trunc() if truncate else steps.round()) * FP16_SPACING
        out = torch.where(t.abs() < 2.0**-14, coarse, out)
        out = torch.where(out.abs() > FP16_MAX, out.sign() * torch.inf, out)
    return out


def _wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float64


class Narrow(EagerMode):
    """Round the operands of contractions to `kind`; with `results`, what they return as well; with
    `everywhere`, the result of every rounding operator."""

    def __init__(self, kind: str, everywhere: bool, *, truncate: bool = False, results: bool = False) -> None:
        super().__init__()
        self.kind, self.everywhere, self.truncate, self.results = kind, everywhere, truncate, results
        self.contractions = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, nature = kind_of(func)
        if nature in ("contraction", "backward"):
            self.contractions += 1
            first = 1 if name in ("addmm", "baddbmm", "addmv") else 0
            args = tuple(self._round(a) if first <= i < first + 2 else a for i, a in enumerate(args))
        out = func(*args, **kwargs)
        stored = (self.everywhere and nature != "exact") or (self.results and nature == "contraction")
        if stored and not func._schema.is_mutable:
            out = tree_map(self._round, out)
        return out

    def _round(self, x: Any) -> Any:
        return rounded(x, self.kind, self.truncate) if _wide(x) else x


def narrowed_run(
    instance: Instance,
    inputs: Any,
    kind: str,
    everywhere: bool | None = None,
    *,
    truncate: bool = False,
    results: bool = False,
) -> Any:
    """The float64 result with operands rounded to ``"tf32"``, ``"bfloat16"`` or ``"float16"``: what a
    narrower regime would return at best (its accumulation is exact here).

    everywhere: also round every operator's result; default: only if the reference contracts nothing.
    truncate: toward zero. results: also round what contractions return.
    Raises ReferenceFailed, ValueError for another kind.
    """
    if kind not in BITS:
        raise ValueError(f"a narrower regime is one of {', '.join(BITS)}, not {kind!r}")
    wide = cast_floating(inputs, torch.float64)
    for whole in (False, True) if everywhere is None else (everywhere,):
        mode = Narrow(kind, whole, truncate=truncate, results=results)
        with pinned_backends(), default_dtype(torch.float64), reference_errors("narrowed"):
            module = module_copy(instance, torch.float64)
            given = tree_map(mode._round, wide) if whole else wide
            with widened(), mode:
                out = call(module, given)
        if mode.contractions:
            break
    return out


def level(value: Any, truth: Any) -> float:
    """Root mean square error over that of the truth, all floating outputs and finite elements together."""
    errors = total = 0.0
    for v, y in zip(flatten(value)[0], flatten(truth)[0], strict=True):
        if not (y.is_floating_point() or y.is_complex()):
            continue
        if v.shape != y.shape:
            raise ReferenceFailed("The reference's outputs have another shape in another precision.")
        kind = torch.complex128 if v.is_complex() or y.is_complex() else torch.float64
        a, b = (real_view(t.detach().to(device=y.device, dtype=kind)) for t in (v, y))
        both = a.isfinite() & b.isfinite()
        errors += float(torch.where(both, a - b, 0.0).square().sum())
        total += float(torch.where(both, b, 0.0).square().sum())
    return math.sqrt(errors / total) if total else 0.0


def ceiling(instance: Instance, inputs: Any, truth: Any, kind: str, stored: bool) -> float:
    """The largest level that an implementation of `kind` has on this draw, before `REACH`.

    Operands are rounded to nearest or truncated (sqrt(7) times the former's level for products of random
    signs, and more where all have one sign, since truncation is biased), or what contractions return is
    rounded too. `stored`: so may every other result be. Raises ReferenceFailed.
    """
    ways: list[dict[str, bool]] = [{}, {"truncate": True}, {"results": True}]
    if stored:
        ways.append({"everywhere": True})
    return max(level(narrowed_run(instance, inputs, kind, **way), truth) for way in ways)


def representable(value: Any, kind: str) -> bool:
    """True if every finite element of the floating outputs is a number of `kind`."""
    tensors = [real_view(t).double() for t in flatten(value)[0] if t.is_floating_point() or t.is_complex()]
    return all(bool(((rounded(t, kind) == t) | ~t.isfinite()).all()) for t in tensors)


def fell(before: float, after: float, expected: float) -> bool | None:
    """Whether an error went where its cause predicts (`expected`) instead of staying: the geometric mean of
    the two parts them. None where they are too close for that, or where it grew instead: then the draw has
    a difficulty of its own, such as weights that did not arrive."""
    if before < SEPARATION * expected or after > SEPARATION * before:
        return None
    return after <= math.sqrt(before * expected)


def explains(value: float, limit: float, fallen: bool | None = None) -> bool:
    """Rule 42: a narrower regime or carry explains an error that is no larger than it makes one (`limit`),
    and that went away where it makes none (`fallen`; None where that could not be tried)."""
    return value <= limit and fallen is not False


def nearest(value: float, levels: Mapping[str, float]) -> str | None:
    """The name whose level is nearest to `value` in ratio; the first of those within a factor 2 of that
    distance, since TF32 and float16 round alike."""
    distance = {k: abs(math.log(value / n)) for k, n in levels.items() if n > 0 and value > 0}
    closest = min(distance.values(), default=0.0)
    return next((k for k, d in distance.items() if d <= closest + math.log(2)), None)


@dataclass(frozen=True)
class PrecisionStatistic:
    """The averaged error of a value beside those of the regimes it may come from (all relative, see
    `level`)."""

    value: float
    legal: float
    """Largest level of a faithful run: the reference's own, one perturbed run, or half a unit of the
    output."""
    narrowed: dict[str, float]
    """Level of each narrower regime."""
    thresholds: dict[str, float]
    """Geometric mean of `legal` and the regime's level, for the regimes that can be told apart."""

    @property
    def decidable(self) -> bool:
        """True if at least one narrower regime can be told apart on this case."""
        return bool(self.thresholds)

    @property
    def regime(self) -> str | None:
        """None if the value is below every threshold; else the label of the regime whose level is nearest to
        it, whether or not that explains the error (`explains`)."""
        kind = self.suspects[0] if self.suspects else None
        return None if kind is None else LABELS[kind]

    @property
    def suspects(self) -> list[str]:
        """The kinds that may explain a value above the threshold, the nearest level first; else empty."""
        first = nearest(self.value, self.narrowed) if self.value > self.threshold else None
        if first is None:
            return []
        return [first, *(k for k, n in self.narrowed.items() if k != first and n > 0)]

    @property
    def threshold(self) -> float:
        """The smallest threshold; inf if nothing can be told apart."""
        return min(self.thresholds.values(), default=math.inf)


def precision_statistic(
    instance: Instance,
    inputs: Any,
    value: Any,
    truth: Any,
    working: Any,
    *,
    dtype: str = "float32",
    kinds: Sequence[str] | None = None,
) -> PrecisionStatistic:
    """PRC-01's statistic of `value` (nested, or a list of tensors) on generic draws.

    truth: the oracle; working: the reference's own run in `dtype`, without TF32. Raises ReferenceFailed.
    """
    legal = legal_level(instance, inputs, truth, working, dtype)
    narrowed = {}
    for kind in NARROWER[dtype] if kinds is None else kinds:
        narrowed[kind] = level(narrowed_run(instance, inputs, kind), truth)
    thresholds = {k: math.sqrt(legal * n) for k, n in narrowed.items() if n >= SEPARATION * legal}
    return PrecisionStatistic(level(value, truth), legal, narrowed, thresholds)


def legal_level(instance: Instance, inputs: Any, truth: Any, working: Any, dtype: str = "float32") -> float:
    """The larger level of the reference's own run in `dtype` and of one operation-level perturbed run, so
    that a faithful kernel with another summation order stays below. Raises ReferenceFailed."""
    named = dtype_named(dtype)
    unit = torch.finfo(named).eps / 2
    sample = perturbed_run(instance, inputs, unit, seed=1, dtype=named, growth="rss")
    return max(level(working, truth), level(sample, truth), unit / math.sqrt(3))


class Carry(EagerMode):
    """Sums and contractions whose running total is rounded to `kind` after every `chunk` terms.

    `recurrence`: the result of every elementwise addition is rounded as well (states carried by a loop).
    """

    def __init__(self, kind: str, chunk: int, recurrence: bool) -> None:
        super().__init__()
        self.kind, self.chunk, self.recurrence = kind, chunk, recurrence
        self.depth = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        spelled = decompositions().get(func)
        if spelled is not None and self.depth < MAX_DECOMPOSITION_DEPTH:
            self.depth += 1
            try:
                with self:
                    out = spelled(*args, **kwargs)
            finally:
                self.depth -= 1
            if out is not NotImplemented:
                return out
        name, _ = kind_of(func)
        if not any(_wide(a) for a in args):
            return func(*args, **kwargs)
        if name in ("mm", "bmm", "mv", "dot"):
            return self._contract(func, args[0], args[1])
        if name in ("addmm", "baddbmm", "addmv"):
            product = {"addmm": torch.ops.aten.mm, "baddbmm": torch.ops.aten.bmm, "addmv": torch.ops.aten.mv}[
                name
            ]
            alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
            return alpha * self._contract(product.default, args[1], args[2]) + beta * args[0]
        if name in CONVOLUTIONS and args[8] == 1 and not args[6]:
            return self._convolve(func, args)
        if name in ("sum", "mean"):
            return self._add_up(name, args, kwargs)
        if name == "cumsum":
            return self._scan(args[0], args[1])
        out = func(*args, **kwargs)
        return rounded(out, self.kind) if self.recurrence and name == "add" and _wide(out) else out

    def _fold(self, parts: Sequence[Tensor]) -> Tensor:
        carry = rounded(parts[0], self.kind)
        for p in parts[1:]:
            carry = rounded(carry + p, self.kind)
        return carry

    def _contract(self, product: Any, a: Tensor, b: Tensor) -> Tensor:
        inner = b.dim() - 2 if b.dim() > 1 else 0
        pairs = zip(a.split(self.chunk, -1), b.split(self.chunk, inner), strict=True)
        return self._fold([product(p, q) for p, q in pairs])

    def _convolve(self, func: Any, args: Any) -> Tensor:
        x, w, bias, *rest = args
        pairs = zip(x.split(self.chunk, 1), w.split(self.chunk, 1), strict=True)
        out = self._fold([func(p, q, None, *rest) for p, q in pairs])
        return out if bias is None else out + bias.reshape(1, -1, *[1] * (out.dim() - 2))

    def _add_up(self, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        x = args[0]
        dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
        keep = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
        dims = (
            list(range(x.dim()))
            if dims is None or dims == []
            else [dims]
            if isinstance(dims, int)
            else list(dims)
        )
        dims = [d % x.dim() for d in dims] if x.dim() else []
        kept = [d for d in range(x.dim()) if d not in dims]
        shape = [x.shape[d] for d in kept]
        rows = x.permute(*kept, *dims).reshape(*shape, -1)
        total = self._fold([p.sum(-1) for p in rows.split(self.chunk, -1)])
        if name == "mean":
            total = total / max(1, rows.shape[-1])
        return total.reshape([1 if d in dims else x.shape[d] for d in range(x.dim())]) if keep else total

    def _scan(self, x: Tensor, dim: int) -> Tensor:
        carry: Tensor | None = None
        out = []
        for p in x.split(self.chunk, dim):
            part = p.cumsum(dim) if carry is None else p.cumsum(dim) + carry
            out.append(rounded(part, self.kind))
            carry = out[-1].narrow(dim, p.shape[dim] - 1, 1)
        return torch.cat(out, dim)


def carried_run(
    instance: Instance, inputs: Any, kind: str, *, chunk: int = CHUNK, recurrence: bool = False
) -> Any:
    """The float64 result with running totals rounded to `kind` (``"float16"`` or ``"bfloat16"``) every
    `chunk` terms.

    Covers sums, means, running sums, matrix products and ungrouped convolutions; with `recurrence` also loops
    that carry a state by additions. Raises ReferenceFailed.
    """
    wide = cast_floating(inputs, torch.float64)
    with pinned_backends(), default_dtype(torch.float64), reference_errors("narrow-carry"):
        module = module_copy(instance, torch.float64)
        with widened(), Carry(kind, chunk, recurrence):
            return call(module, wide)


@dataclass(frozen=True)
class CarryPoint:
    """Errors at one length of the reduction (relative root mean square)."""

    length: int
    value: float
    wide: float
    """Largest level of a faithful run with a wide carry."""
    narrow: dict[str, float]
    """Level with the carry in each narrow kind."""

    def threshold(self, kind: str) -> float:
        """Geometric mean of the wide and the narrow level; inf if they cannot be told apart."""
        n = self.narrow[kind]
        return math.sqrt(self.wide * n) if n >= SEPARATION * self.wide else math.inf

    @property
    def lowest(self) -> float:
        """The smallest threshold; inf if no carry can be told apart at this length."""
        return min((self.threshold(k) for k in self.narrow), default=math.inf)


def carry_point(
    instance: Instance,
    inputs: Any,
    value: Any,
    truth: Any,
    working: Any,
    length: int,
    *,
    dtype: str = "float32",
    kinds: Sequence[str] = ("float16", "bfloat16"),
    recurrence: bool = False,
) -> CarryPoint:
    """PRC-02's statistic at one length. `dtype` is the declared dtype of the inputs; the carry of a
    faithful kernel is float32 also for half inputs, and its output may be rounded once to `dtype`. Raises
    ReferenceFailed.
    """
    unit = torch.finfo(dtype_named(dtype)).eps / 2
    sample = perturbed_run(instance, inputs, 2.0**-24, seed=1, growth="rss")
    wide = max(level(working, truth), level(sample, truth), unit / math.sqrt(3))
    narrow = {k: level(carried_run(instance, inputs, k, recurrence=recurrence), truth) for k in kinds}
    return CarryPoint(length, level(value, truth), wide, narrow)


@dataclass(frozen=True)
class CarrySweep:
    """What a sweep over lengths says about the accumulator."""

    kind: str | None
    """The narrow carry that explains the errors; None if the carry is wide."""
    decidable: int
    """How many lengths could tell the carries apart."""
    growth: float
    """Exponent of the value's error in the length (least squares in logarithms); nan for fewer than two
    lengths."""
    points: tuple[CarryPoint, ...]


def carry_sweep(points: Sequence[CarryPoint]) -> CarrySweep:
    """Decide from several lengths.

    Narrow if the value exceeds a threshold at more than half of the lengths that can tell the carries apart,
    the longest one included; the kind is the one whose level is nearest to it there.
    """
    ordered = sorted(points, key=lambda p: p.length)
    judged = [p for p in ordered if p.lowest < math.inf]
    over = [p.value > p.lowest for p in judged]
    guilty = bool(over) and over[-1] and 2 * sum(over) > len(over)
    kind = nearest(judged[-1].value, judged[-1].narrow) if guilty else None
    return CarrySweep(kind, len(judged), _slope(ordered), tuple(ordered))


def _slope(points: Sequence[CarryPoint]) -> float:
    pairs = [(math.log(p.length), math.log(p.value)) for p in points if p.value > 0]
    if len(pairs) < 2:
        return math.nan
    mx, my = (sum(c) / len(pairs) for c in zip(*pairs, strict=True))
    spread = sum((x - mx) ** 2 for x, _ in pairs)
    return sum((x - mx) * (y - my) for x, y in pairs) / spread if spread else math.nan
