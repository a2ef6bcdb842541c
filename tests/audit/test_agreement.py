"""Tables of the differential: agreement of implementations, contingency, load-bearing cell, McNemar."""

from __future__ import annotations

import json
from fractions import Fraction
from math import comb
from typing import Any

import pytest

from lethe.audit import agreement, differential, lines, report
from lethe.audit.checkroom import Job
from lethe.audit.kernelbench_check import Outcome
from lethe.verifier.verdict import Finding, GateStatus, Status, Verdict
from tests.audit import fakes


def line(
    row_id: str, verdict: bool | None, variant: str, implementation: str, status: str = "judged"
) -> dict[str, Any]:
    job = Job(fakes.row(row_id), variant, implementation)
    return differential.make(job, Outcome(verdict, status, message=f"{row_id} said"), [], "cuda")


def checks() -> Any:
    made = [
        line("clean", True, "48642c5c", "theirs"),
        line("swallows", True, "48642c5c", "theirs"),
        line("inaccurate", True, "48642c5c", "theirs"),
        line("crashes", False, "48642c5c", "theirs", "crashed"),
        line("flushes", None, "48642c5c", "theirs", "timed_out"),
        line("strict", False, "48642c5c", "theirs"),
        line("no-kernel", True, "48642c5c", "theirs"),
        line("rejected", True, "48642c5c", "theirs"),
        line("clean", True, "48642c5c", "ours"),
        line("swallows", False, "48642c5c", "ours"),
        line("crashes", False, "48642c5c", "ours"),
        line("strict", True, "48642c5c", "ours"),
        line("flushes", True, "48642c5c", "ours"),
        line("swallows", False, "later", "theirs"),
    ]
    return agreement.frame(made)


def audit() -> Any:
    def judged(row_id: str, *gates: Any, status: Status = Status.JUDGED, corpus_accepts: bool = True) -> Any:
        verdict = Verdict("p", row_id, "derived", status, "", gates=gates)
        return lines.make(fakes.row(row_id, accepted=corpus_accepts), verdict, {}, 1.0)

    def fail(gate: str, mechanism: str, channel: str) -> Any:
        return fakes.gate(gate, GateStatus.FAIL, Finding("c", channel, mechanism, "m"), channel=channel)

    return report.frame(
        [
            judged("clean"),
            judged("swallows", fail("EXC-01", "swallowed", "T"), fail("CMP-01", "value", "B")),
            judged("inaccurate", fail("CMP-01", "value", "B")),
            judged("crashes", status=Status.CRASHED),
            judged("flushes", fail("EXC-02", "flushed", "T")),
            judged("strict"),
            judged("no-kernel", status=Status.NO_CUSTOM_KERNEL),
            judged("rejected", fail("EXC-01", "minted", "T"), corpus_accepts=False),
            judged("unchecked"),
        ]
    )


def test_agreement_of_the_implementations() -> None:
    old = agreement.implementations(checks()).iloc[0]
    cells = ("pairs", "both_accept", "both_reject", "theirs_only", "ours_only", "no_answer")
    assert [old[c] for c in cells] == [4, 1, 1, 1, 1, 1]
    assert old["rate"] == 0.5 and old["low"] < 0.5 < old["high"]
    differ = agreement.disagreements(checks())
    assert sorted(differ["id"]) == ["strict", "swallows"]
    assert set(differ["message_theirs"]) == {"strict said", "swallows said"}


def test_contingency_counts_only_what_both_sides_answered() -> None:
    old, later = agreement.contingency(audit(), checks()).to_dict("records")
    cells = ("rows", "both_accept", "check_only", "verifier_only", "both_reject", "undecided", "no_answer")
    assert [old[c] for c in cells] == [5, 1, 2, 1, 1, 1, 1]
    assert old["accept_rate"] == pytest.approx(3 / 5) and old["cell_rate"] == pytest.approx(2 / 5)
    assert old["p"] == 1.0
    assert [later[c] for c in cells] == [1, 0, 0, 0, 1, 0, 0]


def test_the_load_bearing_cell_by_gate_and_the_reverse_cell() -> None:
    cell = agreement.load_bearing(audit(), checks(), "48642c5c").set_index("gate")
    assert cell.loc["CMP-01"].tolist() == [2, 1]
    assert cell.loc["EXC-01"].tolist() == [1, 0]
    assert cell.loc["floor", "rows"] == 1
    assert cell["rows"].sum() == 4
    (reverse,) = agreement.reverse(audit(), checks(), "48642c5c").to_dict("records")
    assert (reverse["id"], reverse["check_message"]) == ("strict", "strict said")


@pytest.mark.parametrize(("b", "c"), [(0, 0), (5, 0), (3, 3), (10, 2), (1, 8), (1487, 14)])
def test_mcnemar_is_the_exact_binomial_tail(b: int, c: int) -> None:
    n = b + c
    tail = sum(Fraction(comb(n, i), 2**n) for i in range(min(b, c) + 1))
    assert agreement.mcnemar(b, c) == pytest.approx(float(min(Fraction(1), 2 * tail)), rel=1e-12)
    assert agreement.mcnemar(b, c) == agreement.mcnemar(c, b)


def test_a_line_names_the_revision_and_what_was_done_for_it() -> None:
    made = line("a", True, "48642c5c", "theirs")
    assert json.loads(json.dumps(made)) == made
    assert made["revision"].startswith("48642c5c") and made["source_registered"] is True
    assert line("a", True, "later", "ours")["source_registered"] is False
