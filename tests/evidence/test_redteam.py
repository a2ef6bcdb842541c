"""The red team: every named cheat is rejected by the gate it was written for, and its honest twin is clean.

Here each attack is judged on one operator; all rows are ``lethe audit --corpus redteam --quick``.
"""

from __future__ import annotations

import ast
import json

import pytest

from lethe.audit import lines
from lethe.audit.corpora import open_corpus
from lethe.audit.lines import Line
from lethe.audit.pool import JudgeSettings
from lethe.evidence.redteam import CHEATS, NAMED, Cheat, load
from lethe.evidence.redteam.matrix import COLUMNS, by_attack, counts, matrix, twins
from lethe.evidence.specimens import INTEGRITY, Kind, is_caught, is_rejected
from lethe.verifier import catalog
from lethe.verifier.judge import Judge
from lethe.verifier.verdict import Verdict

SETTINGS = JudgeSettings(device="cpu", quick=True)
ATTACKS = tuple(dict.fromkeys(c.name for c in CHEATS if c.needs is None))
PUBLIC = (
    "zeros_below_atol",
    "zeroes_its_inputs",
    "returns_uninitialised",
    "caches_by_identity",
    "right_ten_times",
    "searches_gc",
    "patches_comparison",
    "patches_timers",
    "patches_rng",
    "forges_the_result",
    "exits_0_early",
    "forks_and_outlives",
    "decoy_kernel",
    "never_launched",
    "reads_past_the_end",
    "ignores_strides",
    "tf32_inside_fp32",
    "narrow_offset_overflow",
)
"""What has beaten public harnesses."""
FEWER = {"tf32_in_dot"}
"""Attacks that make sense on fewer than three operators."""
CHEAPEST = (
    *("scale", "negate", "sigmoid", "transpose", "row_sum", "softmax"),
    *("scale_half", "row_sum_half", "matmul", "matmul_half"),
)
"""Operators by the cost of their reference."""


def one_of(attack: str) -> Cheat:
    """The attack's cheat on the operator with the cheapest reference."""
    return min((c for c in CHEATS if c.name == attack), key=lambda c: CHEAPEST.index(c.ground.name))


FIRST = {one_of(a).gate: a for a in reversed(NAMED)}
QUICK = tuple(a for a in NAMED if a in FIRST.values())
"""The first named cheat of each gate; the others are slow."""


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


def judged(judge: Judge, cheat: Cheat) -> tuple[Line, Line]:
    """Lines of a cheat and its twin; both are judged whole, as an audit does."""
    return tuple(  # type: ignore[return-value]
        lines.make(row, judge.verify(row.problem, row.candidate), SETTINGS.record(), 0.0)
        for row in cheat.rows()
    )


def said(line: Line) -> str:
    v: Verdict = lines.verdict_of(line)
    worst = [(g.gate, str(g.status), g.detail or [f.message for f in g.findings[:1]]) for g in v.gates]
    return f"{line['id']}: {v.status} {v.message} {[w for w in worst if w[1] in ('fail', 'error')]}"


# ---------------------------------------------------------------- what the corpus holds


def test_every_cheat_of_the_public_record_is_there():
    assert len(NAMED) == len(set(NAMED)) == 19
    assert set(NAMED) <= set(ATTACKS)
    assert set(PUBLIC) <= set(ATTACKS)


def test_every_attack_is_tried_on_three_operators_where_it_makes_sense():
    tried = {a: {c.ground.name for c in CHEATS if c.name == a} for a in ATTACKS}
    assert {a for a, grounds in tried.items() if len(grounds) < 3} <= FEWER
    wide = {a for a in ATTACKS if {"softmax", "row_sum"} & tried[a] and "matmul" in tried[a]}
    assert len(wide) > len(ATTACKS) // 2


def test_every_cheat_has_a_twin_that_differs_in_its_own_lines_only():
    for cheat in CHEATS:
        bad, good = cheat.rows()
        assert bad.extra["twin"] == good.id == f"{bad.id}/honest" and good.extra["twin"] == bad.id
        assert bad.extra["kind"] == Kind.CHEAT and good.extra["kind"] == Kind.HONEST
        assert bad.extra["gate"] and good.extra["gate"] is None
        assert bad.problem is good.problem and bad.candidate.sha256 != good.candidate.sha256
        ast.parse(bad.candidate.source)
        ast.parse(good.candidate.source)
        shared = set(bad.candidate.source.splitlines()) & set(good.candidate.source.splitlines())
        own = [x for x in bad.candidate.source.splitlines() if x not in shared]
        assert 0 < len(own) <= 8, (cheat.id, own)


def test_corpus_opens_by_name_in_the_same_order_each_time():
    first, second = open_corpus("redteam", cuda=False), load(cuda=False)
    assert [r.id for r in first.rows()] == [r.id for r in second.rows()]
    assert len(first) == 2 * sum(c.needs is None for c in CHEATS)
    assert any("CUDA" in note for note in first.notes)
    assert len(load(cuda=True)) == 2 * len(CHEATS)
    assert [r.extra["kind"] for r in load(limit=2, cuda=False).rows()] == ["cheat", "honest"] * 2
    for row in first.rows():
        json.dumps(row.extra)


# ---------------------------------------------------------------- what the judge says


@pytest.mark.parametrize("attack", QUICK)
def test_named_cheat_is_caught_by_its_gate_and_its_twin_is_clean(judge, attack: str):
    bad, good = judged(judge, one_of(attack))
    assert is_caught(bad), said(bad)
    assert lines.verdict_of(good).clean, said(good)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [a for a in ATTACKS if a not in QUICK])
def test_attack_is_caught_by_its_gate_and_its_twin_is_clean(judge, attack: str):
    bad, good = judged(judge, one_of(attack))
    assert is_caught(bad), said(bad)
    assert lines.verdict_of(good).clean, said(good)


# ---------------------------------------------------------------- the table


def test_matrix_shows_each_gate_and_marks_the_target(judge):
    found = [line for a in ("wrong_shape_output", "exits_0_early") for line in judged(judge, one_of(a))]
    table = matrix(found)
    assert list(table.index) == ["wrong_shape_output/scale", "exits_0_early/scale"]
    assert set(COLUMNS) == {*catalog.IDS, INTEGRITY} and set(COLUMNS) <= set(table.columns)
    shape, early = table.loc["wrong_shape_output/scale"], table.loc["exits_0_early/scale"]
    assert shape["CMP-01"] == "fail" and shape["RES-02"] == "n/a" and shape["ORD-02"] == "pass"
    assert early["status"] == "crashed" and set(early[list(COLUMNS)]) == {"n/a"}
    assert table["caught"].all() and table["twin_clean"].all()
    small = by_attack(table)
    assert small.loc["wrong_shape_output", "CMP-01"] == "1/1*"
    assert small.loc["exits_0_early", "status"] == "1/1 crashed*"
    assert twins(found)["clean"].all() and len(twins(found)) == 2
    assert counts(found) == {
        "attacks": 2, "cheats": 2, "caught": 2, "rejected": 2, "twins": 2, "clean": 2,
    }  # fmt: skip


def test_a_cheat_that_only_another_gate_rejects_is_not_caught(judge):
    bad, good = judged(judge, one_of("wrong_shape_output"))
    elsewhere = {**bad, "extra": {**bad["extra"], "gate": "RES-01"}}
    assert is_rejected(elsewhere) and not is_caught(elsewhere)
    assert counts([elsewhere, good])["caught"] == 0 and not matrix([elsewhere, good])["caught"].any()
    assert "0/1*" in by_attack(matrix([elsewhere, good]))["RES-01"].tolist()
