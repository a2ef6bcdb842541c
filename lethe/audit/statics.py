"""What can be said about a row without running it, so that no device is asked: that it holds no kernel.

Such a row gets the status that the judge would have to give it. Everything else is the judge's business.
"""

from __future__ import annotations

from importlib.util import find_spec

from lethe.audit.corpora import Row
from lethe.verifier.verdict import Status, Verdict

NO_KERNEL = frozenset({"torch_only"})
"""Languages of rows whose program holds no kernel of its own, as their corpus says."""
CUPY = "cuda_cupy"
"""Language of rows that compile their kernel with CuPy; without it they are torch programs, or none."""


def decided(row: Row) -> Verdict | None:
    """The verdict about a row that needs no judge, else None."""
    if row.language in NO_KERNEL:
        return _verdict(row, Status.NO_CUSTOM_KERNEL, "the program builds and loads no kernel of its own")
    if row.language == CUPY and find_spec("cupy") is None:
        why = "its kernel is compiled by CuPy, which is not installed where the audit ran"
        return _verdict(row, Status.NOT_AUDITABLE, why)
    return None


def _verdict(row: Row, status: Status, message: str) -> Verdict:
    return Verdict(
        problem=row.problem.name,
        candidate=row.candidate.name,
        profile="none",
        status=status,
        message=message,
        problem_sha256=row.problem.sha256,
        candidate_sha256=row.candidate.sha256,
    )
