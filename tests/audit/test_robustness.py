"""What is left of a headline when something is taken away, what an audit costs, and clustered intervals."""

from __future__ import annotations

import math

import pytest

from lethe.audit import cost, report, robustness
from lethe.audit.ledger import Entry
from lethe.audit.statistics import cluster_interval, wilson
from tests.paper.lines import line


def with_findings(order: int, *found: tuple[str, ...], family: str = "norm", problem: str = "p") -> dict:
    """A judged line with one finding for each (gate, mechanism, channel[, case])."""
    made = line(0)
    made.update(id=f"row{order}", order=order, family=family, problem=problem, accepted=True)
    gates: dict[str, list[dict]] = {}
    for gate, mechanism, channel, *case in found:
        extra = {mechanism: True} if mechanism in ("maxnum", "detached") else {}
        finding = {
            "case": case[0] if case else "c",
            "channel": channel,
            "mechanism": {"maxnum": "swallowed", "detached": "missing_gradient"}.get(mechanism, mechanism),
            "message": "m",
            "extra": extra,
        }
        gates.setdefault(gate, []).append(finding)
    for gate in made["verdict"]["gates"]:
        gate["status"] = "fail" if gate["gate"] in gates else "pass"
        gate["findings"] = gates.get(gate["gate"], [])
    made["verdict"]["integrity"] = []
    made["verdict"]["status"] = "judged"
    return made


ROWS = [
    with_findings(0, ("EXC-01", "maxnum", "T"), problem="a"),
    with_findings(1, ("EXC-01", "swallowed", "T"), problem="a"),
    with_findings(2, ("CMP-03", "rejects", "T"), problem="b"),
    with_findings(3, ("CMP-03", "value", "B"), ("ORD-03", "value", "B"), problem="b"),
    with_findings(4, ("PRC-02", "value", "B"), problem="c"),
    with_findings(5, ("CMP-01", "value", "B"), problem="level2/9_Matmul_Subtract"),
    with_findings(6, ("PRC-01", "tf32", "B"), family="matmul"),
    with_findings(7, problem="d"),
    with_findings(8, ("CMP-03", "nonfinite", "B", "layout:transposed"), problem="d"),
]


def test_a_row_stays_convicted_while_anything_else_speaks_against_it():
    table = robustness.strips(report.frame(ROWS)).set_index("without")
    assert dict(table["rows"]) == {
        "nothing": 8,
        "set-aside gates": 7,
        "PRC-01": 7,
        "TF32 in convolutions": 8,
        "EXC-02": 8,
        "IEEE maxNum": 7,
        "shape refusals": 7,
        "memory layouts": 7,
        "ORD-01": 8,
        "detached launches": 8,
        "CMP-02": 8,
        "integrity probes": 8,
        "matrix products": 6,
        "all of these": 2,
    }
    assert table.loc["matrix products", "of"] == 7 and table.loc["nothing", "of"] == 9
    low, high = wilson(8, 9)
    assert (table.loc["nothing", "low"], table.loc["nothing", "high"]) == (low, high)


def test_detached_launches_can_be_taken_away_alone():
    rows = [
        with_findings(0, ("CMP-02", "detached", "T")),
        with_findings(1, ("CMP-02", "missing_gradient", "T")),
        with_findings(2, ("CMP-02", "detached", "T"), ("CMP-01", "value", "B")),
    ]
    table = robustness.strips(report.frame(rows)).set_index("without")
    assert dict(table["rows"])["detached launches"] == 2 and dict(table["rows"])["CMP-02"] == 1


def test_tf32_is_taken_away_where_torch_itself_may_use_it():
    tf32 = ("PRC-01", "tf32 or float16", "B"), ("CMP-01", "value", "B")
    rows = [
        with_findings(0, *tf32, problem="level1/67_conv_standard_1D"),
        with_findings(1, *tf32, ("EXC-01", "swallowed", "T"), problem="level2/1_Conv2D_ReLU_BiasAdd"),
        with_findings(2, ("PRC-01", "float16", "B"), problem="level1/67_conv_standard_1D"),
        with_findings(3, *tf32, problem="level1/1_Square_matrix_multiplication_"),
    ]
    table = robustness.strips(report.frame(rows)).set_index("without")
    assert dict(table["rows"])["nothing"] == 4 and dict(table["rows"])["TF32 in convolutions"] == 3


def test_two_audits_of_the_same_rows_are_compared_row_by_row():
    other = [ROWS[0], with_findings(1, problem="a"), *ROWS[2:6], with_findings(7, ("CMP-01", "value", "B"))]
    table = robustness.paired(report.frame(ROWS), report.frame(other)).set_index("what")
    assert dict(table.loc["any contract"]) == {
        "rows": 7,
        "both": 5,
        "first_only": 1,
        "second_only": 1,
        "neither": 0,
    }
    assert tuple(table.loc["EXC-01", ["rows", "both", "first_only"]]) == (7, 1, 1)


def test_a_cluster_that_stands_and_falls_together_counts_as_one():
    hits = [True] * 50 + [False] * 50
    apart = cluster_interval(hits, range(100))
    together = cluster_interval(hits, [i // 50 for i in range(100)])
    assert wilson(50, 100) == pytest.approx(apart, abs=0.015)
    assert together == (0.0, 1.0)
    assert cluster_interval(hits, range(100)) == apart
    assert all(map(math.isnan, cluster_interval([], [])))
    with pytest.raises(ValueError, match="2 rows in 1 clusters"):
        cluster_interval([True, False], ["a"])


def test_cost_is_of_rows_that_both_sides_finished():
    audit = [with_findings(i) for i in range(3)]
    for i, made in enumerate(audit):
        made["timing"] = {
            "wall": 2.0 + i,
            "gates": {"CMP-01": 1.0, "EXC-01": 0.5},
            "elapsed": {"reference": 0.3},
        }
    audit[2]["verdict"]["status"] = "timed_out"
    rows = cost.samples(audit, "dlblas_accepted")
    checks = [
        {
            "corpus": made["corpus"],
            "id": made["id"],
            "variant": "later",
            "implementation": "theirs",
            "outcome": {"seconds": s},
        }
        for made, s in zip(audit, (1.0, None, 1.0), strict=True)
    ]
    (found,) = cost.against_check(rows, checks).to_dict("records")
    assert found == {
        "variant": "later",
        "compiles": False,
        "rows": 1,
        "audit": 2.0,
        "check": 1.0,
        "ratio": 2.0,
        "median_ratio": 2.0,
    }
    shares = cost.breakdown(rows).set_index("part")["share"]
    assert shares["CMP-01"] == pytest.approx(3 / 9) and shares.sum() == pytest.approx(1.0)
    assert shares[cost.REFERENCE] == pytest.approx(0.1)


def test_the_price_of_a_corpus_follows_from_rows_an_hour():
    entries = [Entry("s", 14, 100, 60.0, 900.0, True, 16), Entry("s", 14, 50, 30.0, 450.0, False, 16)]
    table = cost.throughput([*entries, Entry("resumed", 14, 0, 3.0)])
    (found,) = table.to_dict("records")
    assert found["rows_per_hour"] == pytest.approx(6000) and found["core_seconds"] == pytest.approx(9.0)
    price = cost.price(table, "s", 6000)
    assert price == {"device_hours": pytest.approx(1.0), "core_hours": pytest.approx(15.0)}
    assert cost.price(table, "other") is None
