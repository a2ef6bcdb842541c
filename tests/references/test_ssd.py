"""The SSD oracle: against autograd, finite differences, the semiseparable matrix, and what it refuses."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from lethe.references.ssd import ssd_backward, ssd_reference
from tests.references.ssd_draws import VARIANTS, close, leaves, operands

EVERY = pytest.mark.parametrize("variant", list(VARIANTS))


def matrix_form(o: dict, start: int, stop: int, initial: torch.Tensor | None) -> torch.Tensor:
    """y of the tokens [start, stop) by the semiseparable matrix, entry by entry, before skip and gate."""
    raw = o["dt"] + o.get("dt_bias", 0.0)
    low, high = o.get("dt_limit", (0.0, math.inf))
    d = (torch.log(1 + torch.exp(raw)) if o.get("dt_softplus") else raw).clamp(low, high)
    batch, _, heads, width = o["x"].shape
    share = heads // o["B"].shape[2]
    y = torch.zeros(batch, stop - start, heads, width, dtype=torch.float64)
    for h in range(heads):
        for t in range(start, stop):
            for s in range(start, t + 1):
                decay = torch.exp(o["A"][h] * d[:, s + 1 : t + 1, h].sum(1))
                score = (o["C"][:, t, h // share] * o["B"][:, s, h // share]).sum(-1)
                y[:, t - start, h] += (score * decay * d[:, s, h])[:, None] * o["x"][:, s, h]
            if initial is not None:
                decay = torch.exp(o["A"][h] * d[:, start : t + 1, h].sum(1))
                y[:, t - start, h] += (
                    decay[:, None] * (initial[:, h] @ o["C"][:, t, h // share, :, None])[..., 0]
                )
    return y


@EVERY
def test_it_equals_the_matrix_form(variant):
    o = operands(variant)
    cuts = o["cu_seqlens"].tolist() if "cu_seqlens" in o else [0, 9]
    initial = o.get("initial_states")
    parts = [
        matrix_form(o, a, b, initial if initial is None or len(cuts) == 2 else initial[i : i + 1])
        for i, (a, b) in enumerate(pairwise(cuts))
    ]
    y = torch.cat(parts, 1)
    if "D" in o:
        y = y + (o["D"] if o["D"].dim() == 2 else o["D"][:, None]) * o["x"]
    if "z" in o:
        y = y * F.silu(o["z"])
    assert close(ssd_reference(**o), y)


@EVERY
def test_the_backward_by_hand_equals_autograd(variant):
    o = operands(variant)
    live = leaves(o)
    y, final = ssd_reference(**o, return_final_states=True)
    dy, dfinal = torch.randn_like(y), torch.randn_like(final)
    expected = torch.autograd.grad([y, final], list(live.values()), [dy, dfinal])
    with torch.no_grad():
        got = ssd_backward(dy, **o, dfinal=dfinal)
    assert set(got) == set(live)
    for name, reference in zip(live, expected, strict=True):
        assert close(got[name], reference), name


@pytest.mark.parametrize("variant", ["everything", "cut"])
def test_finite_differences(variant):
    """The clamp's edges are not hit: a difference across one is no derivative."""
    o = operands(variant, heads=2, groups=1)
    live = leaves(o)

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ssd_reference(**(o | dict(zip(live, values, strict=True))), return_final_states=True)

    assert torch.autograd.gradcheck(run, tuple(live.values()), eps=1e-6, atol=1e-8, rtol=1e-6)


def test_a_sequence_may_be_cut_anywhere():
    o = operands("everything")
    whole, final = ssd_reference(**o, return_final_states=True)
    along = ("x", "dt", "B", "C", "z")
    first = {k: v[:, :4] if k in along else v for k, v in o.items()}
    second = {k: v[:, 4:] if k in along else v for k, v in o.items()}
    head, middle = ssd_reference(**first, return_final_states=True)
    tail, end = ssd_reference(**(second | {"initial_states": middle}), return_final_states=True)
    assert close(torch.cat([head, tail], 1), whole) and close(end, final)


def test_cut_sequences_are_separate_calls():
    o = operands("cut")
    y, final = ssd_reference(**o, return_final_states=True)
    assert torch.equal(final[1], o["initial_states"][1])
    for index, (a, b) in ((0, (0, 3)), (2, (3, 9))):
        alone = {k: v[:, a:b] if k in ("x", "dt", "B", "C", "z") else v for k, v in o.items()}
        del alone["cu_seqlens"]
        alone["initial_states"] = o["initial_states"][index : index + 1]
        part, end = ssd_reference(**alone, return_final_states=True)
        assert torch.equal(part, y[:, a:b]) and torch.equal(end[0], final[index])


@pytest.mark.parametrize(
    ("raw", "step", "slope"),
    [(-0.5, 0.25, 0.0), (0.25, 0.25, 1.0), (0.5, 0.5, 1.0), (1.0, 1.0, 1.0), (1.5, 1.0, 0.0)],
)
def test_the_clamp_and_its_subgradient(raw, step, slope):
    """One token, one state: y = d x B C, so dy/ddt is x B C inside the closed interval."""
    one = torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64)
    o = {
        "x": one, "dt": torch.full((1, 1, 1), raw, dtype=torch.float64), "B": one, "C": one,
        "A": torch.zeros(1, dtype=torch.float64), "dt_limit": (0.25, 1.0),
    }  # fmt: skip
    assert ssd_reference(**o).item() == 8 * step
    assert ssd_backward(torch.ones_like(one), **o)["dt"].item() == 8 * slope


@pytest.mark.parametrize("raw", [-40.0, -20.5, -19.5, 19.5, 20.0, 20.5])
def test_softplus_in_its_tails(raw):
    """Against log(1 + e^raw) in 60 digits, to float64 where it is a softplus and to 2e-9 where it is not."""
    from decimal import Decimal, getcontext

    getcontext().prec = 60
    exact = float((1 + Decimal(raw).exp()).ln())
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    o = {
        "x": one, "dt": torch.full((1, 1, 1), raw, dtype=torch.float64), "B": one, "C": one,
        "A": torch.zeros(1, dtype=torch.float64), "dt_softplus": True,
    }  # fmt: skip
    assert ssd_reference(**o).item() == pytest.approx(exact, rel=2e-9 if raw > 20 else 1e-15)


def test_a_growing_state_grows():
    o = operands() | {"A": torch.full((6,), 0.25, dtype=torch.float64)}
    o["dt"] = torch.ones_like(o["dt"])
    silent = o | {
        "x": torch.zeros_like(o["x"]),
        "initial_states": torch.ones(2, 6, 3, 4, dtype=torch.float64),
    }
    _, final = ssd_reference(**silent, return_final_states=True)
    assert close(final, torch.full_like(final, math.exp(0.25 * 9)))


def test_other_dtypes_are_refused_by_name():
    o = operands("everything")
    for name in ("x", "A", "D", "z", "initial_states"):
        with pytest.raises(TypeError, match=rf"float64, but {name} is torch\.float32"):
            ssd_reference(**(o | {name: o[name].float()}))
    with pytest.raises(TypeError, match=r"float64, but dy is torch\.bfloat16"):
        ssd_backward(o["x"].bfloat16(), **o)


def test_wrong_shapes_and_cuts_are_refused():
    o = operands("everything")
    with pytest.raises(ValueError, match="A has shape"):
        ssd_reference(**(o | {"A": o["A"][:1]}))
    with pytest.raises(ValueError, match="D has shape"):
        ssd_reference(**(o | {"D": o["D"][:, :1]}))
    with pytest.raises(ValueError, match="6 heads, which the 4 groups"):
        ssd_reference(**(o | {k: o[k][:, :, :1].expand(-1, -1, 4, -1) for k in ("B", "C")}))
    with pytest.raises(ValueError, match="holds 1 states for 2 sequences"):
        ssd_reference(**(o | {"initial_states": o["initial_states"][:1]}))
    cuts = torch.tensor([0, 4, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match="one batch entry, but the batch is 2"):
        ssd_reference(**(operands() | {"cu_seqlens": cuts}))
    for wrong in ([0, 5, 4, 9], [0, 8], [1, 9], [0]):
        with pytest.raises(ValueError, match="must rise from 0 to 9"):
            ssd_reference(**(operands("cut-from-zero") | {"cu_seqlens": torch.tensor(wrong)}))
