"""Which elements of an input a reference does not read."""

from __future__ import annotations

import pytest
import torch

from lethe.verifier import oracle
from lethe.verifier.problem import OpSpec, instantiate, problem_from_spec
from lethe.verifier.structure import flatten
from lethe.verifier.unread import unread

F = torch.nn.functional


def found(forward, shape: tuple[int, ...]) -> torch.Tensor | None:
    spec = OpSpec("op", forward, lambda n: [torch.randn(n, *shape[1:])], {"n": shape[0]})
    instance = instantiate(problem_from_spec(spec))
    inputs = instance.draw(3)
    clean, _ = flatten(oracle.run_working(instance, inputs))
    g = torch.Generator().manual_seed(1)
    upstream = [torch.randn(t.shape, generator=g) for t in clean]
    return unread(instance, inputs, 0, "input:0", upstream, clean)


@pytest.mark.parametrize(
    ("forward", "shape", "period"),
    [
        (lambda x: F.max_pool2d(x, 2, stride=5), (2, 3, 12, 12), 5),
        (lambda x: F.max_pool2d(x, 2, stride=4, dilation=2), (2, 3, 15, 15), 4),
        (lambda x: F.avg_pool2d(x, 2, stride=5), (2, 3, 12, 12), 5),
    ],
    ids=["max", "dilated max", "average"],
)
def test_what_a_pooling_steps_over_is_found(forward, shape, period) -> None:
    mask = found(forward, shape)
    read = torch.zeros(shape, dtype=torch.bool)
    near = torch.arange(shape[-1]) % period
    step = 2 if period == 4 else 1
    last = (shape[-1] - 1 - step) // period * period + step
    taken = ((near == 0) | (near == step)) & (torch.arange(shape[-1]) <= last)
    read[:, :, taken.nonzero(), taken.nonzero().mT] = True
    assert mask is not None and torch.equal(mask, ~read)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: F.max_pool2d(x, 3),
        lambda x: x.relu(),
        lambda x: x.amin(1),
        lambda x: x.max(-1)[0],
    ],
    ids=["max", "relu", "amin", "max of a row"],
)
def test_what_is_read_and_has_no_gradient_is_not_called_unread(forward) -> None:
    assert found(forward, (2, 3, 9, 9)) is None
