"""The tables of the chapter "Is the referee right?", as the book prints them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from lethe.paper.tables import DASH, interval, rate, words
from lethe.verifier.catalog import IDS

if TYPE_CHECKING:
    from lethe.evidence.honest.report import Specificity
    from lethe.evidence.mutants.report import Rate

STAR = "★"


def small_rate(value: float) -> str:
    """A rate that may be far below one percent: two significant digits."""
    return "0%" if value == 0 else f"{100 * value:.2g}%"


def attacks(table: pd.DataFrame) -> pd.DataFrame:
    """`matrix.by_attack` with the target as a star; gates that reject nothing are left out."""
    gates = [c for c in table.columns if c not in ("operators", "status") and table[c].astype(bool).any()]
    shown = pd.DataFrame({"attack": [words(str(a)) for a in table.index]})
    shown["operators"] = list(table["operators"])
    for gate in [*gates, "status"]:
        shown[gate] = [str(v).replace("*", f" {STAR}") for v in table[gate]]
    return shown.rename(columns={"status": "refused before any gate"})


NOT_RECORDED = "not recorded yet"


def caught(counts: Mapping[str, int] | None) -> str:
    """What became of the red team, as a clause; `counts` as `matrix.counts` gives them."""
    if not counts:
        return NOT_RECORDED
    return (
        f"{counts['caught']:,} of {counts['cheats']:,} cheats rejected by their gate, "
        f"{counts['clean']:,} of {counts['twins']:,} twins clean"
    )


def spared(found: Any) -> str:
    """A false-rejection rate, as a clause."""
    if not found.n:
        return NOT_RECORDED
    return f"{found.rejected:,} of {found.n:,} rejected, a rate of at most {small_rate(found.upper)}"


def usual_check(loose: Rate | None, tight: Rate | None) -> str:
    """What the usual check rejects of the mutants, as a clause."""
    if loose is None or tight is None:
        return NOT_RECORDED
    return f"{rate(loose.rate)} at its usual tolerance, {rate(tight.rate)} at a hundredth of it"


def equivalence(df: pd.DataFrame) -> str:
    """How many mutants are equivalent, of those that were examined, as a clause."""
    examined = [e for e in df["equivalent"] if e is not None]
    if not examined:
        return f"none of the {len(df):,} mutants has been examined yet"
    return f"{sum(examined):,} of {len(examined):,} examined mutants are equivalent"


def specificity(cpu: Specificity, gpu: Specificity) -> pd.DataFrame:
    """Counts and bounds by transform on both devices."""
    sides = {"CPU": cpu.by("transform"), "H200": gpu.by("transform")}
    names = [n for n in dict.fromkeys([*sides["CPU"].index, *sides["H200"].index]) if n != "all"] + ["all"]
    rows = []
    for name in names:
        row: dict[str, Any] = {"made by": words(str(name))}
        for device, table in sides.items():
            known = name in table.index
            row[f"n, {device}"] = int(table.loc[name, "n"]) if known else DASH
            row[f"rejected, {device}"] = int(table.loc[name, "rejected"]) if known else DASH
            row[f"at most, {device}"] = small_rate(float(table.loc[name, "upper"])) if known else DASH
        rows.append(row)
    return pd.DataFrame(rows)


def rejections(cpu: Specificity, gpu: Specificity) -> pd.DataFrame:
    """One row for each rejected candidate: where, which gates, the first finding."""
    rows = []
    for device, side in (("CPU", cpu), ("H200", gpu)):
        for name, found in side.rejections().groupby("id", sort=False):
            rows.append(
                {
                    "candidate": name,
                    "device": device,
                    "gates": ", ".join(dict.fromkeys(found["gate"])),
                    "first finding": str(found["message"].iloc[0])[:160],
                }
            )
    return pd.DataFrame(rows or [{"candidate": "none", "device": "", "gates": "", "first finding": ""}])


def kill_rates(rates: Mapping[str, Rate]) -> pd.DataFrame:
    """The headline rates of the mutants."""
    return pd.DataFrame(
        {
            "check": list(rates),
            "killed": [r.killed for r in rates.values()],
            "of": [r.of for r in rates.values()],
            "rate (95% interval)": [f"{rate(r.rate)} ({interval(*r.interval)})" for r in rates.values()],
        }
    )


def operators(kills: pd.DataFrame) -> pd.DataFrame:
    """Mutation operators with what they imitate."""
    return pd.DataFrame(
        {
            "operator": [words(o) for o in kills["operator"]],
            "the bug": kills["bug"],
            "mutants": kills["mutants"],
            "equivalent": kills["equivalent"],
            "killed": kills["killed"],
            "survivors": kills["survivors"],
        }
    )


def survivors(df: pd.DataFrame) -> pd.DataFrame:
    """Survivors with the family of their base."""
    if df.empty:
        return pd.DataFrame([{"mutant": "none", "family": "", "language": ""}])
    return pd.DataFrame({"mutant": df["id"], "family": df["family"], "language": df["language"]})


def equivalents(df: pd.DataFrame) -> pd.DataFrame:
    """Equivalent mutants with their reasons."""
    same = df[[e is True for e in df["equivalent"]]]
    if same.empty:
        return pd.DataFrame([{"mutant": "none", "reason": ""}])
    return pd.DataFrame({"mutant": same["id"], "reason": [r or DASH for r in same["reason"]]})


def calibration(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Margins of every gate and operator: the smallest over the patterns of injected error."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        measured = row["status"] == "measured" and not row["pattern"].startswith("sweep:")
        if measured and row["profile"] == "derived":
            groups.setdefault((row["gate"], row["operator"]), []).append(row)
    shown = []
    for (gate, operator), group in sorted(groups.items(), key=lambda g: (IDS.index(g[0][0]), g[0][1])):
        onset = _least(group, "onset")
        shown.append(
            {
                "gate": gate,
                "operator": words(operator),
                "threshold over noise": _power(_least(group, "below")),
                "onset": _power(onset),
                "onset over noise": _power(_least(group, "above")),
                "thin": any(r.get("thin") for r in group),
            }
        )
    return pd.DataFrame(shown)


def _least(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return min((r[key] for r in rows if r.get(key) is not None), default=None)


def _power(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}"


def fairness(rules: pd.DataFrame) -> pd.DataFrame:
    """`evidence.fairness.table` as the book prints it, one row for each rule."""
    return pd.DataFrame(
        {
            "rule": rules["rule"],
            "who needs it": rules["kernel"],
            "with the rule": rules["with_rule"],
            "without": rules["without_rule"],
            "why it is innocent": rules["why"],
        }
    )


def summation(summary: pd.DataFrame) -> pd.DataFrame:
    """`summation.summary`: worst use of the bound and rejections, for both profiles."""
    by = summary.columns[0]
    return pd.DataFrame(
        {
            by: [words(str(v)) for v in summary[by]],
            "sums": summary["cases"],
            "worst ratio, derived": [_power(v) for v in summary["worst_derived"]],
            "rejected, derived": summary["rejected"],
            "worst ratio, paper": [_power(v) for v in summary["worst_paper"]],
            "rejected, paper": summary["rejected_by_paper"],
        }
    )


def carry(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The carry sweep by operator and length."""
    swept = [r for r in rows if r["pattern"].startswith("sweep:")]
    return pd.DataFrame(
        [
            {
                "operator": words(r["operator"]),
                "N": int(r["length"]),
                "float32 carry": _power(r["levels"]["honest"]),
                "threshold": _power(r["threshold"]),
                "bfloat16 carry": _power(r["levels"]["bfloat16"]),
                "float16 carry": _power(r["levels"]["float16"]),
                "float16, each term": _power(r["per_term"]["float16"]),
                "thin": bool(r["thin"]),
            }
            for r in sorted(swept, key=lambda r: (r["operator"], r["length"]))
        ]
    )


def operating_points(
    sides: Mapping[str, tuple[Sequence[Any], Sequence[Any]]],
    equivalents: dict[str, dict[str, Any]],
    checks: Sequence[dict[str, Any]],
    spared: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """A point for each profile of the verifier, then for the usual check at each of its tolerances.

    Args:
        sides: name -> (lines of honest candidates, lines of mutants); an empty side leaves the point out.
        equivalents: `mutants.equivalents.recorded`.
        checks, spared: the usual check on the mutants and on the honest candidates.
    """
    from lethe.evidence.common_check import TOLERANCES
    from lethe.evidence.honest import report as specificity
    from lethe.evidence.mutants import report as sensitivity
    from lethe.evidence.mutants.report import Rate

    points = []
    last = pd.DataFrame()
    for name, (honest, mutants) in sides.items():
        if not honest or not mutants:
            continue
        df = sensitivity.frame(mutants, equivalents, checks)
        last = df if last.empty else last
        kill = sensitivity.rates(df)["verifier, equivalents left out"]
        points.append(_point(name, kill, specificity.summarise(honest).rate))
    alive = last[[e is not True for e in last["equivalent"]]] if not last.empty else last
    for tolerance in TOLERANCES:
        accepted = [a for a in alive.get(f"accepted_{tolerance:g}", ()) if a is not None]
        if not accepted or not spared:
            continue
        passed = [c["accepted"][f"{tolerance:g}"] for c in spared]
        kill = Rate(sum(not a for a in accepted), len(accepted))
        rejected = sum(not a for a in passed)
        points.append(
            _point(f"allclose {tolerance:g}, five trials", kill, specificity.Rate.of(rejected, len(passed)))
        )
    return points


def _point(name: str, kill: Rate, spared: Any) -> dict[str, Any]:
    return {
        "name": name,
        "killed": kill.killed,
        "of": kill.of,
        "kill": kill.rate,
        "kill_interval": kill.interval,
        "n": spared.n,
        "rejected": spared.rejected,
        "false": spared.rejected / spared.n if spared.n else float("nan"),
        "false_upper": spared.upper,
    }


def points(found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The operating points as a table."""
    return pd.DataFrame(
        {
            "check": [p["name"] for p in found],
            "mutants rejected": [f"{p['killed']:,} of {p['of']:,}" for p in found],
            "rate (95% interval)": [f"{rate(p['kill'])} ({interval(*p['kill_interval'])})" for p in found],
            "honest rejected": [f"{p['rejected']:,} of {p['n']:,}" for p in found],
            "at most": [small_rate(p["false_upper"]) for p in found],
        }
    )


def stability(sides: Mapping[str, Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """Rows compared in each experiment, and how the comparisons ended.

    Samples hold ``row``, ``runs`` and ``outcome`` (the worst of its comparisons).
    """
    rows = []
    for name, samples in sides.items():
        ends = [s["outcome"] for s in samples]
        racy = sum(bool(s["racy"]) for s in samples if s["outcome"] != "identical")
        rows.append(
            {
                "experiment": name,
                "rows": len(samples),
                "runs": max((s["runs"] for s in samples), default=0),
                "identical": ends.count("identical"),
                "same statuses, another number": ends.count("detail"),
                "another verdict": ends.count("status") + ends.count("missing"),
                "of those that differ, kernel itself varies": racy,
            }
        )
    return pd.DataFrame(rows)


def cost(audits: Mapping[str, Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """What each audit took: rows, their wall times added up (h), the median and the longest row (s).

    The sum is what one worker would need; several share it. Audits without lines are left out.
    """
    rows = []
    for name, samples in audits.items():
        walls = [float(line["timing"]["wall"]) for line in samples]
        if walls:
            rows.append(
                {
                    "audit": name,
                    "rows": f"{len(walls):,}",
                    "one worker (h)": f"{sum(walls) / 3600:.2f}",
                    "median row (s)": f"{statistics.median(walls):.1f}",
                    "longest row (s)": f"{max(walls):.0f}",
                }
            )
    columns = ["audit", "rows", "one worker (h)", "median row (s)", "longest row (s)"]
    return pd.DataFrame(rows, columns=columns)
