"""Everything about one problem that does not depend on who is judged.

The docket owns the reference: its sizes, its draws, its float64 oracle and bands.
All candidates of one problem share it, so that judging another one costs little.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lethe.verifier import (
    fairness,
    inputs,
    layout,
    memory,
    oracle,
    profiling,
    shapes,
    shrink,
    tolerance,
    weights,
)
from lethe.verifier.cache import TensorCache
from lethe.verifier.limits import time_limit
from lethe.verifier.problem import Instance, Problem, ProblemError, instantiate, sizes_as_written
from lethe.verifier.settings import Settings
from lethe.verifier.sheet import SkipCase
from lethe.verifier.structure import Skeleton, bytes_of, flatten, map_tensors, paths
from lethe.verifier.verdict import Reason

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.profiling import OperatorProfile
    from lethe.verifier.tolerance import Band

Sizes = dict[str, int]

KEPT_BYTES = 1 << 30
"""Drawn inputs, and separately truths, that a docket keeps: most draws at a budget's sizes."""
BYTES_OF_A_TRUTH = 3
"""A truth in multiples of its float64 outputs: those, their bands, and the working-precision outputs."""
HIGHEST_POWER = 4
"""Products of more fine inputs leave float32's normal numbers."""
QUICK_SHAPES = 8
"""Sizes tried in quick mode; the most telling come first."""


@dataclass(frozen=True)
class Case:
    """One drawn set of inputs at one set of sizes."""

    id: str
    kind: str
    seed: int
    sizes: Sizes
    inputs: list[Any]
    """Nested list of tensors (float32 where floating) and scalars, on the docket's device."""
    varied: bool = False
    """Whether weights that the constructor sets to one value (ones, zeros) are replaced by others."""


@dataclass
class Truth:
    """What the reference says about one case."""

    skeleton: Skeleton
    names: list[str]
    """Readable path of each output tensor."""
    expected: list[Tensor]
    """float64 outputs (discrete outputs keep their dtype)."""
    working: list[Tensor]
    """The reference's own working-precision outputs."""
    make_bands: Callable[[str, int], list[Band]]
    by_gate: bool = False
    """Whether the gates' bands differ, as in the ``paper`` profile; the derived ones depend on the case."""
    _bands: dict[tuple[str, int], list[Band]] = field(default_factory=dict, repr=False)
    _memo: dict[str, Any] = field(default_factory=dict, repr=False)

    def bands(self, gate: str, salt: int = 0) -> list[Band]:
        """One band per output; computed on first use, since the tolerance-free gates need none.

        Another `salt` takes other perturbations, for a borderline breach (fairness rule 22).
        """
        key = (gate if self.by_gate else "", salt)
        if key not in self._bands:
            self._bands[key] = self.make_bands(gate, salt)
        return self._bands[key]

    def exact_bands(self) -> list[Band]:
        """Bands without width, where nothing rounds."""
        pairs = zip(self.expected, self.working, strict=True)
        made: list[Band] = self.remembered("exact", lambda: [tolerance.exact_band(e, w) for e, w in pairs])
        return made

    def remembered(self, key: str, find: Callable[[], Any]) -> Any:
        """What `find` returned when `key` was first asked for; no candidate may have a part in it."""
        if key not in self._memo:
            self._memo[key] = find()
        return self._memo[key]


class Docket:
    """The reference side of a trial. Raises ProblemError if the reference cannot be used.

    With `as_written` the problem keeps its own sizes, and ProblemError says so where they are too large.
    """

    def __init__(self, problem: Problem, settings: Settings, *, as_written: bool = False) -> None:
        self.problem = problem
        self.settings = settings
        budget = settings.budget
        with time_limit(budget.prepare_seconds, f"{problem.name}: the reference"):
            if as_written:
                shrink.require_bytes(problem, budget.written_bytes)
                self.base: Sizes = {}
            else:
                self.base = dict(self._fitting().sizes)
        self.written: Sizes = sizes_as_written(problem)
        self._instances: OrderedDict[tuple[Any, ...], Instance] = OrderedDict()
        self._cases: TensorCache[tuple[Any, ...], Case | str] = TensorCache(KEPT_BYTES)
        self._truths: TensorCache[tuple[Any, ...], tuple[list[Any], Truth]] = TensorCache(KEPT_BYTES)
        self._handed: TensorCache[tuple[int, str], tuple[list[Any], Any]] = TensorCache(KEPT_BYTES)
        self._memo: dict[str, Any] = {}
        normal = self.case("normal", settings.seed)
        first, _ = flatten(oracle.run_working(self.instance(), normal.inputs))
        if not first:
            raise ProblemError(
                f"{problem.name}: the reference returns no tensor, so there is nothing to compare"
            )
        self.vacuous = fairness.is_vacuous(first, self._on_other_inputs(first))

    def _fitting(self) -> shrink.Shrunk:
        budget = self.settings.budget
        return shrink.shrink(
            self.problem,
            budget.reference_seconds,
            budget.reference_bytes,
            max_cost=budget.reference_cost if self.settings.executor == "interpreter" else None,
            device=self.settings.device,
        )

    def instance(self, sizes: Sizes | None = None, varied: bool = False) -> Instance:
        """The reference built at `sizes` (default: the base sizes), see `Case.varied`."""
        sizes = self.base if sizes is None else sizes
        key = (_key(sizes), varied)
        if key not in self._instances:
            self._instances[key] = instantiate(
                self.problem, sizes, seed=self.settings.seed, device=self.settings.device
            )
            if varied:
                weights.vary_uniform(self._instances[key].module, self.settings.seed)
            trim(self._instances, 12)
        self._instances.move_to_end(key)
        return self._instances[key]

    def case(self, kind: str, seed: int, which: int | None = None, sizes: Sizes | None = None) -> Case:
        """Draw inputs of a kind; raises SkipCase with the reason when the domain does not allow it."""
        sizes = self.base if sizes is None else sizes
        key = (kind, seed, which, _key(sizes))
        if key not in self._cases:
            name = kind if which is None else f"{kind}:input{which}"
            try:
                drawn = inputs.draw(self.instance(sizes), kind, seed, which)
                self._cases.put(key, Case(name, kind, seed, sizes, drawn), drawn)
            except inputs.IllegalDraw as e:
                self._cases.put(key, str(e), None)
        return self._drawn(key)

    def derived(self, base: Case, name: str, kind: str, make: Callable[[], list[Any]]) -> Case:
        """A case whose inputs `make` derives from those of `base`, made once for all candidates.

        `make` raises IllegalDraw where the domain does not allow it; then this raises SkipCase.
        """
        key = (name, kind, base.seed, _key(base.sizes))
        if key not in self._cases:
            try:
                made = make()
                self._cases.put(key, Case(name, kind, base.seed, base.sizes, made), made)
            except inputs.IllegalDraw as e:
                self._cases.put(key, str(e), None)
        return self._drawn(key)

    def _drawn(self, key: tuple[Any, ...]) -> Case:
        found = self._cases[key]
        if isinstance(found, str):
            raise SkipCase(found)
        return found

    def on_host(self, case: Case, dtype: str = "float32") -> Any:
        """The inputs of a case in `dtype`, in the memory from which they are handed to suspects (cached), and
        laid out there as they are on the device."""
        if self.settings.device == "cpu":
            return cast_floating(case.inputs, dtype)
        key = (id(case.inputs), dtype)
        if key not in self._handed:
            handed = map_tensors(cast_floating(case.inputs, dtype), lambda t: layout.copied(t, device="cpu"))
            self._handed.put(key, (case.inputs, handed), handed)
        return self._handed[key][1]

    def truth(self, case: Case, dtype: str = "float32") -> Truth:
        """Oracle, working-precision outputs and bands of a case (cached)."""
        key = (id(case.inputs), dtype)
        if key not in self._truths:
            # The inputs are kept beside the truth, so that no other list can take their identity.
            truth = self._evaluate(case, dtype)
            self._truths.put(key, (case.inputs, truth), BYTES_OF_A_TRUTH * [truth.expected])
        return self._truths[key][1]

    def _evaluate(self, case: Case, dtype: str) -> Truth:
        instance = self.instance(case.sizes, case.varied)
        drawn = cast_floating(case.inputs, dtype)
        working, skeleton = flatten(oracle.run_working(instance, drawn, dtype=dtype))
        expected, _ = flatten(oracle.run_float64(instance, drawn, dtype=dtype))
        if [t.shape for t in working] != [t.shape for t in expected]:
            raise oracle.ReferenceFailed(f"The reference returns other shapes in float64 than in {dtype}.")

        def bands(gate: str, salt: int) -> list[Band]:
            return tolerance.bands(
                instance,
                drawn,
                expected,
                working,
                kind=case.kind,
                dtype=dtype,
                profile=self.settings.profile,
                operator=self.operator,
                gate=gate,
                seed=2 * case.seed + salt,
            )

        by_gate = self.settings.profile == "paper"
        return Truth(skeleton, paths(skeleton), expected, working, bands, by_gate)

    @property
    def operator(self) -> OperatorProfile:
        """What kind of operator the reference is, found by tracing it (cached)."""
        return self.operator_at(self.case("normal", self.settings.seed))

    def operator_at(self, case: Case) -> OperatorProfile:
        """The same at the sizes of `case`, whose reductions may be longer."""
        key = f"operator:{_key(case.sizes)}"
        if key not in self._memo:
            with oracle.reference_errors("profiled"):
                self._memo[key] = profiling.profile_operator(self.instance(case.sizes), case.inputs)
        return self._memo[key]

    def remembered(self, key: str, find: Callable[[], Any]) -> Any:
        """What `find` returned when `key` was first asked for; it must not depend on any candidate."""
        if key not in self._memo:
            self._memo[key] = find()
        return self._memo[key]

    def homogeneous(self, fine: Case) -> bool:
        """Whether a common factor of all floating inputs is one of the results, to the same power in each."""
        key = f"homogeneous:{_key(fine.sizes)}"

        def find() -> bool:
            large = map_tensors(fine.inputs, lambda t: t / inputs.FINE if t.is_floating_point() else t)
            whole, _ = flatten(oracle.run_float64(self.instance(fine.sizes, fine.varied), large))
            part = self.truth(fine).expected
            factors = [inputs.FINE**power for power in range(1, HIGHEST_POWER + 1)]
            return any(
                all(bool((p == f * w).all()) for p, w in zip(part, whole, strict=True)) for f in factors
            )

        return bool(self.remembered(key, find))

    @property
    def undecidable(self) -> tuple[Reason, str] | None:
        """Why no gate applies to this problem, if none does (fairness rules 3 and 25)."""
        if self.vacuous:
            return Reason.VACUOUS, "the reference's output does not depend on its inputs"
        spec = self.problem.spec
        if fairness.is_stochastic(self.operator, declared=spec is not None and spec.stochastic):
            return Reason.STOCHASTIC, "the reference draws random numbers"
        return None

    @property
    def shape_cases(self) -> list[shapes.ShapeCase]:
        """Other sizes at which every candidate of this problem is tried (cached)."""
        if "shapes" not in self._memo:
            model = shapes.size_model(self.problem, self.base)
            limit = QUICK_SHAPES if self.settings.quick else shapes.MAX_CASES
            self._memo["shapes"] = shapes.shape_cases(
                self.problem,
                model,
                self.base,
                budget=self.settings.budget.case_elements,
                limit=limit,
                device=self.settings.device,
                many=self.settings.executor != "interpreter",
            )
        return self._memo["shapes"]

    @property
    def floating(self) -> list[int]:
        """Positions, among the input tensors, of those with a floating dtype."""
        tensors, _ = flatten(self.case("normal", self.settings.seed).inputs)
        return [i for i, t in enumerate(tensors) if t.is_floating_point()]

    @property
    def varies(self) -> bool:
        """True if the reference does not return the same bytes twice (fairness rules 2 and 3)."""
        if "varies" not in self._memo:
            case = self.case("normal", self.settings.seed)
            runs = [flatten(oracle.run_working(self.instance(), case.inputs))[0] for _ in range(2)]
            self._memo["varies"] = fairness.reference_varies(runs)
        return self._memo["varies"]

    @property
    def backends(self) -> dict[str, Any]:
        """The settings that stood at the end of the reference's own run (fairness rule 13)."""
        if "backends" not in self._memo:
            case = self.case("normal", self.settings.seed)
            self._memo["backends"] = oracle.backends_after(self.instance(), case.inputs)
        return self._memo["backends"]

    @property
    def reference_memory(self) -> tuple[set[int], dict[int, set[str]]]:
        """Inputs that the reference writes, and what each of its outputs shares memory with."""
        if "memory" not in self._memo:
            case = self.case("normal", self.settings.seed)
            self._memo["memory"] = memory.observe(self.instance(), case.inputs)
        return self._memo["memory"]

    @property
    def keeps_state(self) -> bool:
        """True if the reference remembers its calls, so that repeated calls prove nothing."""
        if "state" not in self._memo:
            case = self.case("normal", self.settings.seed)
            self._memo["state"] = memory.keeps_state(self.instance(), case.inputs)
        return self._memo["state"]

    def _on_other_inputs(self, first: list[Tensor]) -> list[Tensor] | None:
        """The reference's outputs on another draw, for fairness rule 25; None where they cannot be compared
        with the first."""
        try:
            case = self.case("normal", self.settings.seed + 1)
        except SkipCase:
            return None
        other, _ = flatten(oracle.run_working(self.instance(), case.inputs))
        alike = len(other) == len(first) and all(
            a.shape == b.shape for a, b in zip(first, other, strict=True)
        )
        return other if alike else None


def cast_floating(value: Any, dtype: str) -> Any:
    """Cast the floating tensors of a nested value to `dtype`, in their layout; others are left alone."""
    import torch

    target = getattr(torch, dtype)

    def cast(t: Tensor) -> Tensor:
        return layout.copied(t, dtype=target) if t.is_floating_point() and t.dtype is not target else t

    return map_tensors(value, cast)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Bit-for-bit equality; all NaN are alike (fairness rule 5)."""
    import torch

    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    return torch.equal(*(bytes_of(fairness.ignore_nan_payload(t)) for t in (a, b)))


def _key(sizes: Sizes) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(sizes.items()))


def trim(cache: OrderedDict[Any, Any], limit: int) -> None:
    while len(cache) > limit:
        cache.popitem(last=False)
