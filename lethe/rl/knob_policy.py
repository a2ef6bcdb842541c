"""A policy over launch parameters: a small transformer that reads a shape and chooses one knob after another.

The sequence is the shape's features, a token each, then the knobs: the token at a knob's place attends to the
features and to the choices made so far and gives the logits of the next choice, so that the choices may
depend on each other. The output layer begins at zero: an untrained policy chooses uniformly, and that is
its reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lethe.rl.launch_space import Space
from lethe.rl.train import Rollout

Shape = tuple[int, int, int]


def features(shapes: Sequence[Shape]) -> Tensor:
    """[n, 4] float32: log2 of batch, length, width and the number of channels in all, each about of order
    one."""
    rows = [
        (math.log2(b), math.log2(length) - 11, math.log2(width) - 10, math.log2(b * width) - 11)
        for b, length, width in shapes
    ]
    return torch.tensor(rows, dtype=torch.float32) / 2


class KnobPolicy(nn.Module):
    """Choices of every knob of `space`, given a shape. Deterministic for a seed."""

    def __init__(self, space: Space, seed: int = 0, width: int = 48, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.space = space
        self._sizes = space.sizes
        state = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.feature = nn.Parameter(torch.randn(4, 2, width) * 0.5)
        self.place = nn.Parameter(torch.randn(4 + len(self._sizes), width) * 0.1)
        self.choice = nn.ModuleList(nn.Embedding(n, width) for n in self._sizes)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.ModuleList(nn.Linear(width, n) for n in self._sizes)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        torch.random.set_rng_state(state)
        self._draw = torch.Generator().manual_seed(seed)

    def logits(self, shapes: Sequence[Shape], picks: Tensor) -> list[Tensor]:
        """Logits [n, choices] of each knob given the picks [n, K] before it."""
        f = features(shapes)
        given = f.unsqueeze(-1) * self.feature[:, 0] + self.feature[:, 1]
        chosen = [table(picks[:, i]) for i, table in enumerate(self.choice)][:-1]
        knobs = torch.stack([torch.zeros_like(given[:, 0]), *chosen], 1)
        x = torch.cat([given, knobs], 1) + self.place
        length = x.shape[1]
        blocked = torch.ones(length, length, dtype=torch.bool).triu(1)
        blocked[:4, :4] = False
        out = self.body(x, mask=blocked)[:, 4:]
        return [head(out[:, i]) for i, head in enumerate(self.head)]

    def _picked(self, shapes: Sequence[Shape], picks: Tensor) -> Tensor:
        found = self.logits(shapes, picks)
        return torch.stack(
            [torch.log_softmax(x, -1).gather(1, picks[:, i : i + 1]).squeeze(1) for i, x in enumerate(found)],
            1,
        )

    @torch.no_grad()
    def sample(self, contexts: Sequence[Shape], group: int) -> Rollout:
        """`group` configurations for each shape; an answer is its index in the space."""
        shapes = [shape for shape in contexts for _ in range(group)]
        picks = torch.zeros(len(shapes), len(self._sizes), dtype=torch.int64)
        for i in range(len(self._sizes)):
            p = torch.softmax(self.logits(shapes, picks)[i], -1)
            picks[:, i] = torch.multinomial(p, 1, generator=self._draw).squeeze(1)
        answers = [self.space.index(tuple(row)) for row in picks.tolist()]
        logps = self._picked(shapes, picks)
        return Rollout(shapes, answers, picks, torch.ones_like(logps), logps)

    def logps(self, rollout: Rollout) -> Tensor:
        return self._picked(rollout.contexts, rollout.tokens)

    def reference_logps(self, rollout: Rollout) -> Tensor:
        """The uniform policy, which is the untrained one."""
        return -torch.log(torch.tensor(self._sizes, dtype=torch.float32)).expand_as(rollout.logps)

    @torch.no_grad()
    def probabilities(self, shape: Shape) -> Tensor:
        """[configurations] of the whole space for one shape."""
        every = torch.tensor([self.space.picks(i) for i in range(len(self.space))])
        return self._picked([shape] * len(every), every).sum(1).exp()

    def greedy(self, shape: Shape) -> int:
        """Index of the configuration that is most probable."""
        return int(self.probabilities(shape).argmax())

    def parameters(self, recurse: bool = True) -> Iterable[nn.Parameter]:  # type: ignore[override]
        return list(super().parameters(recurse))
