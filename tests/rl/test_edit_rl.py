"""The policy over scripted operators, before a judge that is told what is right."""

from __future__ import annotations

import json
import random

import pytest
import torch

from lethe import provenance
from lethe.audit.corpora import CorpusError
from lethe.evidence import elsewhere
from lethe.rl import edit_rl, mutations
from lethe.rl.outcomes import Judged, Outcome


class FakeCourt:
    """Finds what keeps the text's `tl.sum` right, and nothing faster."""

    def __init__(self):
        self.judged = 0

    def judge(self, attempts):
        self.judged += len(attempts)
        return [
            Judged(Outcome.NOT_FASTER if "tl.sum(" in a.source else Outcome.BROKE_CONTRACT, "", speedup=0.9)
            for a in attempts
        ]


@pytest.fixture(scope="module")
def levels():
    return edit_rl.levels_of((("reduction_sum__a", "loss_mse__b"),))


def test_untrained_it_draws_every_operator_that_has_a_place(levels):
    policy = edit_rl.OperatorPolicy()
    rollout = policy.sample(levels[0], 64)
    for row, pick in zip(rollout.contexts, rollout.tokens[:, 0].tolist(), strict=True):
        assert mutations.applicable(row.candidate.source)[pick]
    assert torch.allclose(rollout.logps, policy.reference_logps(rollout), atol=1e-6)
    assert torch.allclose(policy.logps(rollout).detach(), rollout.logps, atol=1e-6)
    assert len(set(rollout.tokens[:, 0].tolist())) > 5


def test_it_learns_to_answer_with_edits_that_apply(levels):
    told = edit_rl.run(FakeCourt(), edit_rl.Plan(attempts=320, rate=1.0), levels)
    third = len(told) // 3
    early, late = (sum(t["outcome"] == "not_applied" for t in part) for part in (told[:third], told[-third:]))
    assert len(told) == 320 and late < early


def test_equal_seeds_make_equal_runs(levels):
    plan = edit_rl.Plan(attempts=32, seed=5)
    assert edit_rl.run(FakeCourt(), plan, levels) == edit_rl.run(FakeCourt(), plan, levels)


def test_what_does_not_apply_is_never_judged(levels):
    row = levels[0][0]
    court = FakeCourt()
    good = mutations.answer(row.candidate.source, "warps", random.Random(0))
    ends = edit_rl.judge(court, [row] * 3, ["prose", good, "more prose"])
    assert [str(e.outcome) for e in ends] == ["not_applied", "correct_not_faster", "not_applied"]
    assert court.judged == 1


def test_every_kernel_it_starts_from_kept_its_contracts():
    """By the recorded audit of the house corpus."""
    from lethe.audit import lines

    record = provenance.ROOT / "data" / "measured" / "h200" / "house_audit.json"
    if not record.is_file():
        pytest.skip("no audit of the house corpus is recorded")
    clean = {s["id"] for s in provenance.load(record).samples if lines.verdict_of(s).clean}
    wanted = {row.id for level in edit_rl.levels_of() for row in level}
    assert wanted <= clean


def test_an_unknown_kernel_is_named():
    with pytest.raises(CorpusError, match="no row 'nothing'"):
        edit_rl.levels_of((("nothing",),))


def test_record_holds_the_attempts_and_what_they_cost(tmp_path, levels):
    folder = tmp_path / "run"
    elsewhere.note(folder, "cpu")
    plan = edit_rl.Plan(attempts=16)
    told = edit_rl.run(FakeCourt(), plan, levels)
    (folder / edit_rl.ATTEMPTS).write_text(json.dumps({"plan": vars(plan), "attempts": told}))
    (folder / edit_rl.COST).write_text(json.dumps({"judged": 3}))
    found = provenance.load(edit_rl.record(folder, tmp_path))
    assert found.samples == told and found.parameters["cost"] == {"judged": 3}
    assert any(name.startswith("data/corpus/house/kernels/") for name in found.sources)


def test_says_what_is_missing(tmp_path, capsys):
    assert edit_rl.main(["record", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
