"""A positive control for the SSD engine: `lethe.kernels.ssd` behind the same twelve gates as any corpus.

* Where: ``data/corpus/ssd_controls``: ``problems/S1.py`` and ``S2.py`` are the published chunked form in
  plain torch, ``kernels/`` call the engine. Sizes: three chunks, the last cut short, three heads a group.
* S1 is the forward pass, with bias, softplus, skip and gate; CMP-02 takes its gradients. S2 starts from an
  initial state and returns the final one and every gradient beside the output, so that each gate judges the
  backward pass's values too.
* The engine takes 16-bit operands and multiplies 16-bit operands: the references round what they are given
  and what each product takes to bfloat16, and what its design keeps so: dy behind the gate, the adjoint of
  each chunk's state (the gradient of a decay meets that too), sums over heads of pairs; other sums stay in
  float32. They say what they are declared for: 64 channels, 64 or 128 states. No decay of a chunk underflows
  at the usual draws.
* The references are chunked because masked terms are products with zero there, and 0 times NaN is NaN in the
  published form as on every tensor core: the masks that EXC-01 compares are defined by that form. The gate
  charges no element on which the two readings of 0 times NaN disagree. For the same reason they associate
  products as the engine does: x meets B with its decay, C B^T is formed once for a group, and so its gradient
  is summed over the heads before it meets B or C. An infinity in a sum of other terms would be a NaN.
* The engine compiles and launches its kernels itself. On a GPU its rows are ``native``, and RES-02 reads what
  they need from a trace; the candidates map the kernels' files, by which the trace knows them.
* Licence: MIT. Left out: nothing. Row id: S1, S2.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lethe import provenance
from lethe.audit import lines
from lethe.audit.corpora import ListedCorpus, Row
from lethe.audit.lines import Line
from lethe.evidence import controls, elsewhere

if TYPE_CHECKING:
    from lethe.audit.pool import JudgeLike, JudgeSettings

CORPUS = "ssd_controls"
FOLDER = Path("data/corpus/ssd_controls")
NAMES = {"S1": "ssd_forward", "S2": "ssd_backward"}
SOURCE = "lethe/kernels/ssd"
FILE = "ssd_controls.jsonl"


def load(path: str | Path | None = None, *, native: bool = True) -> ListedCorpus:
    """The two rows, as a GPU runs them; not `native`: as Triton's interpreter does.

    Raises CorpusError where a file or the engine is missing.
    """
    folder = Path(path) if path is not None else provenance.ROOT / FOLDER
    rows = [controls.row(folder, n, NAMES[n], SOURCE, CORPUS) for n in NAMES]
    return ListedCorpus(CORPUS, [launching(row) for row in rows] if native else rows)


def launching(row: Row) -> Row:
    """`row` as a candidate that launches kernels of its own library: the engine compiles and launches without
    ``@triton.jit``'s own call, so that RES-02 reads what its kernels need from a trace."""
    return replace(row, language="native", candidate=replace(row.candidate, language="native"))


def judge_as_written(settings: JudgeSettings) -> JudgeLike:
    """A judge that leaves the sizes as they are: on an interpreter it would cut them to less than a chunk.

    A process may take fifty times as long as usual: the engine's tiles are those of a tensor core.
    """
    from lethe.verifier.judge import Judge
    from lethe.verifier.settings import Budget

    usual = Budget()
    written = replace(
        usual,
        reference_cost=1 << 26,
        wall_seconds=50 * usual.wall_seconds,
        cpu_seconds=50 * usual.cpu_seconds,
    )
    return Judge(profile=settings.profile, device=settings.device, quick=settings.quick, budget=written)


def shortfalls(judged: list[Line]) -> list[str]:
    """What keeps the control from being positive, in sentences; empty when it is (see `controls`)."""
    return controls.shortfalls(judged, tuple(NAMES))


def judged_before(out: Path) -> bool:
    """Whether `run` has left a line for both rows."""
    return (out / FILE).is_file() and len((out / FILE).read_text().splitlines()) == len(NAMES)


def run(out: Path, device: str) -> list[str]:
    """Judge both rows as the audit does; a line of ``ssd_controls.jsonl`` as soon as it is done."""
    from lethe.audit.pool import JudgeSettings, judged

    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out, "cuda" if device == "cuda" else "cpu")
    native = device == "cuda"
    settings, found = JudgeSettings(device=device, quick=True), []
    if not native:
        settings = replace(settings, factory="lethe.evidence.ssd_controls:judge_as_written")
    for result in judged(list(load(native=native).rows()), settings, workers=len(NAMES) if native else 1):
        found.append(lines.make(result.row, result.verdict, settings.record(), result.wall))
        text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in found)
        provenance.write_atomically(out / FILE, text)
    return shortfalls(found)


def record(folder: Path, measured: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write what `run` left in `folder` to ``<device>/ssd_controls.json``; returns the path."""
    samples = [lines.compact(json.loads(row)) for row in (folder / FILE).read_text().splitlines()]
    return elsewhere.record(
        measured / elsewhere.device(folder).slug / "ssd_controls.json", folder, experiment="ssd_controls",
        samples=samples, parameters={}, script="lethe/evidence/ssd_controls.py",
        sources=[SOURCE, str(FOLDER)], command="python -m lethe.evidence.ssd_controls run",
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.ssd_controls", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("--out", type=Path, required=True)
    go.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "record":
        print(record(given.folder))
        return 0
    short = run(given.out, given.device)
    print("\n".join(short) or "both controls pass")
    return bool(short)


if __name__ == "__main__":
    sys.exit(main())
