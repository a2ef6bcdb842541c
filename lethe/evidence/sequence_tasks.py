"""Two small sequence tasks, drawn from a seed: multi-query associative recall, and text by the byte.

*Recall* has the form of Arora et al. 2023 ("Zoology: Measuring and improving recall in efficient language
models"): a sequence begins with `PAIRS` pairs of a key and a value, all different; each key comes once more,
as far behind as their power law of gaps says, and there its value is to be named; random tokens stand
everywhere else. The loss is that of the answers alone. Who knows the values of a sequence, but not which
key each belongs to, needs log2(`PAIRS`) bits for an answer.

*Text* is one stream of short English sentences, cut into windows; every byte is to be foretold. A story has
a cast with invented names, says what they do and have, and asks for it, so a name is news once and after
that a matter of memory. The entropy of single bytes is what a model needs that knows no context.

Both use tokens below `VOCABULARY`; the same seed gives the same batches, and nothing is downloaded.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TASKS = ("recall", "text")
VOCABULARY = 128
SILENT = 255
"""The answer at a position that is not judged."""

PAIRS = 8
POWER = 0.01
"""A key comes again in the i-th place of two tokens behind the pairs with a weight of i^(POWER - 1)."""

CAST, SENTENCES = 4, 24
"""People of a story, and sentences that tell it."""

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
VERBS = ("met", "saw", "called", "asked")
THINGS = ("apple", "key", "lamp", "map")


@dataclass(frozen=True)
class Batches:
    """``tokens`` and ``answers``: uint8 [steps, batch, length]; ``memoryless``: bits an answer, what a
    model needs that cannot look back."""

    tokens: Tensor
    answers: Tensor
    memoryless: float


def draw(task: str, seed: int, steps: int, batch: int, length: int) -> Batches:
    """The batches of one training. Raises ValueError for a task that is not in `TASKS`."""
    if task == "recall":
        return recall(seed, steps, batch, length)
    if task == "text":
        return text(seed, steps, batch, length)
    raise ValueError(f"task is {task!r}; choose {' or '.join(TASKS)}")


@functools.lru_cache(maxsize=2)
def stacked(seeds: int, steps: int, batch: int, length: int) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Tokens and answers of both tasks, uint8 [steps, tasks * seeds, batch, length], seed by seed within a
    task; and for each task the mean of ``memoryless``."""
    drawn = [[draw(task, seed, steps, batch, length) for seed in range(seeds)] for task in TASKS]
    tokens, answers = (
        torch.stack([getattr(one, name) for part in drawn for one in part], 1)
        for name in ("tokens", "answers")
    )
    floors = {t: sum(one.memoryless for one in part) / seeds for t, part in zip(TASKS, drawn, strict=True)}
    return tokens, answers, floors


# --- recall -------------------------------------------------------------------------------------


def recall(seed: int, steps: int, batch: int, length: int) -> Batches:
    """Multi-query associative recall. Raises ValueError where a sequence has no room for its queries."""
    context, slots = 2 * PAIRS, (length - 2 * PAIRS) // 2
    if slots < PAIRS:
        raise ValueError(f"{length} tokens have no room for {PAIRS} pairs and as many queries")
    r = torch.Generator().manual_seed(seed)
    count = steps * batch

    def chosen(weights: Tensor) -> Tensor:
        """PAIRS different numbers for every sequence, in random order (Gumbel's trick)."""
        noise = -torch.rand(count, len(weights), generator=r).clamp_min(1e-30).log()
        order = torch.rand(count, PAIRS, generator=r).argsort(-1)
        return (weights.log() - noise.log()).topk(PAIRS).indices.gather(1, order)

    values_from = VOCABULARY // 2  # the keys come from below, but for 0
    keys = 1 + chosen(torch.ones(values_from - 1))
    values = values_from + chosen(torch.ones(VOCABULARY - values_from))
    at = context + 2 * chosen(torch.arange(1.0, slots + 1) ** (POWER - 1))
    tokens = torch.randint(VOCABULARY, (count, length), generator=r)
    tokens[:, 0:context:2], tokens[:, 1:context:2] = keys, values
    tokens.scatter_(1, at, keys)
    answers = torch.full((count, length), SILENT).scatter_(1, at, values)
    shape = (steps, batch, length)
    return Batches(tokens.byte().view(shape), answers.byte().view(shape), math.log2(PAIRS))


# --- text ---------------------------------------------------------------------------------------


def text(seed: int, steps: int, batch: int, length: int) -> Batches:
    """Windows of one stream of stories, the next byte of each byte being its answer."""
    shape = (steps, batch, length + 1)
    needed, parts, found = math.prod(shape), [], 0
    for sentence in sentences(random.Random(seed)):
        parts.append(sentence)
        found += len(sentence)
        if found >= needed:
            break
    stream = torch.frombuffer(bytearray("".join(parts).encode("ascii")), dtype=torch.uint8)
    windows = stream[:needed].view(shape)
    answers = windows[..., 1:].contiguous()
    return Batches(windows[..., :-1].contiguous(), answers, entropy(answers))


def sentences(r: random.Random) -> Iterator[str]:
    """Story after story, without end; a question is asked only where the story has told its answer."""
    while True:
        initials = r.sample(CONSONANTS.upper(), CAST)
        cast = [initial + r.choice(VOWELS) + r.choice(CONSONANTS) for initial in initials]
        owner: dict[str, str] = {}
        for _ in range(SENTENCES):
            turn, (who, whom) = r.random(), r.sample(cast, 2)
            if turn < 0.6:
                yield f"{who} {r.choice(VERBS)} {whom}. "
            elif turn < 0.8 or not owner:
                thing = r.choice(THINGS)
                owner[thing] = who
                yield f"{who} has the {thing}. "
            else:
                thing = r.choice(list(owner))
                yield f"Who has the {thing}? {owner[thing]}. "
        yield "\n"


def entropy(tokens: Tensor | Sequence[int]) -> float:
    """Bits a token of the frequencies of single tokens: what is left without any context."""
    counts = torch.bincount(torch.as_tensor(tokens).flatten().long()).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log2()).sum())
