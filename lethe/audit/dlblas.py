"""DLBlas OpenEvolve: Triton kernels evolved for KernelBench problems.

* Source: DeepLink-org/DLBlas, branch add-kernelbench-triton, commit 8cfbfcac,
  the programs of OpenEvolve runs under ``dlblas/kernels/output`` (``lethe fetch dlblas``).
* Licence: BSD-3-Clause (DeepLink 2025). KernelBench references: MIT.
* Accepted: the run's own evaluation stage is ``success`` (2,443 rows), five allclose trials after
  KernelBench's manner on an L20Y; ``wrong_answer`` (3,590) and ``compile_error`` (327) are kept as not
  accepted.
* References: KernelBench at 48642c5c, from a checkout given as `problems`.
* Left out of the 8,177 programs of the runs' final databases, which leaves 6,360: 1,144 that held no valid
  Triton code, 14 that the infrastructure failed, the 248 seeds (the reference itself), 108 that define no
  ``ModelNew`` (94 of them ``success``), and 303 whose text occurs before (231 ``success``, 72
  ``wrong_answer``). The programs in checkpoints are copies of these. Every row has a ``@triton.jit``
  function; whether it is launched, the verifier counts.
* `extra["shapes_match"]` tells the 85 rows whose evolved program was written for other sizes than its
  problem's (None: unknown, also where the rows were fetched anew).
* Row id: ``dlblas-oe-L<level>_<problem>-<first 8 hex digits of the program's own id>``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lethe.audit.corpora import ListedCorpus, Row
from lethe.audit.kernelbench import KernelBench
from lethe.audit.textio import records, unix
from lethe.verifier.problem import Candidate, Problem

NEEDED = ("id", "op_class", "level", "problem", "candidate_source", "language", "accepted", "licence")


def load(path: str | Path, problems: str | Path, any_revision: bool = False) -> ListedCorpus:
    """Rows of ``dlblas_openevolve.jsonl[.gz]`` with references from a KernelBench checkout.

    Raises CorpusError where either is missing or the checkout is another revision.
    """
    bench = KernelBench(problems, any_revision=any_revision)
    return ListedCorpus("dlblas", _rows(Path(path), bench))


def _rows(path: Path, bench: KernelBench) -> Iterator[Row]:
    references: dict[str, Problem] = {}
    for r in records(path, "dlblas", NEEDED):
        if r["problem"] not in references:
            references[r["problem"]] = bench.problem(r["problem"])
        yield Row(
            id=r["id"],
            corpus="dlblas",
            problem=references[r["problem"]],
            candidate=Candidate(name=r["id"], source=unix(r["candidate_source"]), language="triton"),
            family=r["op_class"],
            language=r["language"],
            accepted=bool(r["accepted"]),
            licence=r["licence"],
            extra={
                "level": r["level"],
                "stage": r.get("source_stage"),
                "speedup": r.get("source_speedup"),
                "generation": r.get("generation"),
                "shapes_match": r.get("candidate_shapes_match_problem"),
                "source_path": r.get("source_path"),
            },
        )
