"""The court: what it remembers, what it judges anew, and what becomes of texts that are not kernels."""

from __future__ import annotations

import json

import pytest

from lethe.audit.lines import LogError
from lethe.audit.pool import JudgeSettings
from lethe.rl.judging import Attempt, Court
from lethe.rl.outcomes import Outcome
from lethe.verifier.problem import Problem
from lethe.verifier.verdict import GateResult, GateStatus, Status, Verdict

PROBLEM = Problem("p", "class Model:\n    pass\n")
KERNEL = "import triton\n\n\nclass ModelNew:\n    pass\n"


class FakeJudge:
    """Passes everything but what says ``# fail`` or ``# raise``; counts what it was asked."""

    asked = 0

    def __init__(self, settings):
        self.settings = settings

    def verify(self, problem, candidate):
        FakeJudge.asked += 1
        if "# raise" in candidate.source:
            raise RuntimeError("a bug of the judge")
        here = f"# fail on {self.settings.device}" in candidate.source
        status = GateStatus.FAIL if here or "# fail\n" in candidate.source else GateStatus.PASS
        return Verdict(
            problem.name, candidate.name, "derived", Status.JUDGED, "", (GateResult("CMP-01", status, "B"),),
            problem_sha256=problem.sha256, candidate_sha256=candidate.sha256,
        )  # fmt: skip

    def close(self):
        pass


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(JudgeSettings, "make", lambda self: FakeJudge(self))
    FakeJudge.asked = 0


def attempt(note="", **options):
    return Attempt(PROBLEM, KERNEL + note, **options)


def outcomes(court, *attempts):
    return [str(end.outcome) for end in court.judge(attempts)]


def test_answers_come_in_order_and_each_source_is_judged_once():
    with Court() as court:
        found = outcomes(court, attempt(), attempt("# fail\n"), attempt(), Attempt(PROBLEM, "prose"))
    assert found == ["correct_untimed", "broke_contract", "correct_untimed", "did_not_run"]
    assert FakeJudge.asked == 2
    assert (
        court.throughput.facts()["asked"] == 4
        and court.throughput.distinct == 2
        and court.throughput.reused == 0.5
    )


def test_a_bug_of_the_judge_is_nobodys_reward():
    with Court() as court:
        assert court.judge([attempt("# raise\n")])[0].outcome is Outcome.UNDECIDED


def test_the_file_answers_after_a_restart(tmp_path):
    log = tmp_path / "verdicts.jsonl"
    for _ in range(2):
        with Court(log) as court:
            assert outcomes(court, attempt()) == ["correct_untimed"]
    assert FakeJudge.asked == 1
    (line,) = map(json.loads, log.read_text().splitlines())
    assert line["corpus"] == "rl" and "reward" not in json.dumps(line)


@pytest.mark.parametrize(
    "other",
    [
        {"settings": JudgeSettings(device="cpu", quick=True, gates=("CMP-01",))},
        {"settings": JudgeSettings(device="cpu", quick=True, seed=1)},
    ],
    ids=["gates", "seed"],
)
def test_other_settings_are_another_question(tmp_path, other):
    log = tmp_path / "verdicts.jsonl"
    with Court(log) as court:
        court.judge([attempt()])
    with Court(log, **other) as court:
        court.judge([attempt()])
    assert FakeJudge.asked == 2


def test_other_rules_are_another_question(tmp_path, monkeypatch):
    log = tmp_path / "verdicts.jsonl"
    with Court(log) as court:
        court.judge([attempt()])
    monkeypatch.setattr("lethe.verifier.blame.RULES_VERSION", "2099.1.0")
    with Court(log) as court:
        court.judge([attempt()])
    assert FakeJudge.asked == 2


def test_what_is_not_in_the_language_is_not_run():
    torch_only = Attempt(PROBLEM, "class ModelNew:\n    pass\n", language="triton")
    with Court() as court:
        end = court.judge([torch_only])[0]
    assert end.outcome is Outcome.BROKE_CONTRACT and FakeJudge.asked == 0
    assert end.reason == "it is written in python, not in triton"


def test_a_text_that_loads_a_library_counts_as_cpp():
    source = "import ctypes\n\n\nclass ModelNew:\n    pass\n"
    with Court() as court:
        assert outcomes(court, Attempt(PROBLEM, source, language="cpp")) == ["correct_untimed"]


def test_two_courts_do_not_write_one_file(tmp_path):
    log = tmp_path / "verdicts.jsonl"
    with Court(log), pytest.raises(LogError, match="another audit is writing"):
        Court(log)


def test_a_pass_on_a_gpu_needs_the_interpreters_too():
    """Where a decoy or a read past the end shows; a failure needs no witness."""
    with Court(settings=JudgeSettings(device="cuda", quick=True)) as court:
        assert court.witness == JudgeSettings(device="cpu", quick=True)
        found = outcomes(court, attempt(), attempt("# fail on cpu\n"), attempt("# fail on cuda\n"))
    assert found == ["correct_untimed", "broke_contract", "broke_contract"]
    assert FakeJudge.asked == 5
