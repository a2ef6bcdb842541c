"""The tables of "Is the referee right?" that are more than a rename."""

from __future__ import annotations

from lethe.paper import evidence_tables


def test_the_cost_of_an_audit_is_the_time_of_its_rows():
    walls = [1.0, 2.0, 7197.0]
    table = evidence_tables.cost({"mutants": [{"timing": {"wall": w}} for w in walls], "not run": []})
    assert table.to_dict("records") == [
        {
            "audit": "mutants",
            "rows": "3",
            "one worker (h)": "2.00",
            "median row (s)": "2.0",
            "longest row (s)": "7197",
        }
    ]
    assert evidence_tables.cost({}).empty
