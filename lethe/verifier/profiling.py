"""What kind of operator is this? Found by tracing the float64 reference and by numeric probes, never by its
name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lethe.verifier.absolute import absolute_terms
from lethe.verifier.modes import EagerMode, widened
from lethe.verifier.operations import (
    ADDING,
    CONTRACTIONS,
    CONVOLUTIONS,
    CRISP,
    ELEMENTARY,
    EXACT,
    MAX_DECOMPOSITION_DEPTH,
    SELECTING,
    STEPS,
    accumulates,
    decompositions,
    is_scaling,
    kind_of,
    lengths,
    whole_power,
)
from lethe.verifier.oracle import (
    ReferenceFailed,
    call,
    cast_floating,
    default_dtype,
    floating_inputs,
    module_copy,
    pinned_backends,
    reference_errors,
    run_float64,
)
from lethe.verifier.perturbation import real_view
from lethe.verifier.problem import Instance
from lethe.verifier.structure import flatten, unflatten

AGREEMENT = 1e-9
"""Relative difference below which two float64 evaluations count as equal: far above the 1e-13 that rounding
makes on sums of 10^4 terms, far below any curvature a probe of unit size would show."""

SMALL = 2.0**-20
"""Scale of the probe for affine operators: curvature x^2 shows as 1e-6, clamps and knees away from zero do
not."""

MANY_STEPS = 16
"""So many equal elementwise operators of one shape in one trace are taken for a recurrence over steps."""

PIECEWISE_CONSTANT = 0.99
"""Share of elements that a relative change of 1e-6 in all inputs must leave alone in a discrete output."""


@dataclass(frozen=True)
class Selection:
    """How an index output was chosen: it points into `source` along `dim`."""

    source: Tensor
    """float64 values that were compared."""
    dim: int | None
    """None: into the flattened source."""
    op: str


@dataclass(frozen=True)
class OperatorProfile:
    """The traits of a reference that decide which bands and gates apply."""

    linear: bool
    """Affine in each floating input separately (matmul of two inputs counts)."""
    affine_or_copy: bool
    """Elementwise affine, copying or selecting: subnormals are representable all the way through."""
    convolution: bool
    contraction: bool
    reduction_length: int
    """Longest sum or product in one output element; 1 if there is none."""
    discrete_outputs: list[bool]
    stochastic: bool
    ops: tuple[str, ...]
    """Names of the traced aten operators (composites spelled out), sorted."""
    selects: bool
    """Compares values to pick some: max, sort, topk, max pooling."""
    normalises: bool
    """Invariant under a scale or a shift of its first floating input."""
    sum_of_products: bool
    """Only additions and products of inputs and parameters, so that `absolute_terms` exists."""
    integer_preserving: bool
    """Integer inputs give integer outputs through sums, products and selections alone."""
    ones_total: float
    """Largest sum of absolute terms on all-ones inputs; nan unless `sum_of_products`."""
    structural_zeros: list[Tensor]
    """bool per output: elements that are zero for generic inputs (triangles, padding)."""
    stepping: bool
    """Rounds to whole numbers, and otherwise only copies, selects, adds, multiplies and divides, so that on
    inputs of few bits every faithful spelling meets the same ties."""


class Trace(EagerMode):
    """Record the operators of a float64 run, their reduction lengths, and where index outputs come from."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.longest = 1
        self.steps: Counter[tuple[Any, ...]] = Counter()
        self.stochastic = False
        self.elementary = True
        self.simple = True
        self.steps_taken = False
        self.crisp = True
        self.depth = 0
        self.selections: dict[int, tuple[Tensor, Selection]] = {}

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
        out = func(*args, **kwargs)
        name, kind = kind_of(func)
        self._note(func, name, kind, args, kwargs, out)
        return out

    def _note(self, func: Any, name: str, kind: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        self.names.add(name)
        self.steps_taken = self.steps_taken or name in STEPS or _truncates(name, args, out)
        plain = kind == "exact" and not accumulates(name, args, kwargs)
        plain = (plain or name in CRISP) and not kwargs.keys() & {"rounding_mode", "decimals"}
        self.crisp = self.crisp and plain
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.stochastic = True
        if name in SELECTING:
            self._note_selection(name, args, kwargs, out)
        elif name in ("view", "reshape", "squeeze", "unsqueeze", "_unsafe_view", "alias", "clone", "detach"):
            self._carry_selection(args[0], out)
        floating = any(isinstance(t, Tensor) and t.is_floating_point() for t in tree_leaves(out))
        if not floating or (kind == "exact" and not accumulates(name, args, kwargs)):
            if name in ("floor", "ceil", "round", "trunc", "sign", "heaviside"):
                self.elementary = self.simple = False
            if name in ("relu", "relu6", "clamp", "clamp_min", "clamp_max", "hardtanh", "abs", "threshold"):
                self.elementary = False
            return
        if kind in ("contraction", "adding", "multiplying", "transform", "backward") or accumulates(
            name, args, kwargs
        ):
            n = max(lengths(name, args, out))
            self.longest = max(self.longest, n)
            self.simple = self.simple and n == 1
            self.elementary = self.elementary and kind in ("contraction", "adding")
            return
        product = name in ELEMENTARY and whole_power(name, args)
        scaled = is_scaling(name, args)
        self.elementary = self.elementary and (product or scaled)
        self.simple = self.simple and (product or name in ("div", "leaky_relu", "_prelu_kernel"))
        if isinstance(out, Tensor):
            self.steps[(name, tuple(out.shape))] += 1

    def _note_selection(self, name: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        source = args[0]
        position = {"topk": 2, "kthvalue": 2}.get(name, 1)
        dim = kwargs.get("dim", args[position] if len(args) > position else None)
        if isinstance(dim, (list, tuple, bool)):
            return
        if dim is None and name in ("topk", "sort"):
            dim = -1
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor) and t.dtype == torch.int64 and isinstance(source, Tensor):
                self.selections[id(t)] = (t, Selection(source, dim, name))

    def _carry_selection(self, before: Any, after: Any) -> None:
        found = self.selections.get(id(before))
        if found is not None and isinstance(after, Tensor) and after.numel() == before.numel():
            self.selections[id(after)] = (after, found[1])

    @property
    def reduction_length(self) -> int:
        steps = max(self.steps.values(), default=0)
        return max(self.longest, steps if steps >= MANY_STEPS else 1)


def _truncates(name: str, args: Any, out: Any) -> bool:
    """Whether a cast turns fractions into whole numbers."""
    integral = isinstance(out, Tensor) and not (out.is_floating_point() or out.is_complex())
    return name == "_to_copy" and integral and out.dtype != torch.bool and args[0].is_floating_point()


def traced(instance: Instance, inputs: Any) -> tuple[Any, Trace]:
    """The float64 result of the reference's own code and its trace. Raises ReferenceFailed."""
    trace = Trace()
    wide = cast_floating(inputs, torch.float64)
    with pinned_backends(), default_dtype(torch.float64), reference_errors("traced"):
        module = module_copy(instance, torch.float64)
        with widened(), trace:
            out = call(module, wide)
    return out, trace


def selections(instance: Instance, inputs: Any) -> list[Selection | None]:
    """For each output tensor, what it selects from if it is an index that the reference returns unchanged."""
    out, trace = traced(instance, inputs)
    found = [trace.selections.get(id(t)) for t in flatten(out)[0]]
    return [f[1] if f is not None else None for f in found]


def profile_operator(instance: Instance, inputs: Any) -> OperatorProfile:
    """Trace the float64 run on `inputs` and probe it. Raises ReferenceFailed."""
    out, trace = traced(instance, inputs)
    tensors = flatten(out)[0]
    probe = _Probe(instance, inputs)
    linear = trace.elementary and probe.affine_in_each()
    absolute = absolute_terms(instance, probe.ones()) if trace.elementary else None
    return OperatorProfile(
        linear=linear,
        affine_or_copy=trace.simple and trace.reduction_length == 1 and probe.affine_near_zero(),
        convolution=bool(trace.names & CONVOLUTIONS),
        contraction=bool(trace.names & CONTRACTIONS),
        reduction_length=trace.reduction_length,
        discrete_outputs=probe.discrete(tensors),
        stochastic=trace.stochastic,
        ops=tuple(sorted(trace.names)),
        selects=bool(trace.names & SELECTING),
        normalises=probe.invariant(),
        sum_of_products=absolute is not None,
        integer_preserving=probe.integers(trace),
        ones_total=absolute.largest if absolute is not None else math.nan,
        structural_zeros=probe.zeros(tensors),
        stepping=trace.steps_taken and trace.crisp,
    )


class _Probe:
    """Float64 evaluations of one reference at points around one set of inputs."""

    def __init__(self, instance: Instance, inputs: Any) -> None:
        self.instance = instance
        tensors, self.skeleton = flatten(cast_floating(inputs, torch.float64))
        self.tensors = tensors
        self.floating = floating_inputs(inputs)
        self.generators: dict[torch.device, torch.Generator] = {}

    def at(self, change: Callable[[int, Tensor], Tensor]) -> list[Tensor] | None:
        """Outputs with ``change(i, tensor)`` for the i-th input tensor where floating; None if it raises."""
        moved = [change(i, t) if i in self.floating else t for i, t in enumerate(self.tensors)]
        try:
            out = run_float64(self.instance, unflatten(moved, self.skeleton))
        except ReferenceFailed:
            return None
        return [real_view(t).double() for t in flatten(out)[0]]

    def noise(self, t: Tensor) -> Tensor:
        g = self.generator(t.device)
        return torch.randn(t.shape, generator=g, dtype=torch.float64, device=t.device)

    def whole(self, t: Tensor) -> Tensor:
        return torch.randint(-3, 4, t.shape, generator=self.generator(t.device), device=t.device).to(t)

    def generator(self, device: torch.device) -> torch.Generator:
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(20)
        return self.generators[device]

    def moved(self) -> list[Tensor]:
        """Another point: unit noise added to each finite element."""
        return [
            torch.where(t.isfinite(), t + self.noise(t), t) if i in self.floating else t
            for i, t in enumerate(self.tensors)
        ]

    def ones(self) -> Any:
        return unflatten(
            [torch.ones_like(t) if i in self.floating else t for i, t in enumerate(self.tensors)],
            self.skeleton,
        )

    def affine_in_each(self) -> bool:
        """f(0.3 a + 0.7 b) = 0.3 f(a) + 0.7 f(b) in each floating input, the others held."""
        other = self.moved()
        for k in self.floating:
            a = self.at(lambda i, t: t)
            b = self.at(lambda i, t, k=k: other[i] if i == k else t)  # type: ignore[misc]
            m = self.at(lambda i, t, k=k: _mix(t, other[i]) if i == k else t)  # type: ignore[misc]
            if a is None or b is None or m is None:
                return False
            if not _alike_in_shape(a, b, m):
                return False
            if not all(_close(z, 0.3 * x + 0.7 * y) for x, y, z in zip(a, b, m, strict=True)):
                return False
        return bool(self.floating)

    def affine_near_zero(self) -> bool:
        """f(2 s x) - f(0) = 2 (f(s x) - f(0)) with s = `SMALL`, all floating inputs together."""
        zero = self.at(lambda i, t: torch.zeros_like(t))
        one = self.at(lambda i, t: SMALL * t)
        two = self.at(lambda i, t: 2 * SMALL * t)
        if zero is None or one is None or two is None or not self.floating:
            return False
        if not _alike_in_shape(zero, one, two):
            return False
        return all(_close(t - z, 2 * (o - z)) for z, o, t in zip(zero, one, two, strict=True))

    def invariant(self) -> bool:
        """True if scaling by 4 or shifting by 1 leaves the outputs, while other inputs change them."""
        if not self.floating:
            return False
        first = self.floating[0]
        base, other = self.at(lambda i, t: t), self.moved()
        changed = self.at(lambda i, t: other[i])
        if (
            base is None
            or changed is None
            or len(base) != len(changed)
            or all(_close(a, b, 1e-2) for a, b in zip(base, changed, strict=True))
        ):
            return False
        for f in (lambda t: 4 * t, lambda t: t + 1):
            same = self.at(lambda i, t, f=f: f(t) if i == first else t)  # type: ignore[misc]
            if same is None or len(same) != len(base):
                continue
            if all(_close(a, b, 1e-3) for a, b in zip(base, same, strict=True)):
                return True
        return False

    def discrete(self, tensors: list[Tensor]) -> list[bool]:
        """Integer and bool outputs, and floating ones that small changes leave alone while large ones do
        not."""
        found = [not (t.is_floating_point() or t.is_complex()) for t in tensors]
        near = self.at(lambda i, t: t * (1 + 1e-6 * self.noise(t).clamp(-1, 1)))
        other = self.moved()
        far = self.at(lambda i, t: other[i])
        base = self.at(lambda i, t: t)
        if near is None or far is None or base is None or not len(base) == len(near) == len(far):
            return found
        for k, (a, n, f) in enumerate(zip(base, near, far, strict=True)):
            if a.shape != n.shape or a.shape != f.shape or not a.numel():
                continue
            still = float((a == n).double().mean()) >= PIECEWISE_CONSTANT
            found[k] = found[k] or (still and bool((a != f).any()))
        return found

    def integers(self, trace: Trace) -> bool:
        """Integer inputs in [-3, 3] give integer outputs, and no traced operator rounds integers."""
        rounding = trace.names - ELEMENTARY - ADDING - CONTRACTIONS - EXACT
        if rounding or not self.floating:
            return False
        for _ in range(2):
            out = self.at(lambda i, t: self.whole(t))
            if out is None or not all(bool((t == t.round()).all()) for t in out):
                return False
        return True

    def zeros(self, tensors: list[Tensor]) -> list[Tensor]:
        """Elements that are zero at this point and at another one."""
        other = self.moved()
        base, far = self.at(lambda i, t: t), self.at(lambda i, t: other[i])
        if base is None or far is None or not _alike_in_shape(base, far):
            return [torch.zeros(t.shape, dtype=torch.bool, device=t.device) for t in tensors]
        return [(a == 0) & (b == 0) for a, b in zip(base, far, strict=True)]


def _alike_in_shape(*runs: list[Tensor]) -> bool:
    """Whether all runs gave as many tensors of the same shapes, which values of the inputs may decide."""
    shapes = [[t.shape for t in run] for run in runs]
    return all(s == shapes[0] for s in shapes)


def _mix(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a.isfinite(), 0.3 * a + 0.7 * b, a)


def _close(a: Tensor, b: Tensor, agreement: float = AGREEMENT) -> bool:
    """Equal up to `agreement` of the largest finite magnitude, with equal non-finites."""
    if a.shape != b.shape or not a.numel():
        return a.shape == b.shape
    both = a.isfinite()
    differ = (both != b.isfinite()).any().double()
    scale = torch.where(both, torch.maximum(a.abs(), b.abs()), 0.0).max().double()
    apart = torch.where(both, (a - b).abs(), 0.0).max().double()
    elsewhere, largest, error = torch.stack([differ, scale, apart]).tolist()
    return not elsewhere and bool(error <= agreement * largest)
