"""Records in WFDB's format 16, whole and damaged."""

from __future__ import annotations

import numpy as np
import pytest

from lethe.ecg.wfdb import LEADS, RecordError, decode, encode, parse_header

HEADER = """00001_lr 12 100 2
00001_lr.dat 16 1000.0(0)/mV 16 0 -119 131 0 I
00001_lr.dat 16 1000.0(0)/mV 16 0 -55 -100 0 II
00001_lr.dat 16 200(5)/mV 16 0 64 64 0 III
""" + "".join(f"00001_lr.dat 16 1000.0(0)/mV 16 0 0 0 0 {lead}\n" for lead in LEADS[3:])
SAMPLES = np.zeros((2, 12), dtype="<i2")
SAMPLES[:, 0], SAMPLES[:, 1], SAMPLES[:, 2] = (-119, 250), (-55, -45), (64, 0)


def test_values_by_hand():
    got = decode(parse_header(HEADER), SAMPLES.tobytes())
    assert got.shape == (12, 2) and got.dtype == np.float32
    np.testing.assert_allclose(got[0], [-0.119, 0.250], rtol=1e-6)
    np.testing.assert_allclose(got[2], [59 / 200, -5 / 200], rtol=1e-6)


def test_leads_come_in_the_standard_order():
    lines = HEADER.splitlines()
    lines[1], lines[2] = lines[2], lines[1]
    swapped = SAMPLES.copy()
    swapped[:, [0, 1]] = SAMPLES[:, [1, 0]]
    got = decode(parse_header("\n".join(lines)), swapped.tobytes())
    np.testing.assert_array_equal(got, decode(parse_header(HEADER), SAMPLES.tobytes()))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_is_read_to_half_a_digit(seed):
    draw = np.random.default_rng(seed)
    signal = draw.normal(0, 2, (12, 50)).astype(np.float32)
    header, data = encode("x", signal, 100)
    got = decode(parse_header(header), data)
    # half a digital unit, and float32's rounding of both values
    bound = 0.5 / 1000 + 2 * np.finfo(np.float32).eps * np.abs(signal).max()
    assert np.abs(got - signal).max() <= bound


def _flip(data: bytes) -> bytes:
    return data[:5] + bytes([data[5] ^ 1]) + data[6:]


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        (HEADER, SAMPLES.tobytes()[:-3], "45 bytes, not 48"),
        (HEADER, SAMPLES.tobytes() + b"\0", "49 bytes, not 48"),
        (HEADER, _flip(SAMPLES.tobytes()), "lead III does not have its header's checksum"),
        (HEADER.replace("lr.dat 16", "lr.dat 212"), SAMPLES.tobytes(), "format 212"),
        (HEADER.replace(" V6", " V7"), SAMPLES.tobytes(), "not the twelve standard ones"),
        (HEADER.replace("200(5)/mV", "200(5)/uV"), SAMPLES.tobytes(), "in uV"),
        (HEADER.replace("200(5)/mV", "0(5)/mV"), SAMPLES.tobytes(), "a gain '0"),
        ("\n".join(HEADER.splitlines()[:5]), SAMPLES.tobytes(), "announces 12 leads and describes 4"),
        ("no header at all", SAMPLES.tobytes(), "not a WFDB header"),
        ("", SAMPLES.tobytes(), "not a WFDB header"),
    ],
    ids=["short", "long", "one-bit", "format", "lead", "units", "gain", "cut-header", "text", "empty"],
)
def test_a_damaged_record_is_refused_with_the_reason(header, data, why):
    with pytest.raises(RecordError, match=why):
        decode(parse_header(header), data)


def test_missing_samples_are_no_values():
    missing = SAMPLES.copy()
    missing[1, 4] = -32768
    header = HEADER.replace("0 0 0 AVL", "0 32768 0 AVL")
    with pytest.raises(RecordError, match="AVL has missing samples"):
        decode(parse_header(header), missing.tobytes())
