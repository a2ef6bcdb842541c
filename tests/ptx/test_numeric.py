"""Number formats bit by bit, and the accumulation rule against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from lethe.ptx import numeric
from lethe.ptx.faults import Fault


def test_all_16_bit_patterns_decode_as_torch_does() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype, kind in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        expected = torch.from_numpy(bits.view(np.int16).copy()).view(kind).float().numpy()
        assert np.array_equal(numeric.decode(bits, dtype), expected, equal_nan=True)


def test_rounding_to_16_bits_is_torchs() -> None:
    rng = np.random.default_rng(0)
    special = np.array(
        [0, 1, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x477FF000, 0x477FEFFF, 0x3F808000], np.uint32
    )
    bits = np.concatenate([rng.integers(0, 1 << 32, 20000, dtype=np.uint32), special])
    values = bits.view(np.float32)
    finite = values[~np.isnan(values)]
    for encode, kind in ((numeric.encode_f16, torch.float16), (numeric.encode_bf16, torch.bfloat16)):
        expected = torch.from_numpy(finite.copy()).to(kind).view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(encode(finite), expected)


def test_nan_stays_nan() -> None:
    quiet = np.array([0x7FC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(numeric.decode(numeric.encode_bf16(quiet), "bf16")).all()
    assert np.isnan(numeric.decode(numeric.encode_f16(quiet), "f16")).all()


def test_tf32_drops_thirteen_bits() -> None:
    bits = np.array([0x3F801FFF, 0x3F802000, 0xBF803FFF], np.uint32)
    assert numeric.decode(bits, "tf32").view(np.uint32).tolist() == [0x3F800000, 0x3F802000, 0xBF802000]
    with pytest.raises(Fault):
        numeric.decode(bits, "e4m3")


def test_halves_are_packed_low_first() -> None:
    words = np.array([[0x00020001, 0x00040003]], np.uint32)
    assert numeric.split_halves(words).tolist() == [[1, 2, 3, 4]]
    assert np.array_equal(numeric.join_halves(numeric.split_halves(words)), words)


def truncated(a: np.ndarray, b: np.ndarray, c: float) -> float:
    """One element a coarse legal way: products added to the accumulator in order, every sum truncated."""
    total = Fraction(c)
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        total += Fraction(x) * Fraction(y)
        if total:
            exponent = max(abs(total).numerator.bit_length() - abs(total).denominator.bit_length() - 24, -149)
            step = Fraction(2) ** exponent
            total = int(total / step) * step
    return float(total)


@pytest.mark.parametrize("spread", [0, 6])
def test_the_bound_covers_sequential_truncation(spread: int) -> None:
    rng = np.random.default_rng(spread)
    a, b, c = (
        (rng.standard_normal(s) * 2.0 ** rng.integers(-spread, spread + 1, s))
        .astype(np.float16)
        .astype(np.float32)
        for s in ((8, 16), (16, 8), (8, 8))
    )
    got = numeric.multiply_accumulate(a, b, c)
    bound = numeric.accumulation_bound(a, b, c)
    for i in range(8):
        for j in range(8):
            other = truncated(a[i], b[:, j], float(c[i, j]))
            assert abs(other - float(got[i, j])) <= bound[i, j]
            exact = sum(
                (Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
            )
            error = abs(Fraction(float(got[i, j])) - exact - Fraction(float(c[i, j])))
            assert error <= Fraction(float(bound[i, j])) / 19


def test_infinities_and_nans_propagate() -> None:
    a = np.array([[np.inf, 1.0]], np.float32)
    assert numeric.multiply_accumulate(a, np.array([[1.0], [2.0]], np.float32), None)[0, 0] == np.inf
    assert np.isnan(numeric.multiply_accumulate(a, np.array([[0.0], [2.0]], np.float32), None)[0, 0])
