"""C1 and C2 under the interpreter: every mode, rule and faithful dtype, odd sizes on purpose."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from tests.kernels.mamba3.checked import assert_within, scan_errors
from tests.kernels.mamba3.draws import error, scan_operands

SERIAL, CHUNKED = {"mode": "serial"}, {"mode": "chunked", "chunk": 4}
MODES = pytest.mark.parametrize("how", [SERIAL, CHUNKED], ids=["serial", "chunked"])


@MODES
@pytest.mark.parametrize("trap", [False, True], ids=["euler", "trapezoidal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
def test_values_and_gradients(dtype, trap, how):
    assert_within(scan_errors(scan_operands(1, 9, 9, 5, dtype, trap=trap, state=True), **how), dtype)


@pytest.mark.parametrize(
    ("batch", "length", "width", "n"),
    [(1, 1, 1, 1), (3, 5, 2, 2), (1, 8, 17, 16), (2, 5, 6, 20)],
    ids=lambda v: str(v),
)
def test_ragged_sizes(batch, length, width, n):
    assert_within(scan_errors(scan_operands(batch, length, width, n), mode="chunked", chunk=4), torch.float32)


@pytest.mark.parametrize("tile", [(2, 2, 8), (1, 1, 16), (3, 4, 4)], ids=lambda t: "x".join(map(str, t)))
def test_gradients_do_not_depend_on_the_tile(tile):
    """Chunks of 4, 1 and 12 tokens, ragged; more lanes than one step of shuffles joins."""
    from lethe.kernels.mamba3 import scan_launch

    with mock.patch.object(scan_launch, "BACKWARD_TILE", scan_launch.Tile(*tile)):
        errors = scan_errors(scan_operands(1, 14, 9, 3, trap=True, state=True))
    assert_within(errors, torch.float32)


@pytest.mark.parametrize("by_state", [False, True], ids=["by-token", "by-state"])
@pytest.mark.parametrize(
    ("tile", "chunk"),
    [((4, 1, 8), 4), ((2, 1, 4), 6), ((2, 2, 8), 4), ((1, 4, 16), 8), ((2, 8, 2), 16), ((2, 2, 4), 14)],
    ids=lambda t: "x".join(map(str, t)) if isinstance(t, tuple) else str(t),
)
def test_values_do_not_depend_on_the_tile(tile, chunk, by_state):
    """One lane or several, one segment a chunk or several, ragged, one chunk; a state and a token before."""
    from lethe.kernels.mamba3 import scan_launch

    o = scan_operands(1, 14, 5, 3, trap=True, state=True)
    run, given = scan_launch.forward, scan_launch.Tile(*tile)
    with mock.patch.object(scan_launch, "forward", lambda operands, c: run(operands, c, given, by_state)):
        assert_within(scan_errors(o, mode="chunked", chunk=chunk), torch.float32)


TILES_WITH_LANES = pytest.mark.parametrize(
    "tile", [(1, 8, 4), (2, 4, 8)], ids=lambda t: "x".join(map(str, t))
)


@TILES_WITH_LANES
def test_small_steps_behind_a_large_one_keep_their_digits(tile):
    """A running sum at 1e5 resolves hundredths only: decays may not be differences of such sums."""
    from lethe.kernels.mamba3 import scan_launch

    o = scan_operands(1, 30, 9, 3, state=True)
    o["dt"][:, 9], o["u"][:, 9] = 1e5, 0.0
    run, given = scan_launch.forward, scan_launch.Tile(*tile)
    with (
        mock.patch.object(scan_launch, "BACKWARD_TILE", given),
        mock.patch.object(scan_launch, "forward", lambda operands, c: run(operands, c, given)),
    ):
        assert_within(scan_errors(o, mode="chunked", chunk=8), torch.float32)


@TILES_WITH_LANES
def test_an_infinite_step_makes_one_state_infinite(tile):
    from lethe.kernels.mamba3 import scan_launch

    o = scan_operands(1, 30, 9, 1)
    o["dt"][:, 9] = float("inf")
    operands = {k: o[k] for k in ("u", "dt", "A", "B", "C", "D")}
    run, given = scan_launch.forward, scan_launch.Tile(*tile)
    with mock.patch.object(scan_launch, "forward", lambda operands, c: run(operands, c, given)):
        from lethe.kernels.mamba3.scan import selective_scan

        y = selective_scan(**operands, mode="chunked", chunk=8)[0]
    assert y[:, :9].isfinite().all() and y[:, 9:].isinf().all()


def test_many_programs_take_the_wide_tile():
    from lethe.kernels.mamba3 import scan_launch

    assert scan_launch.forward_tile(1, 2048, 1) is scan_launch.SERIAL_TILE
    assert scan_launch.forward_tile(1, 2048, 64) is scan_launch.WIDE_TILE
    assert scan_launch.forward_tile(1, 256, 16) is scan_launch.NARROW_TILE
    with mock.patch.object(scan_launch, "WIDE_PROGRAMS", 1):
        assert_within(scan_errors(scan_operands(1, 20, 65, 3, state=True), **CHUNKED), torch.float32)


@pytest.mark.slow
def test_more_chunks_than_one_group():
    from lethe.kernels.mamba3 import scan_launch

    with mock.patch.object(scan_launch, "BACKWARD_TILE", scan_launch.Tile(1, 1, 2)):
        errors = scan_errors(scan_operands(1, 66, 2, 2), mode="chunked", chunk=1)
    assert_within(errors, torch.float32)


def test_strides_are_honoured():
    from lethe.kernels.mamba3.scan import selective_scan

    o = scan_operands(2, 5, 6, 3)
    dense, _ = selective_scan(**o)
    wide = torch.randn(2, 5, 20)
    wide[..., 7:13] = o["u"]
    strided = o | {"u": wide[..., 7:13], "B": o["B"].transpose(1, 2).contiguous().transpose(1, 2)}
    assert torch.equal(selective_scan(**strided)[0], dense)


def test_a_sequence_may_be_cut_in_two():
    from lethe.kernels.mamba3.scan import selective_scan

    o = scan_operands(1, 9, 5, 3, trap=True)
    whole, end = selective_scan(**o)
    timed = ("u", "dt", "B", "C", "trap")
    head = {k: v[:, :4] if k in timed else v for k, v in o.items()}
    tail = {k: v[:, 4:] if k in timed else v for k, v in o.items()}
    first, middle = selective_scan(**head)
    second, final = selective_scan(**tail, initial_state=middle, previous=(o["u"][:, 3], o["B"][:, 3]))
    assert error(torch.cat([first, second], 1), whole.double()) < 1e-6
    assert error(final, end.double()) < 1e-6


def test_gate_bias_and_softplus_in_the_scan_itself():
    from lethe.kernels.mamba3.scan import selective_scan

    o = scan_operands(1, 6, 5, 3)
    bias, z, raw = torch.randn(5), torch.randn(1, 6, 5), torch.randn(1, 6, 5)
    got, _ = selective_scan(**(o | {"dt": raw}), z=z, dt_bias=bias, softplus=True)
    plain, _ = selective_scan(**(o | {"dt": torch.nn.functional.softplus(raw + bias)}))
    assert error(got, (plain * torch.nn.functional.silu(z)).double()) < 2e-6


def test_a_small_step_keeps_its_digits():
    """softplus(-12) is 6e-6; log(1 + e^v) in float32 would lose two of its digits."""
    from lethe.kernels.mamba3.scan import selective_scan

    ones = torch.ones(1, 1, 1)
    y, _ = selective_scan(ones, -12 * ones, -torch.ones(1, 1), ones, ones, softplus=True)
    assert abs(y.item() / torch.nn.functional.softplus(torch.tensor(-12.0).double()).item() - 1) < 1e-6


def test_a_growing_rate_grows_as_the_formula_says():
    errors = scan_errors(scan_operands(1, 8, 3, 2) | {"A": torch.full((3, 2), 0.3)}, **CHUNKED)
    assert_within(errors, torch.float32)


def test_refusals_name_the_argument():
    from lethe.kernels.mamba3.scan import selective_scan

    o = scan_operands(2, 5, 6, 3)
    with pytest.raises(TypeError, match=r"B is torch\.float64"):
        selective_scan(**(o | {"B": o["B"].double()}))
    with pytest.raises(ValueError, match=r"A has shape \(1, 3\), expected \(D=6, N=3\)"):
        selective_scan(**(o | {"A": o["A"][:1]}))
    with pytest.raises(ValueError, match=r"dt has shape \(2, 5, 1\)"):
        selective_scan(**(o | {"dt": o["dt"][..., :1]}))
    with pytest.raises(ValueError, match="C is on meta, u is on cpu"):
        selective_scan(**(o | {"C": o["C"].to("meta")}))
    with pytest.raises(ValueError, match="mode is 'fast'"):
        selective_scan(**o, mode="fast")
    with pytest.raises(ValueError, match="it needs trap"):
        selective_scan(**o, previous=(o["u"][:, 0], o["B"][:, 0]))
    o["trap"] = torch.zeros_like(o["dt"])
    with pytest.raises(ValueError, match=r"previous\[0\] has shape \(2, 1\), expected \(B=2, D=6\)"):
        selective_scan(**o, previous=(o["u"][:, 0, :1], o["B"][:, 0]))
    with pytest.raises(ValueError, match=r"previous\[1\] has shape \(1, 3\), expected \(B=2, N=3\)"):
        selective_scan(**o, previous=(o["u"][:, 0], o["B"][:1, 0]))
    with pytest.raises(ValueError, match="it has 1 parts"):
        selective_scan(**o, previous=(o["u"][:, 0],))


def test_the_operator_is_registered_as_torch_wants_it():
    from lethe.kernels.mamba3 import scan

    o = scan_operands(1, 4, 3, 2, state=True)
    args = [o.get(name) for name in scan.FIELDS]
    args = [a.requires_grad_() if a is not None else None for a in args]
    torch.library.opcheck(torch.ops.lethe.mamba_scan.default, (*args, False, 2))


def test_torch_compile_gives_the_same():
    from lethe.kernels.mamba3.scan import selective_scan

    o = scan_operands(1, 5, 3, 2)
    compiled = torch.compile(lambda **k: selective_scan(**k)[0] * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(**o), selective_scan(**o)[0] * 2)


def test_padding_states_do_not_turn_infinity_into_nan():
    """Five states are padded to eight; infinity times a padding zero must not reach the sum over states."""
    from lethe.kernels.mamba3.scan import selective_scan

    ones = {"dt": torch.ones(1, 3, 2), "B": torch.ones(1, 3, 5), "C": torch.ones(1, 3, 5)}
    u = torch.ones(1, 3, 2)
    u[0, 1, 0] = float("inf")
    y, _ = selective_scan(u, **ones, A=-torch.ones(2, 5))
    assert y[0, 1:, 0].isposinf().all() and y[0, :, 1].isfinite().all()


@pytest.mark.parametrize("tile", [(1, 4, 4), (2, 1, 4)], ids=["lanes", "one-lane"])
def test_an_infinite_state_stays_infinite_from_lane_to_lane(tile):
    from lethe.kernels.mamba3 import scan_launch
    from lethe.kernels.mamba3.scan import selective_scan

    ones = {"dt": torch.ones(1, 9, 2), "B": torch.ones(1, 9, 2), "C": torch.ones(1, 9, 2)}
    u = torch.ones(1, 9, 2)
    u[0, 1, 0] = float("inf")
    run, given = scan_launch.forward, scan_launch.Tile(*tile)
    with mock.patch.object(scan_launch, "forward", lambda operands, c: run(operands, c, given)):
        y, final = selective_scan(u, **ones, A=-torch.ones(2, 2))
    assert y[0, 1:, 0].isposinf().all() and y[0, 0, 0].isfinite() and y[0, :, 1].isfinite().all()
    assert final[0, 0].isposinf().all() and final[0, 1].isfinite().all()


def test_tokens_past_the_end_leave_no_trace_of_a_nan():
    """The last chunk is longer than the sequence; a NaN in the last input meets no rate."""
    from lethe.kernels.mamba3.scan import selective_scan

    o = scan_operands(1, 3, 2, 2)
    o["u"][0, -1, 0] = float("nan")
    A = o["A"].requires_grad_()
    y, _ = selective_scan(**(o | {"A": A}))
    (gradient,) = torch.autograd.grad(y, A, torch.ones_like(y))
    assert gradient.isfinite().all()
