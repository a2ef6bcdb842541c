"""How large an error a narrower regime makes, and where it makes none."""

from __future__ import annotations

import math

import pytest
import torch

from lethe.verifier import oracle, precision
from tests.verifier.references import reference, tensors


def test_truncation_never_moves_away_from_zero():
    t = torch.tensor([1 + 2.0**-11, -1 - 2.0**-10 - 2.0**-12, 3e5, 2.0**-25], dtype=torch.float64)
    assert precision.rounded(t, "tf32", truncate=True).tolist() == [1.0, -1 - 2.0**-10, 299776.0, 2.0**-25]
    assert precision.rounded(t, "float16", truncate=True).tolist() == [1.0, -1 - 2.0**-10, math.inf, 0.0]
    x = torch.randn(1000, dtype=torch.float64)
    cut, near = (precision.rounded(x, "bfloat16", truncate=way) for way in (True, False))
    assert bool((cut.abs() <= x.abs()).all()) and bool(((cut == near) | (near.abs() > x.abs())).all())


def test_the_ceiling_of_a_product_is_that_of_truncated_operands():
    """Two rounding errors of variance u^2 / 12 a term, or two truncations of mean u / 2 that add up."""
    inst = reference(lambda m, a, b: a @ b, (64, 400), (400, 64))
    x = inst.draw(1)
    truth = oracle.run_float64(inst, x)
    near = precision.level(precision.narrowed_run(inst, x, "tf32"), truth)
    assert precision.ceiling(inst, x, truth, "tf32", False) / near == pytest.approx(math.sqrt(7), rel=0.05)
    stored = precision.level(precision.narrowed_run(inst, x, "tf32", results=True), truth)
    assert near < stored < 2 * near


def test_an_error_fell_stayed_or_cannot_be_told():
    assert precision.fell(1e-3, 2e-7, 1e-7) is True
    assert precision.fell(1e-3, 9e-4, 1e-7) is False
    assert precision.fell(1e-3, 1e-7, 5e-4) is None, "the cause makes about as large an error there"
    assert precision.fell(1e-3, 1e-1, 1e-7) is None, "weights did not arrive"


def test_what_is_stored_in_a_narrow_type_lies_on_its_grid():
    x = torch.randn(50)
    for kind, narrow in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        assert precision.representable([x.to(narrow).float()], kind)
        assert not precision.representable([x.to(narrow).float() * 1.1], kind)
    assert precision.representable([torch.tensor([math.inf, math.nan, 0.5])], "bfloat16")


@pytest.mark.parametrize("kind", ["tf32", "bfloat16"])
def test_small_integers_are_exact_in_every_regime(kind):
    from lethe.verifier.regimes import _few_bits

    inst = reference(lambda m, x: m.fc(x), (9, 64), fc=lambda: torch.nn.Linear(64, 8))
    module = inst.module
    state, altered = _few_bits(module)
    assert altered == {"fc.weight", "fc.bias"}
    for name in altered:
        own, few = module.state_dict()[name], state[name]
        assert 0.5 < float(few.square().mean() / own.square().mean()) < 2
    module.load_state_dict(state)
    x = [torch.randint(-1, 2, (9, 64)).float()]
    truth = oracle.run_float64(inst, x)
    assert precision.ceiling(inst, x, truth, kind, False) == 0.0
    assert tensors(truth)[0].abs().max() > 0
