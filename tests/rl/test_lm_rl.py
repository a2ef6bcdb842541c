"""The language model's run: reward only where edits of its own apply after the warm start."""

from __future__ import annotations

import importlib.util
import json

import pytest

from lethe import provenance
from lethe.evidence import elsewhere
from lethe.rl import edit_rl, lm, lm_rl, prompts
from lethe.rl.judging import Court
from lethe.rl.outcomes import Judged, Outcome

HAVE = all(importlib.util.find_spec(name) for name in ("transformers", "peft"))
NEEDS_RL = pytest.mark.skipif(not HAVE, reason="transformers and peft are the extra [rl]")
PLAN = lm_rl.Plan(examples=2, batch=2, answers=1, steps=2, group=2, sampling=lm.Sampling(longest=6))


def ran(tmp_path, monkeypatch, outcome):
    from lethe.rl.tiny import tiny_model, tiny_tokenizer

    monkeypatch.setattr(
        edit_rl, "judge", lambda court, rows, answers: [Judged(outcome, "as told")] * len(answers)
    )
    tokenizer = tiny_tokenizer()
    policy = lm.LmPolicy(tiny_model(tokenizer), tokenizer, prompts.ask, rank=2, sampling=PLAN.sampling)
    rows = edit_rl.levels_of((lm_rl.SHOWN[:1], lm_rl.UNSEEN[:1]))
    elsewhere.note(tmp_path, "cpu")
    with Court() as court:
        lm_rl.run(tmp_path, policy, court, (rows[0], rows[1]), PLAN, 600)
    return json.loads((tmp_path / lm_rl.PHASES).read_text())


@NEEDS_RL
def test_where_nothing_applies_the_reward_is_not_run(tmp_path, monkeypatch):
    told = ran(tmp_path, monkeypatch, Outcome.NOT_APPLIED)
    assert told["reward"] == "not run: none of 2 edits applied after the warm start"
    assert "trained" not in told and len(told["before"]) == len(told["after"]) == 2


@NEEDS_RL
def test_where_something_applies_it_is(tmp_path, monkeypatch):
    told = ran(tmp_path, monkeypatch, Outcome.BROKE_CONTRACT)
    assert [step["outcomes"] for step in told["reward"]] == [{"broke_contract": 2}] * 2
    assert len(told["trained"]) == 2 and set(told["seconds"]) == {
        "before", "warm_start", "after", "reward", "trained",
    }  # fmt: skip
    found = provenance.load(lm_rl.record(tmp_path, tmp_path))
    assert found.parameters["shown"] == list(lm_rl.SHOWN) and "plan" not in found.samples


def test_a_prompt_shows_the_kernel_without_its_imports():
    (row,) = edit_rl.levels_of((("softmax_log__a",),))[0]
    text = prompts.ask(row)
    assert "import torch" not in text and "@triton.jit" in text and "class ModelNew" in text
    assert all(line in row.candidate.source for line in prompts.body(row.candidate.source).split("\n"))


def test_says_what_is_missing(tmp_path, capsys):
    assert lm_rl.main(["run", "--out", str(tmp_path), "--device", "cpu", "--weights", str(tmp_path)]) == 2
    assert "pip install" in capsys.readouterr().err
    assert lm_rl.main(["record", str(tmp_path / "nothing")]) == 2
