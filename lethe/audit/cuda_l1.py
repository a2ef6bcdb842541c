"""CUDA-L1: CUDA and torch programs found by reinforcement learning for KernelBench problems.

* Source: deepreinforce-ai/CUDA-L1, commit 51e8356b, ``optimized_cuda_code/<gpu>.json``
  (one set per GPU: h100, a100, h20, l40, 3090; 1,144 rows in all).
* Licence: MIT (the repository's).
* Accepted: every row ships with a speedup score; its README states the success rate.
  There is no per-row verdict to read, so `accepted` is the shipping itself.
* References: in the file beside each program, identical to KernelBench at 48642c5c
  (checked again where a checkout is given as `problems`).
* Left out: of the 1,250 records 106 have neither program nor score and are not counted; of the 1,144 rows,
  80 have a score but the program ``None``, so that there is nothing to judge.
* The rest are 380 programs that build an extension (``cuda_inline``), 17 that compile a kernel with CuPy
  (``cuda_cupy``; the file calls them ``torch_only`` like the rest, their text says otherwise) and 667 torch
  programs without a kernel of their own (``torch_only``), which get a status of their own, no failure:

      ====  ====  ===========  =========  ==========  =======
      set   rows  cuda_inline  cuda_cupy  torch_only  no text
      ====  ====  ===========  =========  ==========  =======
      h100   227           78          3         129       17
      a100   241           79          5         141       16
      h20    233           82          2         135       14
      l40    230           75          4         134       17
      3090   213           66          3         128       16
      ====  ====  ===========  =========  ==========  =======

* Row id: ``cudal1-<gpu>-L<level>_<problem>``.
"""

from __future__ import annotations

import re
from pathlib import Path

from lethe.audit.corpora import CorpusError, ListedCorpus, Row
from lethe.audit.kernelbench import KernelBench
from lethe.audit.statics import CUPY
from lethe.audit.textio import records, unix
from lethe.verifier.problem import Candidate, Problem

NEEDED = ("id", "op_name", "op_class", "level", "reference_source", "candidate_source", "language", "licence")
LANGUAGES = {"cuda_inline": "cuda", "torch_only": "python", CUPY: "python"}
WITH_CUPY = re.compile(r"\bRaw(Kernel|Module)\(")
"""In a program's text: CuPy compiles a kernel of its own."""


def load(
    path: str | Path, gpu: str | None = None, problems: str | Path | None = None, any_revision: bool = False
) -> ListedCorpus:
    """Rows of ``cuda_l1.jsonl[.gz]``; `gpu` keeps one set (``"h100"``) instead of all five.

    Raises CorpusError where the file is missing, holds no set of that name, or has a
    reference that is not the problem of the checkout.
    """
    bench = KernelBench(problems, any_revision=any_revision) if problems is not None else None
    rows: list[Row] = []
    empty = 0
    sets: set[str] = set()
    for r in records(path, "cuda_l1", NEEDED):
        sets.add(str(r.get("gpu")))
        if gpu is not None and r.get("gpu") != gpu:
            continue
        if r["candidate_source"].strip() in ("", "None"):
            empty += 1
            continue
        language = r["language"]
        if language == "torch_only" and WITH_CUPY.search(r["candidate_source"]):
            language = CUPY
        name = f"level{r['level']}/{r['op_name']}"
        reference = unix(r["reference_source"])
        if bench is not None and bench.problem(f"{name}.py").source.strip() != reference.strip():
            raise CorpusError(f"corpus cuda_l1: the reference of {r['id']} is not {name} of {problems}")
        rows.append(
            Row(
                id=r["id"],
                corpus="cuda_l1",
                problem=Problem(name=name, source=reference, path=f"{name}.py"),
                candidate=Candidate(
                    name=r["id"],
                    source=unix(r["candidate_source"]),
                    language=LANGUAGES.get(language, language),
                ),
                family=r["op_class"],
                language=language,
                accepted=bool(r.get("accepted", True)),
                licence=r["licence"],
                extra={
                    "level": r["level"],
                    "gpu": r.get("gpu"),
                    "speedup": r.get("source_speedup"),
                    "source_path": r.get("source_path"),
                },
            )
        )
    if gpu is not None and gpu not in sets:
        raise CorpusError(f"corpus cuda_l1 has no set for gpu {gpu!r}; it has {', '.join(sorted(sets))}")
    notes = [f"{empty} rows whose program is empty or the text None are left out"] if empty else []
    return ListedCorpus("cuda_l1", rows, notes)
