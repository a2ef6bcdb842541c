"""What the workflow writes into the book beside the notebooks: ``python -m lethe.paper.pages``.

Everything lands in ``book/generated``: the configuration with every number as a substitution,
tables made from the verifier's own records, tables of published figures, the provenance of
this build, and the data of the spot-check page.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lethe import provenance
from lethe.audit.measured import audit_lines, recorded_audits
from lethe.paper import numbers, published
from lethe.paper.glue import cell, table_directive
from lethe.provenance import ROOT, write_atomically

BOOK = ROOT / "book"


def write_all(
    results: Path,
    out: Path,
    audits: Sequence[Path],
    run: Mapping[str, Any],
    published_rows: Path | None = None,
) -> None:
    """Write every generated page part into `out`.

    `audits` are merged audit files, `run` the configuration of this build, `published_rows` the paper's own
    verdicts. Raises OSError and ValueError where an input cannot be read.
    """
    figures = numbers.published()
    substitutions = {**numbers.substitutions(results), "rules": rule_numbers()}
    write_atomically(out / "_config.yml", config(substitutions))
    for name, text in {**verifier_pages(), **provenance_pages(run)}.items():
        write_atomically(out / f"{name}.md", text)
    for name, (caption, table) in published.tables(figures).items():
        label = f"tbl-pub-{name}".replace("_", "-")
        write_atomically(out / f"pub_{name}.md", table_directive(table, caption=caption, label=label))
    spot_check(audits, out / "extra", published_rows, recorded_audits())


def config(substitutions: Mapping[str, Any]) -> str:
    """``book/_config.yml`` with the substitutions added."""
    import yaml

    settings = yaml.safe_load((BOOK / "_config.yml").read_text(encoding="utf-8"))
    settings["sphinx"]["config"]["myst_substitutions"] = dict(substitutions)
    return yaml.safe_dump(settings, sort_keys=True, allow_unicode=True)


# --- from the verifier's records ------------------------------------------------------------


def rule_numbers() -> dict[str, str]:
    """Constants of the verifier that the prose names."""
    from lethe.verifier import tolerance
    from lethe.verifier.catalog import CONTRACTS
    from lethe.verifier.fairness import RULES
    from lethe.verifier.verdict import RULES_VERSION

    return {
        "count": str(len(RULES)),
        "gates": str(len(CONTRACTS)),
        "version": RULES_VERSION,
        "elementwise_c": numbers.number(tolerance.ELEMENTWISE_C),
        "own_error_c": numbers.number(tolerance.OWN_ERROR_C),
        "convolution_c": numbers.number(tolerance.CONVOLUTION_C),
    }


def verifier_pages() -> dict[str, str]:
    """Tables and sections made from the contracts, the fairness rules and the statuses."""
    return {
        "gates": _gates(),
        "contracts": _contracts(),
        "fairness": _fairness(),
        "statuses": _statuses(),
    }


def _gates() -> str:
    from lethe.verifier.catalog import CONTRACTS

    rows = [
        (f"{{ref}}`{c.identifier} <sec-{c.identifier.lower()}>`", c.name, str(c.channel), c.postcondition)
        for c in CONTRACTS
    ]
    table = pd.DataFrame(rows, columns=["gate", "name", "channel", "the kernel guarantees that"])
    return table_directive(table, caption="The twelve gates.", label="tbl-gates")


PARTS = (
    ("scope", "Scope"),
    ("precondition", "Precondition"),
    ("postcondition", "Postcondition"),
    ("tolerance", "Tolerance"),
    ("oracle", "Reference oracle"),
    ("measurement", "Measurement protocol"),
    ("violation", "Violation signature"),
    ("crosswalk", "Crosswalk"),
)


def _contracts() -> str:
    from lethe.verifier.catalog import CONTRACTS

    sections = []
    for c in CONTRACTS:
        lines = [
            f"(sec-{c.identifier.lower()})=",
            f"## {c.identifier}, {c.name}",
            "",
            f"Channel {c.channel}.",
            "",
        ]
        for attribute, title in PARTS:
            lines += [title, f": {_sentence(getattr(c, attribute))}", ""]
        sections.append("\n".join(lines))
    return "\n".join(sections)


def _fairness() -> str:
    from lethe.verifier.fairness import RULES

    rows = [(r.number, f"`{r.name}`", _sentence(r.statement)) for r in RULES.values()]
    table = pd.DataFrame(rows, columns=["rule", "predicate", "what it says"], dtype=object)
    caption = "The fairness rules, from the records that the judge itself uses."
    return table_directive(table, caption=caption, label="tbl-fairness", align=("r", "l", "l"))


def _statuses() -> str:
    from lethe.verifier.verdict import CANDIDATE_FAULTS, Status

    meanings = _docstrings(Status)
    rows = [
        (
            s.value.replace("_", " "),
            meanings.get(s.name, ""),
            "the candidate" if s in CANDIDATE_FAULTS else "–",
        )
        for s in Status
    ]
    table = pd.DataFrame(rows, columns=["status", "meaning", "counts against"])
    caption = "Where a verdict can end: before the gates, or with them."
    return table_directive(table, caption=caption, label="tbl-statuses", align=("l", "l", "l"))


def _docstrings(enum: type) -> dict[str, str]:
    """The string literal below each member of an enum class, as one line."""
    import ast
    import inspect
    import textwrap

    body = ast.parse(textwrap.dedent(inspect.getsource(enum))).body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(following, ast.Expr):
            name = statement.targets[0].id  # type: ignore[attr-defined]
            found[name] = " ".join(str(following.value.value).split())  # type: ignore[attr-defined]
    return {k: v.replace("``", "`") for k, v in found.items()}


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    first = text.split(" ", 1)[0].rstrip(",:;")
    start = text[:1].upper() + text[1:] if first.replace("-", "").isalpha() else text
    return start + ("" if text.endswith(".") else ".")


# --- provenance -----------------------------------------------------------------------------


def provenance_pages(run: Mapping[str, Any]) -> dict[str, str]:
    """Two tables: this build, and every recorded measurement with its state."""
    device = provenance.device(str(run.get("device", "auto")))
    facts = [
        ("machine", device.name + (f", {device.sm_count} SMs" if device.sm_count else "")),
        *([("driver", device.driver)] if device.driver else []),
        *provenance.versions().items(),
        ("rules", rule_numbers()["version"]),
        *((f"`{key}`", cell(value)) for key, value in _flat(run)),
    ]
    build = table_directive(
        pd.DataFrame(facts, columns=["what", "value"]),
        caption="This build: the machine, the versions and the configuration.",
        label="tbl-build",
        align=("l", "l"),
    )
    return {"build": build, "measured": _measured()}


def _measured() -> str:
    rows: list[tuple[str, ...]] = []
    for path in provenance.measured_files():
        try:
            m = provenance.load(path)
        except provenance.ProvenanceError as e:
            rows.append((path.stem, path.parent.name, "–", "–", "–", f"**not readable**: {cell(_reason(e))}"))
            continue
        changed = provenance.stale(m)
        state = "current" if not changed else "**stale**: " + ", ".join(f"`{c}`" for c in changed)
        rows.append((m.experiment, m.device.name, m.date, f"`{m.script}`", str(len(m.sources)), state))
    if not rows:
        return (
            "This build holds no recorded measurement: every figure is either published or measured here.\n"
        )
    columns = ["experiment", "device", "date (UTC)", "measuring script", "sources", "state"]
    return table_directive(
        pd.DataFrame(rows, columns=columns, dtype=object),
        caption="Recorded measurements, and whether a source has changed since.",
        label="tbl-measured",
    )


def _reason(error: Exception) -> str:
    """The sentence of a `ProvenanceError` without the path that it begins with."""
    return str(error).split(".json ", 1)[-1]


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{key}.")
        else:
            flat.append((prefix + key, ", ".join(value) if isinstance(value, list) else value))
    return flat


# --- spot checks ----------------------------------------------------------------------------


def spot_check(
    audits: Sequence[Path],
    extra: Path,
    published_rows: Path | None = None,
    recorded: Sequence[Path] = (),
) -> None:
    """Write ``rows.js`` for the spot-check page and copy the counterexamples that its rows link to.

    Besides the audits of this build it holds those that were recorded (a row that both hold is this
    build's), and the published verdicts, as the corpus ``published``.
    """
    from lethe.audit import report
    from lethe.audit.published_rows import read
    from lethe.audit.published_rows import spot_check_rows as published_spot_checks

    shutil.rmtree(extra, ignore_errors=True)
    rows: list[dict[str, Any]] = []
    audited = report.load(audits)
    probed = list(audited["integrity"])
    for row, probes in zip(report.spot_check_rows(audited).to_dict("records"), probed, strict=True):
        row["failed"] = ", ".join(filter(None, [row["failed"], "integrity" if probes else ""]))
        found = row["counterexample"]
        source = Path(found) if isinstance(found, str) and found else None
        row["counterexample"] = ""
        if source is not None and source.is_file():
            target = extra / "counterexamples" / f"{row['corpus']}__{row['id']}.py.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            row["counterexample"] = target.relative_to(extra).as_posix()
        rows.append({str(k): v for k, v in row.items()})
    here = {(row["corpus"], row["id"]) for row in rows}
    for row in report.spot_check_rows(report.frame(audit_lines(recorded))).to_dict("records"):
        if (row["corpus"], row["id"]) not in here:
            rows.append({**{str(k): v for k, v in row.items()}, "counterexample": ""})
    rows += published_spot_checks(read(published_rows)) if published_rows is not None else []
    text = json.dumps(rows, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    write_atomically(extra / "rows.js", f"window.LETHE_ROWS = {text};\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.paper.pages", description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "data" / "results")
    parser.add_argument("--out", type=Path, default=BOOK / "generated")
    parser.add_argument("--audit", type=Path, action="append", default=[], help="a merged audit file")
    parser.add_argument("--published", type=Path, help="the paper's published verdicts")
    parser.add_argument("--run", type=json.loads, default={}, help="the configuration, as JSON")
    arguments = parser.parse_args(argv)
    try:
        write_all(arguments.results, arguments.out, arguments.audit, arguments.run, arguments.published)
    except (OSError, ValueError) as e:
        print(f"pages: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
