"""GRPO from scratch: group-relative advantages, PPO's clip, a KL penalty to a reference policy.

For a context, a group of G answers is sampled and rewarded; an answer's advantage is its reward less the
group's mean, over the group's standard deviation (DeepSeekMath, arXiv:2402.03300, section 4.1). With
r = exp(log p - log p_old), per token

    loss = -min(r A, clip(r, 1 - low, 1 + high) A) + beta (exp(d) - d - 1),   d = log p_ref - log p,

where the last term is Schulman's k3 estimate of KL(p || p_ref): unbiased and never negative. Answers are
padded; `mask` is 1 on their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SCALES = ("group", "batch", "none")
REDUCTIONS = ("grpo", "bnpo", "dr_grpo")
STD_FLOOR = 1e-4
"""Added to the standard deviation, as TRL does: a group of equal rewards has advantages of zero."""


@dataclass(frozen=True)
class Objective:
    """What is minimised. Raises ValueError for an unknown name or a negative number."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    beta: float = 0.0
    """Weight of the KL penalty."""
    reduction: str = "grpo"
    """``grpo``: mean over an answer's tokens, then over answers; ``bnpo``: mean over all tokens of the batch;
    ``dr_grpo``: sum over tokens by a constant length (arXiv:2503.20783), without the bias towards long wrong
    answers."""
    longest: int = 1
    """The constant length of ``dr_grpo``."""

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"unknown reduction {self.reduction!r}; choose one of {', '.join(REDUCTIONS)}")
        if min(self.clip_low, self.clip_high, self.beta) < 0 or self.longest < 1:
            raise ValueError(
                "clips and beta must not be negative, and the longest answer has at least 1 token"
            )


@dataclass(frozen=True)
class Loss:
    """A loss with what one looks at while it falls; all are scalars."""

    total: Tensor
    kl: Tensor
    """Mean k3 estimate over tokens; zero without a reference."""
    clipped: Tensor
    """Share of tokens at which the clip took effect."""


PLAIN = Objective()
"""The published clip, without a reference."""


def group_advantages(rewards: Tensor, group: int, scale: str = "group") -> Tensor:
    """Advantages [n] of rewards [n], which stand group after group.

    A reward of NaN is an answer that nobody could score: it takes no part in its group and has no advantage.
    `scale` says by what standard deviation (unbiased) the differences are divided. ValueError where the
    groups do not divide the rewards or `scale` is unknown.
    """
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; choose one of {', '.join(SCALES)}")
    if group < 1 or rewards.dim() != 1 or rewards.numel() % group:
        raise ValueError(f"{rewards.numel()} rewards do not make groups of {group}")
    grouped = rewards.view(-1, group)
    advantages = grouped - torch.nanmean(grouped, dim=1, keepdim=True)
    if scale == "group":
        advantages = advantages / (_nanstd(grouped, 1) + STD_FLOOR)
    elif scale == "batch":
        advantages = advantages / (_nanstd(grouped.reshape(1, -1), 1) + STD_FLOOR)
    return torch.nan_to_num(advantages, nan=0.0).reshape(-1)


def _nanstd(values: Tensor, axis: int) -> Tensor:
    """Unbiased standard deviation of what is not NaN, kept as an axis; zero for a single value."""
    known = ~values.isnan()
    count = known.sum(axis, keepdim=True)
    centred = values - torch.nanmean(values, dim=axis, keepdim=True)
    squares = torch.where(known, centred, 0.0).square().sum(axis, keepdim=True)
    return (squares / (count - 1).clamp(min=1)).sqrt()


def token_logps(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities [..., T] of `tokens` [..., T] under logits [..., T, V] over a temperature."""
    return torch.log_softmax(logits / temperature, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def grpo_loss(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    ref_logps: Tensor | None = None,
    objective: Objective = PLAIN,
) -> Loss:
    """The loss of a batch of answers.

    Args:
        logps: log-probabilities [n, T] of the answers' tokens under the policy that is trained.
        old_logps: those under the policy that sampled them; no gradient flows there.
        advantages: [n].
        mask: [n, T], 1 on an answer's tokens and 0 on padding.
        ref_logps: [n, T] under the reference policy; needed if and only if ``objective.beta`` is not zero.

    Raises ValueError where `ref_logps` is missing.
    """
    if objective.beta and ref_logps is None:
        raise ValueError("beta is not zero, so the loss needs the log-probabilities of a reference policy")
    mask = mask.to(logps.dtype)
    ratio = torch.exp(logps - old_logps.detach())
    clipped = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    gain = advantages.unsqueeze(-1)
    tokens = -torch.minimum(ratio * gain, clipped * gain)
    kl = torch.zeros_like(logps)
    if ref_logps is not None:
        difference = ref_logps.detach() - logps
        kl = torch.exp(difference) - difference - 1
    if objective.beta:
        tokens = tokens + objective.beta * kl
    count = mask.sum().clamp(min=1.0)
    active = (ratio * gain > clipped * gain).to(logps.dtype)
    return Loss(
        _reduced(tokens, mask, objective),
        (kl * mask).sum().detach() / count,
        (active * mask).sum().detach() / count,
    )


def _reduced(tokens: Tensor, mask: Tensor, objective: Objective) -> Tensor:
    if objective.reduction == "grpo":
        return ((tokens * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    if objective.reduction == "bnpo":
        return (tokens * mask).sum() / mask.sum().clamp(min=1.0)
    return (tokens * mask).sum() / (tokens.shape[0] * objective.longest)
