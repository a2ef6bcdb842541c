"""The tables of the rigor gap: of nothing, and of a campaign made up for the purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lethe import plotting, provenance
from lethe.audit import agreement, measured, report
from lethe.paper import differential_tables, rigor_tables
from tests.audit.test_review import campaign
from tests.audit.test_robustness import ROWS, with_findings

NOTHING = measured.Campaign(Path("nowhere"))


def says_so(table) -> bool:
    return table.to_dict("list") == {"state": [measured.NOT_RECORDED]}


def test_where_nothing_is_recorded_every_table_and_clause_says_so():
    empty, checks = NOTHING.audit("dlblas_accepted"), NOTHING.checks("dlblas")
    by = differential_tables.judge_of(checks)
    tables = [
        rigor_tables.headline({"dlblas": empty}),
        *rigor_tables.of_corpus(empty).values(),
        rigor_tables.paired(empty, empty, ("a", "b")),
        rigor_tables.sensitivity(empty),
        rigor_tables.gate_times(NOTHING),
        rigor_tables.throughput(NOTHING),
        rigor_tables.against_check(NOTHING),
        differential_tables.implementations(checks),
        differential_tables.contingency(empty, checks, by),
        differential_tables.in_cell(empty, checks, by),
        differential_tables.reverse(empty, checks, by),
        differential_tables.review_classes([]),
        differential_tables.review_rows([]),
    ]
    assert all(says_so(table) for table in tables)
    clauses = [rigor_tables.clause(empty, what) for what in rigor_tables.WHAT]
    clauses += [rigor_tables.verdict_on_claim(empty, 0.05), rigor_tables.price(NOTHING)]
    clauses += [differential_tables.review_clause([]), NOTHING.origin("dlblas_accepted_audit")]
    assert set(clauses) == {measured.NOT_RECORDED}
    plotting.moving_rate(rigor_tables.rates(empty))


def test_the_headline_is_of_judged_accepted_rows_with_both_intervals():
    df = report.frame(ROWS)
    table = rigor_tables.headline({"dlblas": df, "cuda_l1": report.frame([])})
    assert list(table["rows"]) == [8, 7, 2] and set(table["of"]) == {9}
    assert table["rate (95%, Wilson)"].iloc[0] == "88.9% (56.5% to 98.0%)"
    assert list(table["published (B200, drkernel)"]) == ["62.1%", "–", "39.5%"]
    assert rigor_tables.clause(df, "any contract").startswith("8 of 9, 88.9%")


def test_what_does_not_follow_from_the_published_rows_is_named():
    found = rigor_tables.recomputed().to_dict("records")
    assert [r["found"] for r in found[:3]] == ["97", "1", "16"]
    (broken,) = found[3:]
    assert "518" in broken["what"] and "not_auditable" in broken["note"]
    assert rigor_tables.recomputed_clause().startswith("of 114 printed numbers 97 follow from the 3,134 ")


def test_the_floor_has_both_intervals():
    table = rigor_tables.floor(report.frame(ROWS)).set_index("floor")
    strict = table.loc["strict"]
    assert (
        " to " in strict["95% by problem"] and strict["95% by problem"] not in strict["rate (95% interval)"]
    )
    assert list(table.columns)[-1] == "published (B200)"


@pytest.mark.parametrize(
    ("convicted", "of", "says"),
    [
        (30, 40, "the claim stands"),
        (3, 40, "the claim stands, but the interval reaches below the criterion"),
        (1, 40, "the claim ends here: the rate is below the criterion"),
    ],
)
def test_the_claim_by_its_kill_criterion(convicted, of, says):
    rows = [with_findings(i, ("CMP-01", "value", "B"), problem=f"p{i}") for i in range(convicted)]
    rows += [with_findings(i, problem=f"p{i}") for i in range(convicted, of)]
    assert rigor_tables.verdict_on_claim(report.frame(rows), 0.05) == says


def test_the_differential_prints_cells_beside_published_ones():
    audit, checks = campaign()
    table = differential_tables.contingency(audit, checks, "theirs").set_index("cell")
    column = "paper-era (48642c5c)"
    assert table.loc["the check accepts, a contract is broken", column] == "60"
    assert table.loc["the check rejects, every contract holds", column] == "3"
    assert table.loc["the check accepts, a contract is broken", "published, paper era"] == "1,487"
    cell = differential_tables.in_cell(audit, checks, "theirs").set_index("gate")
    assert cell.loc["CMP-01", "rows, paper-era (48642c5c)"] == 54
    assert len(differential_tables.reverse(audit, checks, "theirs")) == 3
    assert agreement.implementations(checks)["pairs"].sum() == 0


def test_a_gpu_is_preferred_to_a_cpu(tmp_path):
    for device in ("cpu", "h200"):
        file = tmp_path / device / "dlblas_accepted_audit.json"
        provenance.record(
            file,
            experiment="e",
            samples=[],
            parameters={},
            script=__file__,
            on=provenance.Device("x", device),
        )
    folders = [tmp_path / "h200", tmp_path / "cpu"]
    assert measured.choose(folders).folder.name == "h200"
    assert measured.choose(folders[::-1]).folder.name == "cpu"
    assert measured.choose([tmp_path / "none", tmp_path / "cpu"]).folder.name == "cpu"
    assert [p.parent.name for p in measured.recorded_audits(tmp_path)] == ["h200", "cpu"]
    assert json.loads(measured.recorded_audits(tmp_path)[0].read_text())["samples"] == []


def test_each_mistake_names_a_rule_and_a_test_that_exist():
    from lethe.verifier.fairness import RULES

    noted = json.loads((provenance.ROOT / "data" / "review" / "mistakes.json").read_text())["mistakes"]
    assert noted and all(m["rule"] in RULES and (provenance.ROOT / m["test"]).is_file() for m in noted)
    table = differential_tables.mistakes(noted)
    assert len(table) == len(noted) and not table.isin([""]).any().any()
