"""A warm start by supervised fine-tuning: answers in the right form, before any reward.

A policy whose edits never apply is never paid and learns nothing. The answers it is shown are scripted
edits; which of them are right is left for the reward to teach.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lethe.audit.corpora import Row
from lethe.rl import mutations
from lethe.rl.lm import LmPolicy

APPLY = tuple(name for name in mutations.NAMES if name not in ("misremember", mutations.NO_EDIT))
"""Operators whose edits apply."""


@dataclass(frozen=True)
class Example:
    row: Row
    answer: str


def examples(rows: Sequence[Row], count: int, seed: int = 0, longest: int = 400) -> list[Example]:
    """`count` scripted edits of the kernels, each of which applies and has at most `longest` characters."""
    draw = random.Random(seed)
    found: list[Example] = []
    while len(found) < count:
        row = draw.choice(list(rows))
        able = mutations.applicable(row.candidate.source)
        name = draw.choice([n for n, fits in zip(mutations.NAMES, able, strict=True) if fits and n in APPLY])
        text = mutations.answer(row.candidate.source, name, draw)
        if len(text) <= longest:
            found.append(Example(row, text))
    return found


def warm_start(
    policy: LmPolicy, shown: Sequence[Example], *, rate: float = 5e-4, epochs: int = 1, batch: int = 4
) -> list[float]:
    """Maximise the likelihood of the answers, the end of the text included; the mean loss per token of each
    step."""
    optimiser = torch.optim.AdamW(list(policy.parameters()), rate, weight_decay=0.0)
    losses = []
    for _ in range(epochs):
        for at in range(0, len(shown), batch):
            part = shown[at : at + batch]
            tokens = [_answer(policy, example.answer) for example in part]
            total = sum(len(t) for t in tokens)
            spent = 0.0
            optimiser.zero_grad()
            for example, answer in zip(part, tokens, strict=True):
                loss = -policy.answer_logps(example.row, answer).sum() / total
                loss.backward()
                spent += float(loss.detach())
            torch.nn.utils.clip_grad_norm_(list(policy.parameters()), 1.0)
            optimiser.step()
            losses.append(spent)
    return losses


def _answer(policy: LmPolicy, text: str) -> Tensor:
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor([*ids, policy.tokenizer.eos_token_id], dtype=torch.int64, device=policy.device)
