"""What Triton's interpreter computes, held against the language's definition."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tests.verifier.forked import interpreted

NAN, INF = float("nan"), float("inf")


@interpreted
def _elementwise(k: Any, op: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    o = torch.empty_like(x)
    k.elementwise[(1,)](x, y, o, op, x.numel())
    return o


SPECIALS = torch.tensor([NAN, 1.0, NAN, -0.0, 0.0, INF, -INF, 3.0])
PARTNERS = torch.tensor([2.0, NAN, NAN, 0.0, -0.0, NAN, 1.0, -3.0])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("maximum", [2.0, 1.0, NAN, 0.0, 0.0, INF, 1.0, 3.0]),
        ("maximum_all", [NAN, NAN, NAN, 0.0, 0.0, NAN, 1.0, 3.0]),
        ("minimum", [2.0, 1.0, NAN, -0.0, -0.0, INF, -INF, -3.0]),
        ("clamp", [-1.0, 1.0, -1.0, -0.0, 0.0, 1.0, -1.0, 1.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_extrema_treat_nan_and_zeros_as_the_gpu(op: str, expected: list[float], dtype: torch.dtype) -> None:
    got = _elementwise(op, SPECIALS.to(dtype), PARTNERS.to(dtype)).tolist()
    signed = [(math.isnan(v), math.copysign(1, v) if v == 0 else v) for v in got]
    wanted = [(math.isnan(v), math.copysign(1, v) if v == 0 else v) for v in expected]
    assert [s if not s[0] else True for s in signed] == [w if not w[0] else True for w in wanted]


@pytest.mark.parametrize("op", ["add", "mul", "div"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_arithmetic_rounds_once(op: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    x, y = (torch.randn(1024, generator=generator).to(dtype) for _ in range(2))
    wide = {"add": x.double() + y.double(), "mul": x.double() * y.double(), "div": x.double() / y.double()}[
        op
    ]
    error = (_elementwise(op, x, y).double() - wide).abs()
    half_ulp = torch.finfo(dtype).eps * 2.0 ** torch.floor(torch.log2(wide.abs())) / 2
    assert (error <= half_ulp * (1 + 1e-9) + torch.finfo(dtype).smallest_normal).all()


def test_fma_rounds_once_in_float32() -> None:
    x = torch.tensor([1.0 + 2.0**-12, 1.0 + 2.0**-23, 3.0, 1e-30], dtype=torch.float32)
    y = torch.tensor([-1.0 + 2.0**-12, -1.0 - 2.0**-23, 1 / 3, 1e-15], dtype=torch.float32)
    got = _elementwise("fma", x, y).tolist()
    for a, b, value in zip(x.tolist(), y.tolist(), got, strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(a)
        neighbours = [value, float(np.nextafter(np.float32(value), np.float32(9e9)))]
        neighbours.append(float(np.nextafter(np.float32(value), np.float32(-9e9))))
        assert abs(Fraction(value) - exact) == min(abs(Fraction(v) - exact) for v in neighbours)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("boolean", lambda x, y: (x < y) & ~(x < -y)),
        ("either", lambda x, y: (x < y) | (x > 1)),
        ("tanh", lambda x, y: torch.tanh(x)),
        ("erf", lambda x, y: torch.erf(x)),
    ],
    ids=["and-not", "or", "libdevice.tanh", "erf"],
)
def test_operators_and_functions_of_whole_blocks(op: str, expected: Any) -> None:
    x, y = torch.linspace(-2, 2, 32), torch.linspace(1, -1, 32)
    torch.testing.assert_close(_elementwise(op, x, y), expected(x, y).float(), rtol=1e-6, atol=1e-7)


def test_exp_multiplies_by_log2e_in_float32_first() -> None:
    x = torch.tensor([80.0, -80.0, 50.3, 0.0])
    got = _elementwise("exp", x, x)
    scaled = x * torch.tensor(1.4426950408889634, dtype=torch.float32)
    assert got.tolist() == torch.exp2(scaled.double()).float().tolist()
    assert (got.double() / torch.exp(x.double()) - 1).abs().max() > 5e-7  # so far off is the GPU's exp


CASTS = [
    (torch.float32, torch.bfloat16, [1.00390625, 1.01171875, 1.0, -3.3e38, NAN, 1e-40, 3.3961775e38, 2.5]),
    (torch.bfloat16, torch.float32, [1.0, -0.0, INF, 1e-39, 3.0, 2.0, 1.0, 1.0]),
    (torch.float32, torch.float16, [1.00048828125, 65519.0, 65520.0, 6e-8, 1.0, -1.0, NAN, INF]),
    (torch.int32, torch.bfloat16, [257, 259, -513, 2**24 + 1, 0, 1, 2, 3]),
    (torch.float64, torch.bfloat16, [1.00390625, 1.01171875, 2.0, -1.0, 0.0, 1e-3, 7.0, 9.0]),
]


@interpreted
def _convert(k: Any, x: torch.Tensor, name: str, o: torch.Tensor) -> torch.Tensor:
    import triton.language as tl

    k.convert[(1,)](x, o, getattr(tl, name), x.numel())
    return o


@pytest.mark.parametrize(("source", "target", "values"), CASTS, ids=[f"{s}-{t}" for s, t, _ in CASTS])
def test_casts_round_to_nearest_even(source: torch.dtype, target: torch.dtype, values: list[float]) -> None:
    x = torch.tensor(values, dtype=source)
    name = str(target).removeprefix("torch.")
    got = _convert(x, name, torch.empty(8, dtype=target))
    torch.testing.assert_close(got, x.to(target), rtol=0, atol=0, equal_nan=True)


def test_float64_to_bfloat16_rounds_once() -> None:
    x = torch.tensor([1.00390625 + 1e-12] * 8, dtype=torch.float64)  # by way of float32 this would be 1.0
    assert _convert(x, "bfloat16", torch.empty(8, dtype=torch.bfloat16)).tolist() == [1.0078125] * 8


def test_float_to_int_saturates() -> None:
    x = torch.tensor([3e9, -3e9, NAN, INF, -INF, 2.9, -2.9, 1.0])
    top, bottom = 2**31 - 1, -(2**31)
    assert _convert(x, "int32", torch.empty(8, dtype=torch.int32)).tolist() == [
        top,
        bottom,
        0,
        top,
        bottom,
        2,
        -2,
        1,
    ]


@interpreted
def _scale(k: Any, dtype: torch.dtype, flag: bool) -> torch.Tensor:
    o = torch.full((8,), -1.0)
    k.scale[(1,)](torch.full((8,), 3.0).to(dtype), o, 0.1, flag, 8)
    return o


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_float_argument_is_a_float32_scalar(dtype: torch.dtype) -> None:
    assert _scale(dtype, True).tolist() == (torch.tensor(3.0) * torch.tensor(0.1)).expand(8).tolist()
    assert _scale(dtype, False).tolist() == [-1.0] * 8


@interpreted
def _reduce(k: Any, op: str, x: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    k.reduce_rows[(1,)](x, o, op, *x.shape)
    return o


ROWS = torch.tensor(
    [[3.0, NAN, 7.0, 7.0], [NAN, NAN, NAN, NAN], [-0.0, 0.0, -0.0, -0.0], [NAN, 1.0, -2.0, -2.0]]
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_row_extrema_drop_nan(dtype: torch.dtype) -> None:
    largest = _reduce("max", ROWS.to(dtype), torch.empty(4)).tolist()
    smallest = _reduce("min", ROWS.to(dtype), torch.empty(4)).tolist()
    assert (
        largest[0] == 7.0
        and math.isnan(largest[1])
        and math.copysign(1, largest[2]) == 1
        and largest[3] == 1.0
    )
    assert smallest[0] == 3.0 and math.isnan(smallest[1]) and smallest[3] == -2.0
    assert math.copysign(1, smallest[2]) == -1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_argmax_takes_the_first_of_equals(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 5, 5, 2], [0, 0, 0, 0], [-1, -3, -1, -3], [4, 1, 1, 9]]).to(dtype)
    assert _reduce("argmax", x, torch.empty(4, dtype=torch.int32)).tolist() == [1, 0, 0, 3]
    assert _reduce("argmin", x, torch.empty(4, dtype=torch.int32)).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("op", ["smaller", "branch"])
def test_custom_reductions(op: str) -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    assert _reduce(op, x, torch.empty(4)).tolist() == x.min(1).values.tolist()


def test_a_reduction_keeps_the_order_of_its_operands() -> None:
    x = torch.arange(32.0).reshape(4, 8)
    assert _reduce("first", x, torch.empty(4)).tolist() == [0.0, 8.0, 16.0, 24.0]


@pytest.mark.parametrize(
    ("dtype", "total"), [(torch.float16, 2048), (torch.bfloat16, 256)], ids=["f16", "bf16"]
)
def test_narrow_sums_round_at_every_addition(dtype: torch.dtype, total: int) -> None:
    x = torch.zeros(2, 4, dtype=dtype)
    x[0] = torch.tensor([total, 1.0, 1.0, -total])  # in a wide accumulator: 2
    x[1] = 1.0
    got = _reduce("sum", x, torch.empty(2, dtype=dtype)).tolist()
    assert got[0] != 2.0 and got[1] == 4.0


@interpreted
def _scan(k: Any, op: str, x: torch.Tensor) -> torch.Tensor:
    o = torch.empty_like(x)
    k.scan_rows[(1,)](x, o, op, *x.shape)
    return o


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("cumsum", lambda x: x.cumsum(1)),
        ("reverse", lambda x: x.flip(1).cumsum(1).flip(1)),
        ("smaller", lambda x: x.cummin(1).values),
        ("branch", lambda x: x.cummin(1).values),
        ("first", lambda x: x[:, :1].expand(x.shape)),
        ("sort", lambda x: x.sort(1).values),
    ],
)
def test_scans(op: str, expected: Any) -> None:
    x = torch.randint(-9, 9, (4, 16), generator=torch.Generator().manual_seed(2)).float()
    assert torch.equal(_scan(op, x), expected(x))


@interpreted
def _pile_up(k: Any, dtype: torch.dtype) -> list[float]:
    total = torch.zeros(2, dtype=dtype)
    k.pile_up[(1,)](torch.arange(16).to(dtype), total, 16)
    return total.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_atomic_adds_to_one_address_all_arrive(dtype: torch.dtype) -> None:
    assert _pile_up(dtype) == [56.0, 64.0]


@interpreted
def _matmul(k: Any, a: torch.Tensor, b: torch.Tensor, tf32: bool) -> torch.Tensor:
    c = torch.empty(16, 16)
    k.matmul[(1,)](a, b, c, 16, tf32, 16)
    return c


def test_bfloat16_dot_is_right() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(16, 16, generator=generator).bfloat16() for _ in range(2))
    torch.testing.assert_close(_matmul(a, b, False), a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_dot_of_float32_uses_tf32_when_asked() -> None:
    b = torch.randn(16, 16, generator=torch.Generator().manual_seed(4))
    exact, narrow = _matmul(torch.eye(16), b, False), _matmul(torch.eye(16), b, True)
    assert torch.equal(exact, b)
    kept = (b.view(torch.int32) & ~0x1FFF).view(torch.float32)
    assert torch.equal(narrow, kept)


@interpreted
def _closures(k: Any) -> list[float]:
    return [k.filler(2.5, 4)[0].item(), k.filler(-1.0, 4)[0].item()]


def test_kernels_keep_the_variables_of_an_enclosing_function() -> None:
    assert _closures() == [2.5, -1.0]
