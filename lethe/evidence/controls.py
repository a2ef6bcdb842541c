"""The positive control: six kernels of our own that every gate must pass.

A battery that rejects everything would look strict. So six kernels whose oracles, gradients and tests are
known, `lethe.kernels.mamba3`, go through the same audit as any corpus (``lethe audit --corpus controls``).
CMP-02, CMP-03 and RES-02 must *pass*: not applicable is no answer here.

* Where: ``data/corpus/controls``: ``problems/C1.py`` .. ``C6.py`` are plain token loops, ``kernels/`` call
  the operators. Sizes: three chunks of which the last is cut short, channels beyond one tile.
* The backward kernels C2, C3 and C6 return every gradient beside the output, so that each gate judges the
  backward kernel's values too; CMP-02 then takes the output's own gradients.
* A candidate's text ends with the digest of the kernels' sources, so that its sha256 changes with them.
* Licence: MIT. Left out: nothing. Row id: C1 .. C6.

The record of a full run on a CPU, about an hour and a half of processor time in Triton's interpreter::

    lethe audit --corpus controls --device cpu --patience 20 --workers 2 --out FOLDER
    python -m lethe.evidence.controls FOLDER/controls.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe import provenance
from lethe.audit.corpora import CorpusError, ListedCorpus, Row
from lethe.audit.lines import Line, compact, verdict_of
from lethe.audit.run import merge
from lethe.audit.textio import source_of
from lethe.evidence.specimens import Kind, specimen
from lethe.verifier import catalog
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.verdict import GateStatus

if TYPE_CHECKING:
    import pandas as pd

CORPUS = "controls"
FOLDER = Path("data/corpus/controls")
NAMES = {
    "C1": "forward_chunked_scan",
    "C2": "backward_selective_scan",
    "C3": "mimo_backward",
    "C4": "complex_scan_rope",
    "C5": "fused_block_forward",
    "C6": "fused_block_backward",
}

SOURCES = dict.fromkeys(NAMES, "lethe/kernels/mamba3/scan.py") | dict.fromkeys(
    ("C3", "C4"), "lethe/kernels/mamba3/head.py"
)
"""The operator of each kernel; everything that it launches is found through its imports."""

MUST_PASS = ("CMP-02", "CMP-03", "RES-02")
"""Gates that the published record left undecided for these kernels; here each must pass."""


def load(path: str | Path | None = None) -> ListedCorpus:
    """The six rows. Raises CorpusError where a file is missing."""
    folder = Path(path) if path is not None else provenance.ROOT / FOLDER
    return ListedCorpus(CORPUS, [row(folder, n, NAMES[n], SOURCES[n], CORPUS) for n in NAMES])


def row(folder: Path, name: str, operator: str, source: str, corpus: str) -> Row:
    """The control `name` of a folder; `source` is the operator's own file or folder. Raises CorpusError."""
    problem, kernel = f"problems/{name}.py", f"kernels/{name}.py"
    for file in (folder / problem, folder / kernel, provenance.ROOT / source):
        if not file.exists():
            raise CorpusError(f"corpus {corpus}: {file} is missing")
    digest = provenance.digest([source])
    text = source_of(folder / kernel, corpus) + f"\n# sha256 of the operator's sources: {digest}\n"
    return specimen(
        name,
        Kind.HONEST,
        Problem(name, source_of(folder / problem, corpus), path=problem),
        # The text imports no triton: the operators that it calls do.
        Candidate(name, text, language="triton", path=kernel),
        corpus=corpus,
        family="scan",
        language="triton",
        operator=operator,
    )


def gates(lines: list[Line]) -> pd.DataFrame:
    """One row a control and gate: kernel, gate, status, reason, cases, and what was measured, as text."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for line in lines:
        for result in verdict_of(line).gates:
            measured = ", ".join(f"{k} {v:.3g}" for k, v in sorted(result.measured.items()))
            rows.append(
                {
                    "kernel": line["id"], "gate": result.gate, "status": str(result.status),
                    "reason": str(result.reason or ""), "measured": measured,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=["kernel", "gate", "status", "reason", "measured"])


def shortfalls(lines: list[Line], names: Iterable[str] = tuple(NAMES)) -> list[str]:
    """What keeps the control from being positive, in sentences; empty when it is.

    No gate may fail, the gates of `MUST_PASS` must pass, each of `names` must be there and be decided.
    """
    found = [f"{name} was not judged" for name in names if name not in {line["id"] for line in lines}]
    for line in lines:
        verdict, name = verdict_of(line), line["id"]
        if verdict.violated:
            broken = [g.gate for g in verdict.gates if g.status is GateStatus.FAIL]
            found.append(f"{name} is rejected by {', '.join(broken) or verdict.status}")
        status = {g.gate: g for g in verdict.gates}
        for gate in MUST_PASS:
            if gate not in status:
                found.append(f"{name}: {gate} was not run")
            elif status[gate].status is not GateStatus.PASS:
                found.append(f"{name}: {gate} is {status[gate].status} ({status[gate].detail})")
    return found


def passed(lines: list[Line]) -> int:
    """Controls that no gate rejects and that `MUST_PASS` gates pass."""
    short = shortfalls(lines)
    return sum(1 for line in lines if not any(s.startswith(line["id"]) for s in short))


def gate_table(lines: list[Line]) -> pd.DataFrame:
    """Kernels by gates in catalogue order; a cell is the status."""
    table = gates(lines).pivot(index="gate", columns="kernel", values="status")
    return table.reindex([g for g in catalog.IDS if g in table.index])


def record(lines: Path, measured: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write ``cpu/controls_audit.json`` from an audit of this corpus on a CPU.

    Raises ValueError where a control was not judged on all gates; how it ends is the result, whatever it is.
    """
    judged = [compact(line) for line in merge([lines])]
    ran = {line["id"]: {result.gate for result in verdict_of(line).gates} for line in judged}
    for name in NAMES:
        if missing := set(catalog.IDS) - ran.get(name, set()):
            raise ValueError(f"{name} was not judged on {', '.join(sorted(missing))}")
    path = measured / "cpu" / "controls_audit.json"
    provenance.record(
        path,
        experiment="controls_audit",
        samples=judged,
        parameters={"device": "cpu"},
        script="lethe/evidence/controls.py",
        sources=["lethe/kernels/mamba3", FOLDER],
        on=provenance.device("cpu"),
        command="lethe audit --corpus controls --device cpu --patience 20",
    )
    return path


if __name__ == "__main__":
    try:
        print(record(Path(sys.argv[1])))
    except (ValueError, OSError) as error:
        sys.exit(f"controls: {error}")
