"""The tables of the chapter "The rigor gap": a recorded campaign beside what was published.

Everything is computed from recorded lines. Where nothing is recorded a table is one line that says so, and a
clause of the prose is `NOT_RECORDED`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from lethe.audit import report, robustness
from lethe.audit.floor import in_floor
from lethe.audit.measured import NOT_RECORDED
from lethe.audit.statistics import cluster_interval, wilson
from lethe.paper import tables
from lethe.paper.tables import DASH, interval, rate, ratio, words
from lethe.verifier.catalog import SET_ASIDE

if TYPE_CHECKING:
    from lethe.audit.measured import Campaign

CORPORA = {"dlblas": "DLBlas OpenEvolve, accepted", "cuda_l1": "CUDA-L1, H100 set"}


def or_note(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """The table, or one line that says that nothing is recorded."""
    return table if rows else pd.DataFrame({"state": [NOT_RECORDED]})


# ---------------------------------------------------------------- headline

WHAT = {
    "any contract": ("any_violation_rate", lambda r: bool(r["violated"])),
    "load-bearing gates alone": (None, lambda r: robustness.convicted(r, _set_aside)),
    "tolerance-free floor": ("tolerance_free_rate", lambda r: in_floor(r["channels"])),
}
"""What is counted: the published key and, for a record of `report.frame`, whether it counts."""


def _set_aside(f: Mapping[str, Any]) -> bool:
    return f["gate"] in SET_ASIDE


def counted(df: pd.DataFrame, what: str) -> dict[str, Any]:
    """rows, of, rate, Wilson's low and high, and cluster_low and cluster_high, over the denominator."""
    records = report.denominator(df).to_dict("records")
    hits = [WHAT[what][1](r) for r in records]
    low, high = wilson(sum(hits), len(hits))
    cluster_low, cluster_high = cluster_interval(hits, [r["problem"] for r in records])
    share = sum(hits) / len(hits) if hits else float("nan")
    return {
        "rows": sum(hits),
        "of": len(hits),
        "rate": share,
        "low": low,
        "high": high,
        "cluster_low": cluster_low,
        "cluster_high": cluster_high,
    }


def headline(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Each corpus and each way of counting, with both intervals and the published rate."""
    a = report.published()["audit"]
    rows = []
    for name, df in frames.items():
        for what, (key, _) in WHAT.items():
            found = counted(df, what)
            if not found["of"]:
                continue
            rows.append(
                {
                    "corpus": CORPORA[name],
                    "counted": what,
                    "rows": found["rows"],
                    "of": found["of"],
                    "rate (95%, Wilson)": ratio(found),
                    "95% by problem": interval(found["cluster_low"], found["cluster_high"]),
                    "published (B200, drkernel)": rate(a[key]) if key else DASH,
                }
            )
    return or_note(pd.DataFrame(rows), len(rows))


def clause(df: pd.DataFrame, what: str) -> str:
    """One way of counting as a clause of the prose."""
    found = counted(df, what)
    if not found["of"]:
        return NOT_RECORDED
    by_problem = interval(found["cluster_low"], found["cluster_high"])
    return (
        f"{found['rows']:,} of {found['of']:,}, {ratio(found)} by Wilson's interval and {by_problem} when "
        "problems are resampled"
    )


def verdict_on_claim(df: pd.DataFrame, criterion: float) -> str:
    """Whether the claim survives its kill criterion: the rate itself, and the lower end of its interval."""
    found = counted(df, "any contract")
    if not found["of"]:
        return NOT_RECORDED
    if found["rate"] < criterion:
        return "the claim ends here: the rate is below the criterion"
    sure = min(found["low"], found["cluster_low"]) >= criterion
    return "the claim stands" + ("" if sure else ", but the interval reaches below the criterion")


# ---------------------------------------------------------------- tables of one corpus


def of_corpus(df: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Name -> table: funnel, gates, classes, mechanisms, floor, channels, strips, statuses."""
    made = {
        "funnel": tables.funnel_table,
        "gates": tables.gates_table,
        "classes": tables.classes_table,
        "mechanisms": tables.mechanisms_table,
        "floor": floor,
        "channels": channels,
        "strips": strips,
        "statuses": tables.statuses_table,
    }
    return {name: or_note(make(df), 1) if len(df) else or_note(df, 0) for name, make in made.items()}


def floor(df: pd.DataFrame) -> pd.DataFrame:
    """The floor and its variants with both intervals, beside the published rates."""
    table = tables.floor_table(df)
    both = [interval(r["cluster_low"], r["cluster_high"]) for r in report.floor(df).to_dict("records")]
    table.insert(len(table.columns) - 1, "95% by problem", both)
    return table


def channels(df: pd.DataFrame) -> pd.DataFrame:
    """Rows by tolerance-free channel, beside the published counts."""
    published = report.published()["audit"]["floor_channel_rows"]
    names = {"EXC-02": "EXC-02 (not in the floor)"}
    table = report.channel_table(df)
    return pd.DataFrame(
        {
            "channel": [words(c) for c in table["channel"]],
            "rows": table["rows"],
            "no other": table["only"],
            "published (B200)": [published.get(names.get(c, c), DASH) for c in table["channel"]],
        }
    )


def strips(df: pd.DataFrame) -> pd.DataFrame:
    """`robustness.strips`, beside the published rates."""
    a = report.published()["audit"]
    published = {
        "nothing": a["any_violation_rate"],
        "matrix products": a["without_matmul_rate"],
        "all of these": a["all_contested_stripped_rate"],
    }
    rows = robustness.strips(df).to_dict("records")
    return pd.DataFrame(
        {
            "taken away": [r["without"] for r in rows],
            "because": [r["why"] for r in rows],
            "rows": [r["rows"] for r in rows],
            "of": [r["of"] for r in rows],
            "rate (95%, Wilson)": [ratio(r) for r in rows],
            "95% by problem": [interval(r["cluster_low"], r["cluster_high"]) for r in rows],
            "published (B200)": [rate(published.get(r["without"], float("nan"))) for r in rows],
        }
    )


def paired(first: pd.DataFrame, second: pd.DataFrame, names: tuple[str, str]) -> pd.DataFrame:
    """`robustness.paired` with the names of both sides; gates that neither side fails are left out."""
    table = robustness.paired(first, second)
    rows = table[(table["both"] + table["first_only"] + table["second_only"] > 0) | (table["rows"] > 0)]
    shown = pd.DataFrame(
        {
            "counted": rows["what"],
            "rows": rows["rows"],
            "both convict": rows["both"],
            f"{names[0]} alone": rows["first_only"],
            f"{names[1]} alone": rows["second_only"],
            "neither": rows["neither"],
        }
    )
    return or_note(shown, int(table["rows"].iloc[0]))


def sensitivity(rejected: pd.DataFrame) -> pd.DataFrame:
    """Rows that their own harness rejected: what the verifier makes of them."""
    decided = rejected[rejected["decided"].astype(bool)]
    violated = int(decided["violated"].sum())
    low, high = wilson(violated, len(decided))
    table = pd.DataFrame(
        [
            ("rows judged", len(rejected), DASH),
            ("a verdict was reached", len(decided), DASH),
            (
                "convicted as well",
                violated,
                f"{rate(violated / len(decided))} ({interval(low, high)})" if len(decided) else DASH,
            ),
        ],
        columns=["DLBlas OpenEvolve, rejected", "rows", "rate (95%, Wilson)"],
    )
    return or_note(table, len(rejected))


# ---------------------------------------------------------------- cost


def gate_times(campaign: Campaign, file: str = "dlblas_accepted") -> pd.DataFrame:
    """Mean seconds of each gate and its share of a row's wall time."""
    from lethe.audit import cost

    rows = [s for s in campaign.samples("audit_cost") if s["file"] == file]
    table = cost.breakdown(rows)
    shown = pd.DataFrame(
        {
            "part": table["part"],
            "seconds a row": [f"{s:.2f}" for s in table["seconds"]],
            "share": [rate(s) for s in table["share"]],
        }
    )
    return or_note(shown, len(rows))


def throughput(campaign: Campaign) -> pd.DataFrame:
    """What each step took."""
    from lethe.audit import cost

    table = cost.throughput(campaign.steps())
    shown = pd.DataFrame(
        {
            "step": [words(s) for s in table["step"]],
            "rows or checks": table["rows"],
            "workers": table["workers"],
            "hours": [f"{h:.2f}" for h in table["hours"]],
            "rows an hour": [f"{r:,.0f}" for r in table["rows_per_hour"]],
            "core-seconds a row": [f"{s:.1f}" for s in table["core_seconds"]],
        }
    )
    return or_note(shown, len(table))


def _against_check(campaign: Campaign) -> tuple[str, pd.DataFrame]:
    """Which implementation was timed, and `cost.against_check` of the accepted rows."""
    from lethe.audit import cost

    rows = [s for s in campaign.samples("audit_cost") if s["file"] == "dlblas_accepted"]
    checks = campaign.samples("dlblas_differential")
    by = "theirs" if any(c["implementation"] == "theirs" for c in checks) else "ours"
    return by, cost.against_check(rows, checks, by)


def times_the_check(campaign: Campaign) -> str:
    """What a verdict costs in units of a check that compiles, as a clause."""
    _, table = _against_check(campaign)
    found = table[table["compiles"].astype(bool)]
    if found.empty:
        return NOT_RECORDED
    r = found.iloc[0]
    return f"{r['ratio']:.1f} times the wall time of the five-trial check on the same {int(r['rows']):,} rows"


def against_check(campaign: Campaign) -> pd.DataFrame:
    """The price of a verdict against KernelBench's five trials, on the same rows."""
    by, table = _against_check(campaign)
    shown = pd.DataFrame(
        {
            "check": [f"{v} ({by})" for v in table["variant"]],
            "compiles": ["yes" if c else "no, it was done" for c in table["compiles"]],
            "rows": table["rows"],
            "audit, s": [f"{s:.1f}" for s in table["audit"]],
            "check, s": [f"{s:.1f}" for s in table["check"]],
            "ratio of sums": [f"{r:.1f}" for r in table["ratio"]],
            "median ratio": [f"{r:.1f}" for r in table["median_ratio"]],
        }
    )
    return or_note(shown, len(table))


def price(campaign: Campaign) -> str:
    """What the published number of trajectories would cost at the measured rate, as a clause."""
    from lethe.audit import cost

    found = cost.price(cost.throughput(campaign.steps()), "dlblas_accepted")
    if found is None:
        return NOT_RECORDED
    return (
        f"{found['device_hours']:.1f} device-hours and {found['core_hours']:,.0f} core-hours for "
        f"{cost.PUBLISHED_TRAJECTORIES:,} rows"
    )


def rates(df: pd.DataFrame) -> Sequence[dict[str, Any]]:
    """The floor and its variants as points for the figure: name, rate, low, high, published."""
    a = report.published()["audit"]
    published = {
        "strict": a["tolerance_free_rate"],
        "+ shape rejection": a["floor_with_shape_rejection_rate"],
        "+ subnormals (EXC-02)": a["floor_with_exc02_rate"],
    }
    floor = [
        {
            "name": f"floor, {r['variant']}",
            **{k: r[k] for k in ("rate", "low", "high")},
            "published": published.get(r["variant"]),
            "tolerance_free": True,
        }
        for r in report.floor(df).to_dict("records")
    ]
    shown = {
        "nothing": a["any_violation_rate"],
        "matrix products": a["without_matmul_rate"],
        "all of these": a["all_contested_stripped_rate"],
    }
    strips_ = [
        {
            "name": "any contract" if r["without"] == "nothing" else f"any, without {r['without']}",
            **{k: r[k] for k in ("rate", "low", "high")},
            "published": shown.get(r["without"]),
            "tolerance_free": False,
        }
        for r in robustness.strips(df).to_dict("records")
    ]
    return [*floor, *strips_]


# ---------------------------------------------------------------- the published rows

FOLLOWS = {True: "follow", False: "do not follow", None: "cannot be told from the rows"}


def recomputed() -> pd.DataFrame:
    """What the published row verdicts give for the numbers that were printed of them."""
    checks = report.recomputed()["checks"]
    counted = Counter(c["follows"] for c in checks)
    rows = [(f"printed numbers that {FOLLOWS[k]}", f"{counted[k]:,}", "") for k in FOLLOWS]
    rows += [
        (f"does not follow: {c['key']}", f"printed {c['printed']}, rows give {c['recomputed']}", c["note"])
        for c in checks
        if c["follows"] is False
    ]
    return pd.DataFrame(rows, columns=["what", "found", "note"])


def recomputed_clause() -> str:
    """The same as a clause of the prose."""
    found = report.recomputed()
    counted = Counter(c["follows"] for c in found["checks"])
    return (
        f"of {len(found['checks']):,} printed numbers {counted[True]:,} follow from the {found['rows']:,} "
        f"published rows, {counted[False]:,} do not, {counted[None]:,} are about what the rows do not hold"
    )
