"""Comparing audits row by row, and the orders in which an audit can be run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lethe.audit import lines
from lethe.audit.corpora import CorpusError
from lethe.audit.run import ORDERS, Selection, run
from lethe.evidence import stability
from lethe.evidence.stability import Outcome, Pass, compare, main, stable
from lethe.verifier.ends import lasting
from lethe.verifier.limits import MOST_CROWDING, crowding
from tests.audit import fakes


def judged(path: Path, source: str = "", rows: int = 3) -> Path:
    run(fakes.corpus(rows, source), path, settings=fakes.SETTINGS, workers=0)
    return path


def outcomes(a: Path, b: Path) -> list[Outcome]:
    return [c.outcome for c in compare(lines.read(a), lines.read(b))]


def edited(path: Path, change: object) -> Path:
    """A copy of an audit with its first verdict changed in place by `change`."""
    found = list(lines.read(path))
    change(found[0]["verdict"])  # type: ignore[operator]
    copy = path.with_name("edited.jsonl")
    copy.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in found))
    return copy


class TestCompare:
    def test_times_are_no_difference(self, tmp_path):
        a = judged(tmp_path / "a.jsonl", "# sleep 0.01")
        b = judged(tmp_path / "b.jsonl", "# sleep 0.01")
        assert a.read_bytes() != b.read_bytes()
        assert outcomes(a, b) == [Outcome.IDENTICAL] * 3 and main([str(a), str(b)]) == 0

    def test_a_number_is_a_detail_and_is_named(self, tmp_path, capsys):
        a = judged(tmp_path / "a.jsonl", "# fail EXC-01")

        def change(verdict):
            gate = next(g for g in verdict["gates"] if g["gate"] == "EXC-01")
            gate["findings"][0]["metric"] = 3.25

        b = edited(a, change)
        first = compare(lines.read(a), lines.read(b))[0]
        assert first.outcome is Outcome.DETAIL and not stable([first])
        assert first.where == "verdict.gates[EXC-01].findings[0].metric: recorded 3.0, now 3.25"
        assert main([str(a), str(b)]) == 1
        assert "verdict.gates[EXC-01].findings[0].metric" in capsys.readouterr().out

    def test_another_gate_status_is_another_verdict(self, tmp_path):
        a = judged(tmp_path / "a.jsonl", "# fail EXC-01")
        b = edited(a, lambda verdict: verdict["gates"][1].update(status="pass", findings=[]))
        assert outcomes(a, b) == [Outcome.STATUS, Outcome.IDENTICAL, Outcome.IDENTICAL]

    def test_a_kernel_that_does_not_repeat_is_pointed_out(self, tmp_path):
        a = judged(tmp_path / "a.jsonl")

        def change(verdict):
            verdict["gates"][0].update(gate="ORD-02", status="fail")

        first = compare(lines.read(a), lines.read(edited(a, change)))[0]
        assert first.racy and first.outcome is Outcome.STATUS

    def test_a_missing_row_is_a_difference_either_way(self, tmp_path):
        a, b = judged(tmp_path / "a.jsonl", rows=3), judged(tmp_path / "b.jsonl", rows=2)
        assert outcomes(a, b)[2] is Outcome.MISSING and outcomes(b, a)[2] is Outcome.MISSING
        assert main([str(b), str(a)]) == 1

    def test_every_file_is_compared_with_the_first(self, tmp_path):
        a, b = judged(tmp_path / "a.jsonl"), judged(tmp_path / "b.jsonl")
        c = edited(a, lambda verdict: verdict.update(message="other"))
        assert main([str(a), str(b)]) == 0 and main([str(a), str(b), str(c)]) == 1

    def test_nothing_compared_is_not_stable(self):
        assert not stable([])

    def test_what_is_no_audit_is_refused(self, tmp_path):
        other = tmp_path / "other.jsonl"
        other.write_text("{}\n")
        assert main([str(judged(tmp_path / "a.jsonl")), str(other)]) == 2


class TestOrders:
    def test_every_order_holds_the_same_rows(self):
        corpus = fakes.corpus(12)
        ids = [[r.id for r in Selection(order=o).of(corpus)] for o in ORDERS]
        assert all(sorted(found) == sorted(ids[0]) for found in ids)
        by_order = dict(zip(ORDERS, ids, strict=True))
        assert by_order["reversed"] == by_order["corpus"][::-1]
        assert by_order["shuffled"] not in (by_order["corpus"], by_order["reversed"])

    def test_named_rows_are_arranged_too(self):
        named = Selection(rows=("r2", "r0"), order="reversed")
        assert [r.id for r in named.of(fakes.corpus(3))] == ["r0", "r2"]

    def test_an_unknown_order_names_the_known_ones(self):
        with pytest.raises(CorpusError, match="reversed, shuffled"):
            Selection(order="backwards").of(fakes.corpus(1))


class TestRecord:
    def test_the_same_rows_in_each_pass(self, tmp_path):
        corpus = fakes.corpus(3)
        passes = [Pass("a", "corpus", 0), Pass("b", "reversed", 0)]
        files = stability.record(corpus, tmp_path, fakes.SETTINGS, ("r0", "r1", "r2"), passes)
        assert [line["id"] for line in lines.read(files[1])] == ["r2", "r1", "r0"]
        assert stable(compare(lines.read(files[0]), lines.read(files[1])))

    def test_a_load_ends_with_its_block(self):
        with stability.busy(1) as running:
            assert running[0].poll() is None
        assert running[0].poll() is not None

    def test_a_sample_holds_cheap_rows_only(self):
        assert sorted(stability.sample(fakes.corpus(5), None)) == ["r0", "r1", "r2", "r3", "r4"]
        assert len(stability.sample(fakes.corpus(5), 2)) == 2


class TestWhatVerdictsSay:
    """Words in a verdict that depend on the process or the clock."""

    @pytest.mark.parametrize(
        "text",
        [
            "<Model object at 0x7f31c0a5d2e0> is no tensor",
            "No such file: /tmp/lethe-suspect-k3_x9abq/weights.pt",
            "cannot open /tmp/tmpq1w2e3r4/lib.so",
        ],
    )
    def test_addresses_and_temporary_names_are_left_out(self, text):
        said = lasting(text)
        assert not re.search(r"7f31c0a5d2e0|k3_x9abq|q1w2e3r4", said) and said.count("...") == 1

    def test_other_numbers_and_words_stay(self):
        text = "expected 0xff, got 123456789 in tmpfile (line 7)"
        assert lasting(text) == text

    @pytest.mark.parametrize(("load", "factor"), [(0.1, 1.0), (3.0, 3.0), (500.0, MOST_CROWDING)])
    def test_a_busy_machine_is_waited_for_within_bounds(self, monkeypatch, load, factor):
        monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
        assert crowding() == factor

    def test_the_judge_computes_on_one_thread_and_gives_the_others_back(self, monkeypatch):
        """The last bits of a parallel sum depend on the number of threads, and a verdict records them."""
        import torch

        from lethe.evidence.calibration.operators import BY_NAME
        from lethe.verifier import docket
        from lethe.verifier.judge import Judge
        from lethe.verifier.problem import ProblemError

        seen = []

        def fitting(*_, **__):
            seen.append(torch.get_num_threads())
            raise ProblemError("enough seen")

        monkeypatch.setattr(docket.shrink, "shrink", fitting)
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            with Judge(device="cpu") as judge:
                judge.verify(BY_NAME["exp"].problem(), BY_NAME["exp"].candidate())
            assert seen == [1] and torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
