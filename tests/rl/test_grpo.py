"""The GRPO loss: its published formula in plain Python, its limits, and TRL's own on the same logits."""

from __future__ import annotations

import importlib.util
import math
from types import SimpleNamespace

import pytest
import torch

from lethe.rl.grpo import REDUCTIONS, Objective, group_advantages, grpo_loss, token_logps

EPS = torch.finfo(torch.float64).eps


def batch(seed=0, answers=6, tokens=5, words=11):
    """Logits of three policies, tokens, a ragged mask and advantages, in float64."""
    draw = torch.Generator().manual_seed(seed)
    logits = [torch.randn(answers, tokens, words, generator=draw, dtype=torch.float64) for _ in range(3)]
    ids = torch.randint(words, (answers, tokens), generator=draw)
    lengths = torch.randint(1, tokens + 1, (answers,), generator=draw)
    mask = (torch.arange(tokens) < lengths[:, None]).double()
    advantages = torch.randn(answers, generator=draw, dtype=torch.float64)
    return logits, ids, mask, advantages


def by_hand(logps, old, ref, advantages, mask, low, high, beta, reduction, longest):
    """Equation 3 of arXiv:2402.03300 with k3 (equation 4), one token at a time, in Python floats."""
    rows, every = [], []
    for i in range(len(advantages)):
        row = []
        for t in range(mask.shape[1]):
            if not mask[i, t]:
                continue
            r = math.exp(logps[i, t] - old[i, t])
            a = float(advantages[i])
            gain = min(r * a, min(max(r, 1 - low), 1 + high) * a)
            d = float(ref[i, t] - logps[i, t])
            row.append(-(gain - beta * (math.exp(d) - d - 1)))
        rows.append(row)
        every += row
    if reduction == "grpo":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    if reduction == "bnpo":
        return sum(every) / len(every)
    return sum(every) / (len(rows) * longest)


@pytest.mark.parametrize("beta", [0.0, 0.04], ids=["no-kl", "kl"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_loss_is_the_published_formula(reduction, beta):
    (logits, old, ref), ids, mask, advantages = batch()
    new, before, reference = (token_logps(x, ids) for x in (logits, old, ref))
    objective = Objective(0.2, 0.28, beta, reduction, longest=8)
    loss = grpo_loss(new, before, advantages, mask, reference, objective)
    expected = by_hand(new, before, reference, advantages, mask, 0.2, 0.28, beta, reduction, 8)
    # a sum of at most 30 terms, each with a handful of roundings relative to itself
    terms = float((torch.exp(new - before) * advantages[:, None]).abs().sum() + 1)
    assert abs(float(loss.total) - expected) <= 64 * EPS * terms


def test_gradient_is_that_of_finite_differences():
    (logits, old, ref), ids, mask, advantages = batch(1, answers=3, tokens=3, words=4)
    before, reference = token_logps(old, ids), token_logps(ref, ids)
    objective = Objective(beta=0.1)

    def loss(x):
        return grpo_loss(token_logps(x, ids), before, advantages, mask, reference, objective).total

    assert torch.autograd.gradcheck(loss, logits.requires_grad_())


def test_first_step_has_the_gradient_of_the_policy_gradient():
    """Where the policy is the one that sampled, r = 1 and the gradient is that of -A log p."""
    (logits, _, _), ids, mask, advantages = batch(2)
    logits.requires_grad_()
    new = token_logps(logits, ids)
    ours = torch.autograd.grad(grpo_loss(new, new, advantages, mask).total, logits, retain_graph=True)[0]
    plain = -((advantages[:, None] * new * mask).sum(-1) / mask.sum(-1)).mean()
    assert torch.allclose(ours, torch.autograd.grad(plain, logits)[0], rtol=1e-12, atol=1e-15)


def test_beyond_the_clip_nothing_pulls_further():
    old = torch.zeros(2, 1, dtype=torch.float64)
    new = torch.tensor([[0.5], [-0.5]], dtype=torch.float64, requires_grad=True)  # r = 1.65 and 0.61
    loss = grpo_loss(new, old, torch.tensor([1.0, -1.0], dtype=torch.float64), torch.ones(2, 1))
    assert torch.autograd.grad(loss.total, new)[0].abs().max() == 0
    assert loss.clipped == 1.0
    # the other way round the clip does not hold a policy back from leaving what is bad
    loss = grpo_loss(new, old, torch.tensor([-1.0, 1.0], dtype=torch.float64), torch.ones(2, 1))
    assert (torch.autograd.grad(loss.total, new)[0].abs() > 0).all()


def test_padding_is_never_read():
    (logits, old, ref), ids, mask, advantages = batch(3)
    new, before, reference = (token_logps(x, ids) for x in (logits, old, ref))
    objective = Objective(beta=0.04)
    here = grpo_loss(new, before, advantages, mask, reference, objective).total
    other = torch.where(mask.bool(), new, torch.full_like(new, -3.0))
    assert here == grpo_loss(other, before, advantages, mask, reference, objective).total


def test_kl_is_zero_at_the_reference_and_never_negative():
    (logits, old, _), ids, mask, advantages = batch(4)
    new, before = token_logps(logits, ids), token_logps(old, ids)
    assert grpo_loss(new, new, advantages, mask, new).kl == 0
    assert grpo_loss(new, new, advantages, mask, before).kl > 0


class TestAdvantages:
    def test_are_deviations_over_the_unbiased_standard_deviation(self):
        rewards = torch.tensor([0.0, 0.1, 1.0, 1.5, 0.5, 0.5, 0.5, 0.5], dtype=torch.float64)
        found = group_advantages(rewards, 4)
        mean = 0.65
        std = math.sqrt(sum((x - mean) ** 2 for x in (0.0, 0.1, 1.0, 1.5)) / 3)
        expected = [(x - mean) / (std + 1e-4) for x in (0.0, 0.1, 1.0, 1.5)] + [0.0] * 4
        assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)

    def test_an_undecided_answer_has_none_and_moves_nobody(self):
        some = torch.tensor([0.0, 1.0, math.nan, 0.5])
        found = group_advantages(some, 4)
        assert found[2] == 0
        assert torch.allclose(found[[0, 1, 3]], group_advantages(some[[0, 1, 3]], 3))

    def test_a_group_that_nobody_could_judge_has_none(self):
        assert group_advantages(torch.full((4,), math.nan), 4).tolist() == [0.0] * 4

    def test_without_scale_are_differences(self):
        assert group_advantages(torch.tensor([1.0, 0.0]), 2, "none").tolist() == [0.5, -0.5]

    @pytest.mark.parametrize("wrong", [(3, "group"), (2, "median")], ids=["no-groups", "no-scale"])
    def test_refuse_what_they_cannot_do(self, wrong):
        with pytest.raises(ValueError, match=r"groups of 3|unknown scale"):
            group_advantages(torch.zeros(4), *wrong)


def test_refusals():
    with pytest.raises(ValueError, match="unknown reduction"):
        Objective(reduction="mean")
    with pytest.raises(ValueError, match="reference policy"):
        one = torch.zeros(1, 1)
        grpo_loss(one, one, torch.zeros(1), torch.ones(1, 1), None, Objective(beta=0.1))


NO_TRL = "TRL is not installed; it is in the extra [rl-check]"


def trl_stub(reduction, beta, longest, logps):
    """What TRL's `_compute_loss` reads of its trainer, with the model's log-probabilities given."""
    metrics = {mode: _Anything() for mode in ("train", "eval")}
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (logps, torch.zeros_like(logps), None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        importance_sampling_level="token", beta=beta, loss_type=reduction, epsilon_low=0.2, epsilon_high=0.28,
        use_vllm=False, max_completion_length=longest, current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False, _metrics=metrics, _logs=_Anything(),
        model=SimpleNamespace(training=True), tools=None,
        accelerator=SimpleNamespace(
            gather=lambda x: x.reshape(-1), reduce=lambda x, reduction: x, num_processes=1
        ),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False),
    )  # fmt: skip


class _Anything(dict):
    """A mapping of lists that are made when they are asked for."""

    def __missing__(self, key):
        return self.setdefault(key, [])


@pytest.mark.slow  # importing TRL takes about ten seconds
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason=NO_TRL)
@pytest.mark.parametrize("beta", [0.0, 0.04], ids=["no-kl", "kl"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_loss_and_gradient_are_trls(reduction, beta):
    from trl import GRPOTrainer

    (logits, old, ref), ids, mask, advantages = batch(5, answers=8, tokens=7)
    logits.requires_grad_()
    new, before, reference = (token_logps(x, ids) for x in (logits, old, ref))
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": torch.ones(8, 1), "completion_ids": ids,
        "completion_mask": mask, "advantages": advantages, "old_per_token_logps": before,
        "ref_per_token_logps": reference,
    }  # fmt: skip
    theirs = GRPOTrainer._compute_loss(trl_stub(reduction, beta, 9, new), None, inputs)
    ours = grpo_loss(new, before, advantages, mask, reference, Objective(0.2, 0.28, beta, reduction, 9)).total
    one, other = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (ours, theirs))
    # 56 terms of order one, summed in two orders
    assert abs(float((ours - theirs).detach())) <= 64 * EPS * 56
    assert float((one - other).abs().max()) <= 64 * EPS


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason=NO_TRL)
def test_standard_deviation_is_trls():
    from trl.trainer.grpo_trainer import nanstd

    rewards = torch.tensor([0.0, 0.1, math.nan, 1.5, 0.5, 0.25, 0.5, 1.0], dtype=torch.float64)
    grouped = rewards.view(2, 4)
    mean = torch.nanmean(grouped, 1, keepdim=True)
    theirs = torch.nan_to_num((grouped - mean) / (nanstd(grouped, dim=1)[:, None] + 1e-4))
    # TRL divides two integers for Bessel's correction, which is float32
    assert torch.allclose(group_advantages(rewards, 4), theirs.reshape(-1), rtol=2**-23, atol=0)
