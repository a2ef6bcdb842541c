"""The hand audit: which rows a person reads, what they found, and whether every one was read.

    python -m lethe.audit.review draw --audit FILES... --differential FILES... --data DATA
    python -m lethe.audit.review sheet --audit FILES... --data DATA --out SHEET.md
    python -m lethe.audit.review check --audit FILES... --differential FILES... --data DATA

with ``data/review/rigor_gap.json`` as DATA; `review_kit` writes what there is to read.

Drawn are `ROWS` rows of the load-bearing cell (KernelBench's check accepts, a contract is broken), stratified
by channel, and **all** rows of the reverse cell. The draw depends on the recorded lines alone. Each row is
traced by reading kernel, reference and counterexample, and gets a class and one sentence. A row whose verdict
has changed since it was read counts as not read. The data holds ids, classes and sentences, no sources.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.audit.corpora import spread
from lethe.audit.floor import STRICT
from lethe.audit.kernelbench_check import VARIANTS

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "lethe.review/1"
ROWS = 40
AT_LEAST = 2
"""Rows of each channel that are read in any case, where there are as many."""
LOAD_BEARING, REVERSE = "load-bearing", "reverse"
CLASSES = {
    "broken": "the kernel gives a wrong answer that no tolerance excuses",
    "tolerance_dependent": "how much error is too much decides",
    "out_of_scope": "the verdict is right, but about something the kernel does not promise",
    "our_mistake": "the verifier is wrong; it becomes a fairness rule and the audit is run again",
    "their_mistake": "KernelBench's check rejects a kernel that keeps its contract (reverse cell only)",
}
CHANNELS = (*STRICT, "EXC-02", "shape", "integrity")
"""Tolerance-free first: a row is drawn under the first channel that speaks against it, else its gate."""

Review = dict[str, Any]


class ReviewError(ValueError):
    """The data cannot be used; the message is one sentence."""


def channel_of(record: Mapping[str, Any]) -> str:
    """Under which channel a convicted row is drawn."""
    for channel in CHANNELS:
        if channel in record["channels"]:
            return channel
    return record["failed"][0] if record["failed"] else str(record["status"])


def fingerprint(record: Mapping[str, Any]) -> str:
    """What a reading was about: status and, for each failing gate, the mechanisms; twelve hex digits."""
    spoken = sorted({(f["gate"], f["mechanism"]) for f in record["findings"]})
    probes = sorted({f["mechanism"] for f in record["integrity"]})
    text = json.dumps([record["status"], list(record["failed"]), spoken, probes])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def draw(
    audit: pd.DataFrame,
    checks: pd.DataFrame,
    variant: str = "48642c5c",
    implementation: str = "theirs",
    rows: int = ROWS,
) -> list[Review]:
    """The rows to read, without classes: of the load-bearing cell of `variant`, and both reverse cells.

    Each has id, corpus, problem, family, cell, channel, failed and fingerprint.
    """
    from lethe.audit import agreement

    cell = agreement.cell(audit, checks, variant, implementation, check=True, violated=True)
    back: dict[str, dict[str, Any]] = {}
    for each in VARIANTS:
        found = agreement.cell(audit, checks, each, implementation, check=False, violated=False)
        back |= {record["id"]: record for record in _records(found)}
    strata: dict[str, list[Mapping[str, Any]]] = {}
    for record in _records(cell):
        strata.setdefault(channel_of(record), []).append(record)
    chosen = [
        _entry(record, LOAD_BEARING, channel)
        for channel, n in allocation({c: len(m) for c, m in strata.items()}, rows).items()
        for record in spread(strata[channel], key=lambda r: r["id"])[:n]
    ]
    return chosen + [_entry(record, REVERSE, "") for record in back.values()]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in record.items()} for record in frame.to_dict("records")]


def allocation(sizes: Mapping[str, int], rows: int) -> dict[str, int]:
    """How many rows of each stratum: `AT_LEAST` of each, the rest in proportion (largest remainder).

    Never more than a stratum holds; all of them where there are no more than `rows`.
    """
    rows = min(rows, sum(sizes.values()))
    given = {name: min(AT_LEAST, n) for name, n in sizes.items()}
    while sum(given.values()) > rows:
        most = max(given, key=lambda name: (given[name], name))
        given[most] -= 1
    room = {name: n - given[name] for name, n in sizes.items()}
    left, whole = rows - sum(given.values()), sum(room.values())
    shares = {name: left * n / whole if left else 0.0 for name, n in room.items()}
    for name, share in shares.items():
        given[name] += int(share)
    over = sorted(shares, key=lambda name: (int(shares[name]) - shares[name], name))
    for name in over[: rows - sum(given.values())]:
        given[name] += 1
    return given


def _entry(record: Mapping[str, Any], cell: str, channel: str) -> Review:
    return {
        "id": record["id"],
        "corpus": record["corpus"],
        "problem": record["problem"],
        "family": record["family"],
        "cell": cell,
        "channel": channel,
        "failed": list(record["failed"]),
        "fingerprint": fingerprint(record),
        "class": None,
        "sentence": "",
    }


# ---------------------------------------------------------------- the data file


def load(path: Path) -> list[Review]:
    """The rows of a data file. Raises ReviewError where it is missing or of another kind."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ReviewError(f"cannot read {path}: {e.strerror}") from None
    except ValueError as e:
        raise ReviewError(f"{path} is not JSON: {e}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ReviewError(f"{path} does not have schema {SCHEMA}")
    rows: list[Review] = data["rows"]
    return rows


def save(path: Path, rows: Sequence[Review]) -> None:
    """Write a data file, whole or not at all."""
    from lethe.provenance import write_atomically

    text = ",\n  ".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)
    classes = json.dumps(CLASSES, ensure_ascii=False, indent=2)
    write_atomically(
        path, f'{{\n "schema": "{SCHEMA}",\n "classes": {classes},\n "rows": [\n  {text}\n ]\n}}\n'
    )


def keep(drawn: Sequence[Review], before: Sequence[Review]) -> list[Review]:
    """The drawn rows with the classes that were given before, where the verdict is still the same."""
    read = {(r["corpus"], r["id"], r["fingerprint"]): r for r in before}
    same = ("class", "sentence")
    return [
        {**row, **{k: read[key][k] for k in same}}
        if (key := (row["corpus"], row["id"], row["fingerprint"])) in read
        else row
        for row in drawn
    ]


def problems(drawn: Sequence[Review], data: Sequence[Review]) -> list[str]:
    """One sentence for each drawn row that was not read, and for each class that does not exist."""
    found = []
    read = {(r["corpus"], r["id"]): r for r in data}
    for row in drawn:
        have = read.get((row["corpus"], row["id"]))
        if have is None:
            found.append(f"{row['id']} ({row['cell']}) was drawn, but is not in the data")
        elif have["fingerprint"] != row["fingerprint"]:
            found.append(f"{row['id']} was read for another verdict than today's")
        elif have["class"] is None:
            found.append(f"{row['id']} is not classified yet")
    for row in data:
        if row["class"] is not None and row["class"] not in CLASSES:
            found.append(f"{row['id']} has the class {row['class']!r}; the classes are {', '.join(CLASSES)}")
        elif row["class"] is not None and not row["sentence"].strip():
            found.append(f"{row['id']} has a class, but no sentence says why")
    return found


def summary(rows: Sequence[Review]) -> pd.DataFrame:
    """How many rows of each cell are in each class: class, meaning, load-bearing, reverse."""
    import pandas as pd

    counts = Counter((r["class"], r["cell"]) for r in rows)
    names: list[tuple[str | None, str]] = [*CLASSES.items(), (None, "not read yet")]
    return pd.DataFrame(
        [
            {
                "class": name or "not read yet",
                "meaning": meaning if name else "",
                LOAD_BEARING: counts[name, LOAD_BEARING],
                REVERSE: counts[name, REVERSE],
            }
            for name, meaning in names
        ]
    )


# ---------------------------------------------------------------- the sheet


def sheet(rows: Sequence[Review], audit: pd.DataFrame, corpus_options: str = "") -> str:
    """A page to read by: each row with its findings, the command for its counterexample, what to fill in."""
    records = {(r["corpus"], r["id"]): r for r in _records(audit)}
    parts = ["# Rows to read\n", *(f"* `{name}`: {text}" for name, text in CLASSES.items()), ""]
    for number, row in enumerate(rows, 1):
        record = records.get((row["corpus"], row["id"]))
        parts += [
            f"## {number}. {row['id']}",
            "",
            f"{row['cell']} cell, drawn under {row['channel'] or 'no channel'}; {row['problem']}, "
            f"{row['family']}; fails {', '.join(row['failed']) or 'nothing'}.",
            "",
            *(findings(record) if record is not None else ["* no verdict at hand"]),
            "",
            "```console",
            f"$ lethe show {row['id']}{corpus_options} --source",
            f"$ lethe audit --row {row['id']}{corpus_options} --counterexamples read",
            "```",
            "",
            f"class: {row['class'] or ''}",
            f"sentence: {row['sentence']}",
            "",
        ]
    return "\n".join(parts)


def findings(record: Mapping[str, Any]) -> list[str]:
    """What a verdict says, a Markdown item for each finding."""
    found = [*record["findings"], *({**f, "gate": "INTEGRITY"} for f in record["integrity"])]
    told = [f"* {f['gate']} ({f['channel']}, {f['mechanism']}) {f['case']}: {f['message']}" for f in found]
    return told or [f"* {record['status']}: {record['message'] or 'every applicable gate passes'}"]


# ---------------------------------------------------------------- command line


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    try:
        return _main(given)
    except (ValueError, OSError) as e:
        print(f"review: {e}", file=sys.stderr)
        return 2


def _main(given: argparse.Namespace) -> int:
    from lethe.audit import agreement, measured, report

    audit = report.frame(measured.audit_lines(given.audit))
    if given.command == "sheet":
        text = sheet(load(given.data), audit, given.corpus_options)
        given.out.write_text(text, encoding="utf-8")
        print(given.out)
        return 0
    checks = agreement.frame(measured.check_lines(given.differential))
    drawn = draw(audit, checks, given.variant, given.implementation, given.rows)
    if given.command == "draw":
        before = load(given.data) if given.data.is_file() else []
        rows = keep(drawn, before)
        save(given.data, rows)
        print(f"{given.data}: {len(rows)} rows, {sum(r['class'] is None for r in rows)} to be read")
        return 0
    found = problems(drawn, load(given.data))
    for sentence in found:
        print(sentence)
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lethe.audit.review", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("draw", "choose the rows; keeps what was classified"),
        ("sheet", "write the page to read by"),
        ("check", "is every drawn row classified?"),
    ):
        command = commands.add_parser(name, help=text)
        add = command.add_argument
        add("--audit", type=Path, nargs="+", required=True, help="audit files, or measured ones")
        add("--data", type=Path, required=True, help="the classifications")
        if name == "sheet":
            add("--out", type=Path, required=True)
            add("--corpus-options", default="", help="how lethe finds the corpus, e.g. ' --config my.yaml'")
            continue
        add("--differential", type=Path, nargs="+", required=True, help="checks, or measured ones")
        add("--variant", default="48642c5c")
        add("--implementation", default="theirs", choices=("theirs", "ours"))
        add("--rows", type=int, default=ROWS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
