"""One step of GRPO for any policy: sample groups, reward them, take a few clipped steps.

What is trained only has to sample answers with their log-probabilities and to say those log-probabilities
again: the policy over launch parameters (`lethe.rl.knob_policy`) and a language model (`lethe.rl.lm`) both
do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lethe.rl.grpo import PLAIN, Objective, group_advantages, grpo_loss


@dataclass(frozen=True)
class Rollout:
    """Answers to contexts, group after group."""

    contexts: Sequence[Any]
    """One for each answer."""
    answers: Sequence[Any]
    tokens: Tensor
    """[n, T] int64, padded."""
    mask: Tensor
    """[n, T], 1 on an answer's tokens."""
    logps: Tensor
    """[n, T] under the policy that sampled them, without a gradient."""


class Policy(Protocol):
    def sample(self, contexts: Sequence[Any], group: int) -> Rollout:
        """`group` answers to each context."""

    def logps(self, rollout: Rollout) -> Tensor:
        """Log-probabilities [n, T] of the rollout's tokens, with a gradient."""

    def reference_logps(self, rollout: Rollout) -> Tensor | None:
        """Those of the reference policy; None where there is none."""

    def parameters(self) -> Iterable[Tensor]: ...


@dataclass(frozen=True)
class Step:
    """What a step did."""

    rollout: Rollout
    rewards: list[float]
    loss: float
    kl: float
    clipped: float

    @property
    def reward(self) -> float:
        """Mean over the answers that could be judged."""
        known = [r for r in self.rewards if r == r]
        return sum(known) / len(known) if known else 0.0


def grpo_step(
    policy: Policy,
    optimiser: torch.optim.Optimizer,
    contexts: Sequence[Any],
    reward: Callable[[Rollout], Sequence[float]],
    *,
    group: int,
    objective: Objective = PLAIN,
    epochs: int = 1,
    max_norm: float = 1.0,
) -> Step:
    """Sample `group` answers to each context, reward them, and take `epochs` steps on the same answers.

    A batch in which no group has a spread of rewards teaches nothing and changes nothing. The gradient's
    norm is cut at `max_norm`.
    """
    rollout = policy.sample(contexts, group)
    rewards = [float(r) for r in reward(rollout)]
    advantages = group_advantages(torch.tensor(rewards).to(rollout.logps), group)
    loss = kl = clipped = 0.0
    if bool((advantages != 0).any()):
        reference = policy.reference_logps(rollout) if objective.beta else None
        for _ in range(epochs):
            found = grpo_loss(
                policy.logps(rollout), rollout.logps, advantages, rollout.mask, reference, objective
            )
            optimiser.zero_grad()
            found.total.backward()
            torch.nn.utils.clip_grad_norm_(list(policy.parameters()), max_norm)
            optimiser.step()
            loss, kl, clipped = float(found.total.detach()), float(found.kl), float(found.clipped)
    return Step(rollout, rewards, loss, kl, clipped)
