"""The audit's tables as the book prints them, on made-up lines."""

from __future__ import annotations

import pytest

from lethe.audit import report
from lethe.paper import tables
from lethe.verifier.catalog import IDS
from tests.paper.lines import write


@pytest.fixture(scope="module")
def df(tmp_path_factory):
    return report.load(write(tmp_path_factory.mktemp("audit") / "house.jsonl", rows=60))


def test_the_headline_is_consistent_with_the_funnel(df):
    numbers, funnel = tables.headline(df), report.funnel(df)
    assert numbers["rows"] == "60"
    assert numbers["accepted"] == str(funnel["rows"].iloc[-3])
    assert numbers["violating"] == str(funnel["rows"].iloc[-2])
    assert numbers["floor"] == str(funnel["rows"].iloc[-1])
    assert all(isinstance(text, str) for text in numbers.values())


def test_every_gate_has_a_row_and_tolerance_free_failures_are_part_of_the_failures(df):
    table = tables.gates(df)
    assert tuple(table["gate"]) == IDS
    assert (table["fail_T"] <= table["fail"]).all()
    assert (table["rate_T"] <= table["rate"] + 1e-12).all()
    assert table.loc[table["gate"] == "EXC-01", "fail_T"].item() > 0


def test_gates_that_were_idle_in_the_published_audit_show_a_dash(df):
    table = tables.gates_table(df).set_index("gate")
    assert table.loc["CMP-02", "published (B200)"] == "–"
    assert table.loc["EXC-01", "published (B200)"] == "34.2%"
    assert "ORD-03 †" in table.index


@pytest.mark.parametrize(
    "make",
    [
        tables.funnel_table, tables.gates_table, tables.classes_table,
        tables.mechanisms_table, tables.floor_table, tables.statuses_table,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_tables_survive_an_audit_without_any_judged_row(make, tmp_path):
    empty = report.load(write(tmp_path / "house.jsonl", rows=0))
    assert make(empty) is not None
