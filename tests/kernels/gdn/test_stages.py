"""The ladder's third rung: prep, scan and out in float64 against the chunkwise reference; slots, decays."""

from __future__ import annotations

import pytest
import torch

from lethe.kernels.gdn import stages
from lethe.kernels.gdn.chunks import CHUNK, cut, slot_count
from lethe.kernels.gdn.decay import decayed, decayed_adjoint
from lethe.references.gdn_chunk import chunk_backward, chunk_forward
from tests.references.gdn_draws import draw, state, worst

RUNG = 1e-12
"""A rung of the ladder may differ from the one below by this, peak-normalised (float64, well-conditioned)."""


def assembled(x, *, scale, S0, do, dfinal, cu=None, block=1):
    """(o, final, gradients) through the three stages."""
    batch, length = x["q"].shape[:2]
    at = cut(batch, length, cu, torch.device("cpu"))
    c = stages.local(stages.Operands(*(at.pack(t) for t in x.values()), scale), block=block)
    prepared = stages.prepare(c)
    P = stages.prepare_adjoint(c, prepared, at.pack(do))
    S, final = stages.scan_forward(at, prepared, S0)
    D, dS0 = stages.scan_reverse(at, prepared, P, dfinal)
    found = stages.gradients(c, S, D, at.pack(do), block=block)
    grads = {name: at.unpack(t) for name, t in found.items()}
    return at.unpack(stages.outputs(c, S)), final, {**grads, "initial_state": dS0}


@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize(
    ("length", "dv", "gate"), [(192, 64, 1.0), (150, 128, 1.0), (37, 64, 0.1), (130, 128, 5.0)], ids=str
)
def test_the_stages_equal_the_chunkwise_reference(length, dv, gate, block):
    x, S0, dfinal = draw(length, 128, dv, gate=gate), state(1, 1, 128, dv), state(1, 1, 128, dv, seed=2)
    scale = 128**-0.5
    do = torch.randn(x["v"].shape, dtype=torch.float64)
    o, final = chunk_forward(**x, scale=scale, initial_state=S0)
    expected = chunk_backward(do, **x, scale=scale, initial_state=S0, dfinal=dfinal)
    got_o, got_final, got = assembled(x, scale=scale, S0=S0, do=do, dfinal=dfinal, block=block)
    assert worst({"o": got_o, "final": got_final}, {"o": o, "final": final}) < RUNG
    assert worst(got, expected) < RUNG


def test_packed_stages_equal_the_chunkwise_reference():
    cu = torch.tensor([0, 0, 70, 134, 134, 150])
    x, S0, dfinal = draw(150, 16, 12, heads=2), state(5, 2, 16, 12), state(5, 2, 16, 12, seed=2)
    do = torch.randn(x["v"].shape, dtype=torch.float64)
    o, final = chunk_forward(**x, initial_state=S0, cu_seqlens=cu)
    expected = chunk_backward(do, **x, initial_state=S0, dfinal=dfinal, cu_seqlens=cu)
    got_o, got_final, got = assembled(x, scale=1.0, S0=S0, do=do, dfinal=dfinal, cu=cu)
    assert worst({"o": got_o, "final": got_final}, {"o": o, "final": final}) < RUNG
    assert worst(got, expected) < RUNG


def test_slots_of_packed_sequences_never_meet():
    """The rule ``cu // 64 + n`` on many random cuts: enough slots, no overlap, every token once."""
    r = torch.Generator().manual_seed(0)
    for _ in range(200):
        lengths = torch.randint(0, 200, (7,), generator=r) * torch.randint(0, 2, (7,), generator=r)
        cu = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        total = int(cu[-1])
        at = cut(1, total, cu, torch.device("cpu"))
        assert at.tokens.shape[0] == slot_count(1, total, 7)
        ends = [first + count for first, count in zip(at.first, at.count, strict=True)]
        assert all(end <= nxt for end, nxt in zip(ends, (*at.first[1:], at.tokens.shape[0]), strict=True))
        assert at.tokens[at.tokens < total].tolist() == list(range(total))


def triangle(x, y, G, strict):
    """From the definition, one pair at a time."""
    X = torch.zeros(CHUNK, CHUNK, dtype=torch.float64)
    for i in range(CHUNK):
        for j in range(i if strict else i + 1):
            X[i, j] = (x[i] * y[j] * (G[i] - G[j]).exp()).sum()
    return X


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("gate", "block"), [(0.05, 16), (5.0, 16), (10.0, 16), (40.0, 1)])
def test_decays_are_safe_in_float32(gate, block, strict):
    """KDA's 5 nats a token and far beyond: no overflow, no underflow that matters, values and adjoint.

    Each entry sums 16 products: float32 rounds each of 3 factors and 2 exponents of up to 8 gate (2^-24
    relative each, the exponent's error multiplied by its size).
    """
    torch.manual_seed(0)
    x, y = torch.randn(2, CHUNK, 16, dtype=torch.float64)
    g = -gate * torch.rand(CHUNK, 16, dtype=torch.float64)
    g[:, :4] = -gate
    g = g.float().double()
    G = g.cumsum(0)
    want = triangle(x, y, G, strict)
    found = decayed(x.float(), y.float(), g.float().cumsum(0), strict=strict, block=block)
    bound = 2.0**-24 * (8 + 2 * 64 * gate)
    assert float((found.double() - want).abs().max() / want.abs().max()) < bound
    dX = torch.randn_like(want).tril(-1 if strict else 0)
    xx, yy = x.clone().requires_grad_(), y.clone().requires_grad_()
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(0 if strict else 1)
    E = (G[:, None] - G[None]).masked_fill(later[..., None], float("-inf")).exp()
    pairs = torch.einsum("id,jd,ijd->ij", xx, yy, E)
    expected = torch.autograd.grad(pairs, (xx, yy), dX)
    got = decayed_adjoint(dX.float(), x.float(), y.float(), g.float().cumsum(0), block=block)
    for a, e in zip(got, expected, strict=True):
        assert float((a.double() - e).abs().max() / e.abs().max()) < 4 * bound


def test_a_decay_per_head_is_the_same_as_per_channel():
    x = draw(100, 16, 12, heads=2)
    S0, dfinal = state(1, 2, 16, 12), state(1, 2, 16, 12, seed=2)
    do = torch.randn(x["v"].shape, dtype=torch.float64)
    narrow = {name: x[name][..., :1] if name in ("g", "b", "w") else x[name] for name in x}
    wide = {name: t.expand_as(x[name]) for name, t in narrow.items()}
    o, final, got = assembled(narrow, scale=0.5, S0=S0, do=do, dfinal=dfinal)
    o_wide, final_wide, expected = assembled(wide, scale=0.5, S0=S0, do=do, dfinal=dfinal)
    expected = {n: t.sum(-1, keepdim=True) if n in ("g", "b", "w") else t for n, t in expected.items()}
    assert worst({"o": o, "final": final}, {"o": o_wide, "final": final_wide}) < RUNG
    assert worst(got, expected) < RUNG


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "b", "w"])
def test_nan_in_is_nan_out_and_never_in_an_earlier_chunk(name):
    x, t = draw(160, 8, 6), 70
    x[name][0, t, 0, 3] = float("nan")
    zero = torch.zeros(1, 1, 8, 6, dtype=torch.float64)
    o, final, _ = assembled(x, scale=1.0, S0=zero, do=torch.randn_like(x["v"]), dfinal=zero)
    assert torch.isfinite(o[0, :CHUNK]).all() and torch.isnan(o[0, t]).any()
    assert name == "q" or (torch.isnan(final).any() and torch.isnan(o[0, 2 * CHUNK :]).any())
