"""The check by which kernels are usually accepted: KernelBench's five-trial allclose.

What it does (KernelBench at 48642c5c, ``run_and_check_correctness``): seed 42, draw five
trial seeds; both modules are built right after the same seed and stay in train mode;
for each trial the inputs are drawn from the trial's seed, the reference runs first, the
candidate second on the same inputs, and ``torch.allclose(rtol=1e-2, atol=1e-2)`` must
hold without ``equal_nan``. One shape, one distribution, no gradient. KernelBench's later tolerance for
float32 is 1e-4; one run of five trials answers for any number of tolerances (`Acceptance.check_at`).

Here the candidate runs in a suspect process instead of the judge's own, so it can
neither patch the comparison nor read the answer; and an operator with several
outputs is compared output by output, where KernelBench's code would raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from lethe.verifier.blame import counts_for_time
from lethe.verifier.problem import Candidate, Problem, ProblemError
from lethe.verifier.verdict import Status

if TYPE_CHECKING:
    from torch import Tensor

RTOL = 1e-2
ATOL = 1e-2
TRIALS = 5
SEED = 42
WARM_UP = 3
"""First calls that are not timed, as many as KernelBench's own timing leaves out (fairness rule 24)."""
WALL_SECONDS = 120.0
"""Per request; generous, because a first call compiles and the interpreter is slow."""


@dataclass(frozen=True)
class Check:
    """What the five-trial check found."""

    accepted: bool
    passed: int
    """Trials that agreed before the first that did not."""
    trials: int = TRIALS
    max_abs_error: float | None = None
    """Largest |difference| over all trials and finite elements; None if nothing was compared."""
    status: str = str(Status.JUDGED)
    message: str = ""
    seconds: float | None = None
    """Median time of one call inside the suspect, after `WARM_UP` others; None if none was timed."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Acceptance:
    """Runs the check; keeps one warm fork server. A context manager."""

    def __init__(self, device: str = "auto") -> None:
        self.device = device
        self._server: Any = None

    def __enter__(self) -> Acceptance:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def check(self, problem: Problem, candidate: Candidate) -> Check:
        """Five trials of `candidate` against `problem`; whatever it does is a Check, not an exception.

        Raises ProblemError if the reference itself cannot be used.
        """
        return self.check_at(problem, candidate, (RTOL,))[0]

    def check_at(self, problem: Problem, candidate: Candidate, tolerances: Sequence[float]) -> list[Check]:
        """The same five trials judged at several tolerances (rtol and atol alike), a Check for each.

        A check ends at its own first disagreement; the trials go on while any tolerance still agrees.
        Raises ProblemError if the reference itself cannot be used.
        """
        from lethe.verifier.custody import SuspectError
        from lethe.verifier.server import SuspectServer
        from lethe.verifier.settings import Budget, choose_executor

        if self._server is None:
            self._server = SuspectServer()
        executor = choose_executor(self.device, candidate.language)
        limits = Budget(wall_seconds=WALL_SECONDS).limits()
        try:
            suspect = self._server.spawn(candidate, executor=executor, limits=limits)
        except SuspectError as e:
            return [Check(False, 0, status=str(e.status), message=e.message) for _ in tolerances]
        levels = [_Level(t) for t in tolerances]
        try:
            end = self._trials(problem, suspect, "cuda" if executor == "cuda" else "cpu", levels)
        finally:
            suspect.close()
        return [level.check(end) for level in levels]

    def _trials(self, problem: Problem, suspect: Any, device: str, levels: list[_Level]) -> _End:
        """Run the trials, noting on each level what it found; returns how the run ended."""
        import torch

        from lethe.verifier.custody import SuspectError
        from lethe.verifier.problem import instantiate
        from lethe.verifier.structure import map_tensors

        instance = instantiate(problem, seed=SEED, device=device)
        instance.module.train()
        times: list[float] = []
        try:
            suspect.load()
            suspect.build(instance.init, SEED, train=True)
            for call, seed in enumerate(trial_seeds()):
                inputs = instance.draw(seed)
                with torch.no_grad():
                    try:
                        expected = instance.module(*inputs)
                    except Exception as e:
                        raise ProblemError(
                            f"{problem.name}: the reference raised {type(e).__name__}: {e}"
                        ) from e
                report = suspect.run(map_tensors(inputs, lambda t: t.cpu()))[0]
                if counts_for_time(call, WARM_UP):
                    times.append(report.elapsed)
                for level in levels:
                    level.note(expected, report.outputs)
                if all(level.complaint for level in levels):
                    break
        except SuspectError as e:
            return _End(times, str(e.status), e.message)
        return _End(times)


@dataclass
class _End:
    """How a run of trials ended: the timed calls, and the status and message of a suspect that failed."""

    times: list[float]
    status: str = str(Status.JUDGED)
    message: str = ""


@dataclass
class _Level:
    """What one tolerance found so far."""

    tolerance: float
    passed: int = 0
    worst: float | None = None
    complaint: str = ""

    def note(self, expected: Any, got: Any) -> None:
        """Compare a further trial, unless an earlier one disagreed."""
        if self.complaint:
            return
        error, self.complaint = compare(expected, got, self.tolerance, self.tolerance)
        self.worst = error if self.worst is None else self.worst if error is None else max(self.worst, error)
        self.passed += not self.complaint

    def check(self, end: _End) -> Check:
        failed = bool(self.complaint)
        return Check(
            accepted=not failed and end.status == str(Status.JUDGED),
            passed=self.passed,
            max_abs_error=self.worst,
            seconds=float(f"{median(end.times):.2g}") if end.times else None,
            status=str(Status.JUDGED) if failed else end.status,
            message=self.complaint or end.message,
        )


def trial_seeds(seed: int = SEED, trials: int = TRIALS) -> list[int]:
    """KernelBench's trial seeds: drawn from torch's generator right after seeding it."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator).item()) for _ in range(trials)]


def compare(expected: Any, got: Any, rtol: float = RTOL, atol: float = ATOL) -> tuple[float | None, str]:
    """Compare two nested outputs as the check does.

    Returns (largest finite |difference| or None, "" or what is wrong in one sentence).
    """
    import torch

    from lethe.verifier.structure import StructureError, flatten

    try:
        want, _ = flatten(expected)
        have, _ = flatten(got)
    except StructureError as e:
        return None, f"the output is not made of tensors: {e}"
    if len(want) != len(have):
        return None, f"{len(have)} output tensors, the reference returns {len(want)}"
    worst: float | None = None
    complaint = ""
    for i, (a, b) in enumerate(zip(want, have, strict=True)):
        a, b = a.detach().cpu(), b.detach().cpu()
        if a.shape != b.shape:
            return (
                worst,
                complaint or f"output {i} has shape {tuple(b.shape)}, the reference's is {tuple(a.shape)}",
            )
        if a.dtype != b.dtype:
            return worst, complaint or f"output {i} has dtype {b.dtype}, the reference's is {a.dtype}"
        error = _error(a, b)
        worst = error if worst is None else worst if error is None else max(worst, error)
        if not torch.allclose(b, a, rtol=rtol, atol=atol):
            shown = "not finite alike" if error is None else f"off by up to {error:.3g}"
            complaint = complaint or f"output {i} is {shown}, more than rtol={rtol:g}, atol={atol:g} allow"
    return worst, complaint


def _error(a: Tensor, b: Tensor) -> float | None:
    difference = (a.double() - b.double()).abs()
    difference = difference[difference.isfinite()]
    return float(difference.max()) if difference.numel() else None
