"""Everything that a person needs to read the drawn rows: a folder for each, in a scratch place.

    python -m lethe.audit.review_kit --data DATA --audit FILES... --differential FILES... \\
        --dlblas ROWS --cuda-l1 ROWS --problems KERNELBENCH --out SCRATCH [--device cuda --workers N]

A row's folder holds ``candidate.py``, ``reference.py``, ``findings.md`` (what the verdict and each check say)
and, with ``--device``, the counterexamples of a second verdict, which has to be the recorded one. The folders
hold other people's kernels: they stay where they are and are never committed. The same command resumes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.audit import review
from lethe.audit.campaign import Plan
from lethe.audit.corpora import Corpus
from lethe.audit.review import Review, fingerprint
from lethe.verifier.textfile import write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from lethe.audit.pool import JudgeSettings

Record = Mapping[str, Any]
Key = tuple[str, str]
LINES = "again.jsonl"
"""The lines of the second verdicts, in the kit's folder."""
NOT_AGAIN = "no second verdict was asked for"


def write(
    rows: Sequence[Review],
    audit: pd.DataFrame,
    checks: pd.DataFrame,
    corpora: Mapping[str, Corpus],
    out: Path,
    again: pd.DataFrame | None = None,
) -> list[Path]:
    """Write the folder of each row of `rows` under `out`, and ``README.md``, a sheet to fill in.

    `corpora` are those of the rows by name, `again` holds second verdicts (`report.frame`). Returns the
    folders. Raises CorpusError for a row that its corpus does not hold.
    """
    recorded, second = _by_key(audit), _by_key(again) if again is not None else {}
    folders = []
    for number, row in enumerate(rows, 1):
        key = row["corpus"], row["id"]
        source = corpora[row["corpus"]].get(row["id"])
        folder = out / f"{number:02d}_{re.sub(r'[^A-Za-z0-9._-]', '_', row['id'])}"
        write_atomically(folder / "candidate.py", source.candidate.source)
        write_atomically(folder / "reference.py", source.problem.source)
        same = _same(recorded.get(key), second.get(key))
        text = _findings(row, recorded.get(key), same, _checks_of(checks, key))
        write_atomically(folder / "findings.md", text)
        for script in _scripts(out, second.get(key)):
            write_atomically(folder / script.name, script.read_text(encoding="utf-8"))
        folders.append(folder)
    write_atomically(out / "README.md", review.sheet(rows, audit))
    return folders


def judge(
    rows: Sequence[Review],
    corpora: Mapping[str, Corpus],
    out: Path,
    settings: Mapping[str, JudgeSettings],
    workers: int,
) -> Path:
    """Judge the rows again, each corpus with its `settings`, into `LINES` of `out`; returns the file."""
    from rich.console import Console

    from lethe.audit.progress import shown
    from lethe.audit.run import Selection, run

    progress = shown(Console(stderr=True, highlight=False))
    file = out / LINES
    for name, corpus in corpora.items():
        ids = tuple(row["id"] for row in rows if row["corpus"] == name)
        selection = Selection(rows=ids)
        run(corpus, file, settings=settings[name], selection=selection, workers=workers, progress=progress)
    return file


def _by_key(frame: pd.DataFrame) -> dict[Key, Record]:
    records = frame.to_dict("records")
    return {(r["corpus"], r["id"]): {str(k): v for k, v in r.items()} for r in records}


def _same(recorded: Record | None, second: Record | None) -> str:
    if second is None or recorded is None:
        return NOT_AGAIN
    if fingerprint(recorded) == fingerprint(second):
        return "the second verdict is the recorded one"
    return f"the second verdict differs: {second['status']}, fails {', '.join(second['failed']) or 'nothing'}"


def _checks_of(checks: pd.DataFrame, key: Key) -> list[Record]:
    found = [{str(k): v for k, v in r.items()} for r in checks.to_dict("records")]
    return [r for r in found if (r["corpus"], r["id"]) == key]


def _scripts(out: Path, second: Record | None) -> list[Path]:
    """Counterexamples of a second verdict; their folder ends with the first digits of the text's hash."""
    if second is None or not isinstance(second["counterexample"], str):
        return []
    place = Path(second["counterexample"]).parent
    here = out / "counterexamples" / place.name
    return sorted((here if here.is_dir() else place).glob("counterexample*.py"))


def _findings(row: Review, record: Record | None, same: str, checks: Sequence[Record]) -> str:
    told = {True: "accepts", False: "rejects"}
    said = [
        f"* KernelBench {c['variant']} ({c['implementation']}) {told.get(c['accepted'], 'gives no answer')}: "
        f"{c['status']}, {c['passed']} of 5 trials agree. {c['message']}"
        for c in checks
    ]
    parts = [
        f"# {row['id']}",
        "",
        f"{row['cell']} cell, drawn under {row['channel'] or 'no channel'}: {row['problem']}, "
        f"{row['family']}.",
        "",
        *(review.findings(record) if record is not None else ["* no verdict at hand"]),
        *said,
        f"* {same}",
        "",
    ]
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    try:
        return _main(given)
    except KeyboardInterrupt:
        print("review_kit: interrupted, the same command resumes", file=sys.stderr)
        return 130
    except (ValueError, OSError) as e:
        print(f"review_kit: {e}", file=sys.stderr)
        return 2


def _main(given: argparse.Namespace) -> int:
    from lethe.audit import agreement, measured, report
    from lethe.audit.pool import JudgeSettings

    rows = review.load(given.data)
    plan = Plan(given.out, dlblas=given.dlblas, cuda_l1=given.cuda_l1, problems=given.problems)
    corpora = {name: plan.open(name) for name in dict.fromkeys(row["corpus"] for row in rows)}
    recorded = measured.audit_lines(given.audit)
    audit = report.frame(recorded)
    checks = agreement.frame(measured.check_lines(given.differential))
    again = None
    if given.device is not None:
        place = str(given.out / "counterexamples")
        how = {
            line["corpus"]: JudgeSettings(
                **{**line["settings"], "device": given.device, "gates": None},
                counterexamples=place,
                factory="lethe.audit.extensions:judge",
            )
            for line in recorded
        }
        again = report.load(judge(rows, corpora, given.out, how, given.workers))
    elif (given.out / LINES).is_file():
        again = report.load(given.out / LINES)
    folders = write(rows, audit, checks, corpora, given.out, again)
    print(f"{given.out}: {len(folders)} rows to read")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lethe.audit.review_kit", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the drawn rows, from review draw")
    add("--audit", type=Path, nargs="+", required=True, help="audit files, or measured ones")
    add("--differential", type=Path, nargs="+", required=True, help="checks, or measured ones")
    add("--dlblas", type=Path, help="rows, from lethe fetch dlblas")
    add("--cuda-l1", type=Path, help="rows, from lethe fetch cuda_l1")
    add("--problems", type=Path, help="KernelBench at 48642c5c, from lethe fetch kernelbench")
    add("--out", type=Path, required=True, help="a scratch folder outside the repository")
    add("--device", choices=("cpu", "cuda"), help="judge the rows again there, with counterexamples")
    add("--workers", type=int, default=2)
    return parser


if __name__ == "__main__":
    sys.exit(main())
