"""Every audit number that the paper printed, recomputed from its own published rows.

    python -m lethe.audit.published_check ROWS [--figures FIGURES] [--json data/published/recomputed.json]

A number *follows* if the rows give it to the digits printed. Those that the rows cannot give (another
run, another corpus, a definition that is not stated) are listed as such, never as agreeing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lethe.audit.corpora import CorpusError
from lethe.audit.published_rows import (
    PublishedRow,
    accepted,
    artefact,
    channels,
    denominator,
    executable,
    failed,
    in_floor,
    read,
    violated,
)
from lethe.verifier.textfile import write_atomically

Figures = dict[str, Any]
IDLE = ("CMP-02", "RES-02")


@dataclass(frozen=True)
class Check:
    """One printed number beside what the rows give."""

    key: str
    """Where it stands in ``figures.json``."""
    printed: Any
    recomputed: Any
    """None: the rows cannot give it."""
    note: str = ""

    @property
    def follows(self) -> bool | None:
        """None where the rows cannot tell."""
        if self.recomputed is None:
            return None
        if isinstance(self.printed, float):
            digits = len(repr(self.printed).partition(".")[2])
            return bool(abs(self.printed - self.recomputed) <= 0.5 * 10**-digits + 1e-12)
        return bool(self.printed == self.recomputed)


def checks(rows: Sequence[PublishedRow], figures: Figures) -> list[Check]:
    """All of them, in the order of ``figures.json``."""
    base = denominator(rows)
    makers = (_headline, _gates, _classes, _funnel, _floor, _examples, _differential, _elsewhere)
    return [check for make in makers for check in make(rows, base, figures)]


def broken(found: Sequence[Check]) -> list[Check]:
    """Those that do not follow from the rows."""
    return [check for check in found if check.follows is False]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _headline(rows: Sequence[PublishedRow], base: list[PublishedRow], f: Figures) -> Iterator[Check]:
    a, n = f["audit"], len(base)
    any_violation, floor = sum(map(violated, base)), sum(map(in_floor, base))
    spoken = Counter(c for row in base for c in channels(row))
    bare = [r for r in base if r["op_class"] != "matmul"]
    found = {
        "ssm_adjacent": len(rows),
        "accepted_denominator": n,
        "any_violation": any_violation,
        "any_violation_rate": _share(any_violation, n),
        "tolerance_free": floor,
        "tolerance_free_rate": _share(floor, n),
        "floor_with_shape_rejection_rate": _share(sum(in_floor(r, ["shape"]) for r in base), n),
        "floor_with_exc02_rate": _share(sum(in_floor(r, ["EXC-02"]) for r in base), n),
        "without_matmul_rate": _share(sum(map(violated, bare)), len(bare)),
        "output_aliasing": spoken["aliasing"],
        "cuda_crash": spoken["crash"],
        "pre_gate_findings": spoken["pre_gate"],
    }
    yield Check("audit.trajectories", a["trajectories"], None, "the rows are those of seven classes only")
    for key, value in found.items():
        yield Check(f"audit.{key}", a[key], value)
    yield _contested(base, a["all_contested_stripped_rate"])


def _contested(base: list[PublishedRow], printed: float) -> Check:
    """Which gates were stripped is not stated: all sets whose removal gives the printed rate."""
    gates = sorted({g for row in base for g in row.get("gates", {})})
    anyway = sum(violated(row, gates) for row in base)
    patterns = Counter(frozenset(failed(row)) for row in base if not violated(row, gates))
    fits = [
        ", ".join(some)
        for size in range(1, len(gates))
        for some in itertools.combinations(gates, size)
        if round(_share(anyway + sum(n for p, n in patterns.items() if p - {*some}), len(base)), 3) == printed
    ]
    note = f"which channels are contested is not stated; {len(fits)} sets of gates give it"
    return Check(
        "audit.all_contested_stripped_rate", printed, None, note + (f", e.g. {fits[0]}" if fits else "")
    )


def _gates(rows: Sequence[PublishedRow], base: list[PublishedRow], f: Figures) -> Iterator[Check]:
    for gate, printed in f["audit"]["gates"].items():
        counts = Counter(r["gates"][gate]["status"] for r in base if gate in r.get("gates", {}))
        for status, number in printed.items():
            yield Check(f"audit.gates.{gate}.{status}", number, counts[status])
    present = {g for row in rows for g in row.get("gates", {})}
    yield Check("audit.idle_gates", sorted(f["audit"]["idle_gates"]), sorted(set(IDLE) - present))
    res = Counter(r["gates"]["RES-01"]["status"] for r in base if "RES-01" in r.get("gates", {}))
    rate = 100 * _share(res["fail"], res["fail"] + res["pass"])
    yield Check("audit.set_aside_gates.RES-01 (per cent)", 1.8, rate)


def _classes(rows: Sequence[PublishedRow], base: list[PublishedRow], f: Figures) -> Iterator[Check]:
    a = f["audit"]
    for name, size in a["class_sizes"].items():
        own = [r for r in base if r["op_class"] == name]
        yield Check(f"audit.class_sizes.{name}", size, len(own))
        rate = _share(sum(map(violated, own)), len(own))
        yield Check(f"audit.per_class_rate.{name}", a["per_class_rate"][name], rate)
        yield Check(
            f"audit.floor_rate_by_class.{name}",
            a["floor_rate_by_class"][name],
            _share(sum(map(in_floor, own)), len(own)),
        )


def _funnel(rows: Sequence[PublishedRow], base: list[PublishedRow], f: Figures) -> Iterator[Check]:
    kept = [r for r in rows if accepted(r)]
    ran = [r for r in kept if executable(r)]
    found = {
        "ssm_adjacent": len(rows),
        "accepted": len(kept),
        "reference_executable": len(ran),
        "toolchain_or_compile_artifact": sum(map(artefact, ran)),
        "denominator": len(base),
    }
    for key, value in found.items():
        yield Check(f"audit.funnel.{key}", f["audit"]["funnel"][key], value)


def _floor(rows: Sequence[PublishedRow], base: list[PublishedRow], f: Figures) -> Iterator[Check]:
    spoken = Counter(c for row in base for c in channels(row))
    for name, number in f["audit"]["floor_channel_rows"].items():
        yield Check(f"audit.floor_channel_rows.{name}", number, spoken[name.split(" ")[0]])


def _examples(rows: Sequence[PublishedRow], base: list[PublishedRow], f: Figures) -> Iterator[Check]:
    """The examples are given as accepted kernels that break a contract."""
    inside = {r["id"]: r for r in base}
    by_id = {r["id"]: r for r in rows}
    for number in f["audit"]["spot_check_ids"]:
        row = inside.get(str(number))
        found = by_id.get(str(number), {"status": "absent"})
        outcome = ", ".join(failed(row)) or "no gate failed" if row is not None else "outside the denominator"
        note = f"recorded as {found['status']}: {found.get('error') or outcome}"
        yield Check(f"audit.spot_check_ids.{number}", True, row is not None and violated(row), note)


def _differential(rows: Sequence[PublishedRow], base: list[PublishedRow], f: Figures) -> Iterator[Check]:
    d, n, bad = f["differential"], len(base), sum(map(violated, base))
    for run in ("paper_era", "hardened", "second_run_paper_era"):
        cells = d[run]
        key = f"differential.{run}"
        yield Check(f"{key}: sum", sum(cells.values()), n)
        yield Check(
            f"{key}: rows that a contract rejects", cells["external_pass_ours_fail"] + cells["both_fail"], bad
        )
        yield Check(
            f"{key}: single cells", dict(cells), None, "KernelBench's own verdicts are not in the rows"
        )
    for run, rate in d["accept_rate"].items():
        accepts = d[run]["both_pass"] + d[run]["external_pass_ours_fail"]
        yield Check(f"differential.accept_rate.{run}", rate, _share(accepts, n), "from the printed cells")
    yield Check(
        "differential.cell_rate",
        d["cell_rate"],
        _share(d["paper_era"]["external_pass_ours_fail"], n),
        "from the printed cells",
    )
    fails = Counter(g for row in base for g in failed(row))
    for gate, number in d["by_gate_in_cell"].items():
        if gate in fails:
            within = number <= fails[gate]
            note = f"at most the gate's {fails[gate]} failures; the cell itself is not in the rows"
            yield Check(f"differential.by_gate_in_cell.{gate}", number, None if within else fails[gate], note)


def _elsewhere(rows: Sequence[PublishedRow], base: list[PublishedRow], f: Figures) -> Iterator[Check]:
    """Numbers about other runs: only their own arithmetic can be checked."""
    k, h = f["kernelbench_agreement"], f["hand_audit"]
    cells = k["both_pass"] + k["both_fail"] + k["theirs_pass_ours_fail"] + k["theirs_fail_ours_pass"]
    arithmetic = "from the printed cells; the run itself is not in the rows"
    yield Check("kernelbench_agreement.pairs", k["pairs"], cells, arithmetic)
    rate = _share(k["both_pass"] + k["both_fail"], k["pairs"])
    yield Check("kernelbench_agreement.rate", k["rate"], rate, arithmetic)
    parts = h["broken"] + h["tolerance_dependent"] + h["out_of_scope"]
    yield Check("hand_audit.traced", h["traced"], parts, arithmetic)
    yield Check(
        "second_stack.rate", f["second_stack"]["rate"], None, "another run, its rows are not published"
    )
    s = f["second_corpus"]
    yield Check(
        "second_corpus.residual_rate", s["residual_rate"], _share(s["residual"], s["kernels"]), arithmetic
    )


def _shown(check: Check) -> str:
    value = check.recomputed
    given = "" if value is None else f", rows give {round(value, 5) if isinstance(value, float) else value}"
    return f"printed {check.printed}{given}" + (f" ({check.note})" if check.note else "")


def as_json(rows: Sequence[PublishedRow], found: Sequence[Check]) -> str:
    """What was found as a JSON document: how many rows, and each check with whether it follows."""
    plain = [{**asdict(check), "follows": check.follows} for check in found]
    checks_ = ",\n  ".join(json.dumps(check, sort_keys=True) for check in plain)
    return f'{{\n "rows": {len(rows)},\n "checks": [\n  {checks_}\n ]\n}}\n'


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.audit.published_check", description=__doc__)
    parser.add_argument("rows", type=Path, help="audit_rows.jsonl.gz, from lethe fetch published")
    parser.add_argument("--figures", type=Path, default=Path("data/published/figures.json"))
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    given = parser.parse_args(argv)
    try:
        figures = json.loads(given.figures.read_text(encoding="utf-8"))
        rows = read(given.rows)
        found = checks(rows, figures)
        if given.json is not None:
            write_atomically(given.json, as_json(rows, found))
    except (CorpusError, OSError, ValueError) as e:
        print(f"published_check: {e}", file=sys.stderr)
        return 1
    words = {True: "follows", False: "DOES NOT FOLLOW", None: "not in the rows"}
    for check in found:
        print(f"{words[check.follows]:16} {check.key}: {_shown(check)}")
    count = Counter(check.follows for check in found)
    print(f"{count[True]} follow, {count[False]} do not, {count[None]} cannot be told from the rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
