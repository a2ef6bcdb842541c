"""pytest plugin: a kernel's contract as one line of your own test suite.

    def test_softmax(lethe_verify):
        lethe_verify("kernels/softmax.py", "references/softmax.py")

The fixture judges a candidate (path, source text, or a module-level function or
``nn.Module`` class) against a reference (path or text of a KernelBench-format file, an
`OpSpec` or a `Problem`) and fails the test if a contract is violated or nothing could be
decided. One warm judge serves the session. Nothing of torch is imported before a test
uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lethe.verifier.judge import Judge
    from lethe.verifier.problem import Candidate, Problem
    from lethe.verifier.verdict import Verdict


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lethe", "contracts of GPU kernels")
    group.addoption(
        "--lethe-profile",
        default="derived",
        choices=("derived", "paper"),
        help="bounds of the lethe_verify fixture (default: derived)",
    )
    group.addoption(
        "--lethe-device",
        default="auto",
        choices=("auto", "cpu", "cuda"),
        help="where lethe_verify runs candidates: auto (default), cpu (Triton's interpreter) or cuda",
    )


class _Bench:
    """The session's warm judges, one for each set of options."""

    def __init__(self) -> None:
        self._judges: dict[tuple[Any, ...], Judge] = {}

    def judge(self, **options: Any) -> Judge:
        from lethe.verifier.judge import Judge

        key = tuple(sorted(options.items()))
        if key not in self._judges:
            self._judges[key] = Judge(**options)
        return self._judges[key]

    def close(self) -> None:
        for judge in self._judges.values():
            judge.close()
        self._judges.clear()


class LetheVerify:
    """What the fixture hands to a test; call it."""

    def __init__(self, bench: _Bench, folder: Path, profile: str, device: str) -> None:
        self._bench = bench
        self._folder = folder
        self._profile = profile
        self._device = device

    def __call__(
        self,
        candidate: Any,
        reference: Any,
        *,
        entry: str = "ModelNew",
        gates: Sequence[str] | None = None,
        seed: int = 0,
        profile: str | None = None,
        device: str | None = None,
        quick: bool = False,
    ) -> Verdict:
        """Judge `candidate` against `reference`; the test fails unless it keeps its contract.

        Args:
            candidate: path (from the working directory or the test's folder), source text, or a
                function or ``nn.Module`` class defined at module level.
            reference: path or text of a KernelBench-format reference, an `OpSpec` or a `Problem`.
            entry: name of the candidate's class or function, where it is a file.
            gates: ids to run, e.g. ``["EXC-01"]``; None runs all twelve.
            seed, quick: as for `lethe.verify`.
            profile, device: default to ``--lethe-profile`` and ``--lethe-device``.

        Returns:
            The verdict, for further assertions. Raises ValueError for an unknown gate, profile
            or device.
        """
        __tracebackhide__ = True
        from lethe.display import exit_code, report
        from lethe.verifier.problem import CandidateError, ProblemError

        unfit = ""
        try:
            problem = self._problem(reference)
            suspect = self._candidate(candidate, entry)
        except (ProblemError, CandidateError) as e:
            unfit = str(e)
        if unfit:  # told outside of the handler, or pytest tells it twice
            pytest.fail(f"could not be judged: {unfit}", pytrace=False)
        judge = self._bench.judge(
            profile=profile or self._profile,
            device=device or self._device,
            seed=seed,
            gates=tuple(gates) if gates is not None else None,
            quick=quick,
        )
        verdict = judge.verify(problem, suspect)
        if exit_code(verdict):
            pytest.fail(report(verdict), pytrace=False)
        return verdict

    def _problem(self, reference: Any) -> Problem:
        from lethe.verifier.problem import OpSpec, Problem, load_problem, problem_from_spec

        if isinstance(reference, Problem):
            return reference
        if isinstance(reference, OpSpec):
            return problem_from_spec(reference)
        return load_problem(self._origin(reference))

    def _candidate(self, candidate: Any, entry: str) -> Candidate:
        from lethe.verifier.problem import Candidate, candidate_from_callable, load_candidate

        if isinstance(candidate, Candidate):
            return candidate
        if isinstance(candidate, str | Path):
            return load_candidate(self._origin(candidate), entry)
        return candidate_from_callable(candidate)

    def _origin(self, given: str | Path) -> str | Path:
        """Source text as it is; a path from the working directory, else from the test's folder."""
        from lethe.verifier.formats import is_path

        if not is_path(given):
            return given
        beside = self._folder / given
        return beside if not Path(given).exists() and beside.exists() else Path(given)


@pytest.fixture(scope="session")
def _lethe_bench() -> Iterator[_Bench]:
    bench = _Bench()
    yield bench
    bench.close()


@pytest.fixture
def lethe_verify(request: pytest.FixtureRequest, _lethe_bench: _Bench) -> LetheVerify:
    """``lethe_verify(candidate, reference, ...)`` fails the test unless the kernel keeps its contract."""
    return LetheVerify(
        _lethe_bench,
        request.path.parent,
        request.config.getoption("--lethe-profile"),
        request.config.getoption("--lethe-device"),
    )
