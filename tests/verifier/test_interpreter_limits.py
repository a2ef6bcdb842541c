"""What the interpreter cannot do faithfully and says so, and the arithmetic of its narrow formats."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from lethe.verifier.executors import is_executor_failure, lowprec, unfaithful
from tests.verifier.forked import ChildFailed, in_child, interpreted

NAN, INF = float("nan"), float("inf")


# ---------------------------------------------------------------- limits


@interpreted
def _inline_assembly(k: Any) -> str | None:
    try:
        k.inline_assembly[(1,)](torch.ones(4))
    except Exception as error:
        return is_executor_failure(error)
    return None


def test_inline_assembly_is_the_executors_limit() -> None:
    assert _inline_assembly() == "inline assembly cannot run in Triton's interpreter"


@interpreted
def _graph(k: Any) -> str | None:
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1)
    except Exception as error:
        return is_executor_failure(error)
    return None


def test_graph_capture_is_the_executors_limit() -> None:
    assert _graph() == "CUDA graphs cannot be captured or replayed without a device"


@interpreted
def _own_fault(k: Any) -> str | None:
    try:
        k.broken[(1,)](torch.ones(8))
    except Exception as error:
        return is_executor_failure(error)
    return "nothing was raised"


def test_a_kernels_own_fault_is_not_the_executors() -> None:
    assert _own_fault() is None
    assert is_executor_failure(ValueError("size mismatch")) is None
    assert is_executor_failure(KeyError("weight")) is None


def test_causes_are_searched() -> None:
    try:
        try:
            raise NotImplementedError("extern_elementwise not supported in interpreter mode")
        except NotImplementedError as inner:
            raise RuntimeError("launch failed") from inner
    except RuntimeError as error:
        assert "libdevice" in (is_executor_failure(error) or "")


@pytest.mark.parametrize(
    ("source", "dtype", "reason"),
    [
        ("y = tl.inline_asm_elementwise('', '', [x], tl.float32, True, 1)", "float32", "inline assembly"),
        ("y = x.to(tl.float8e4nv)", "float32", "fp8"),
        ("y = x", "float8_e4m3fn", "fp8"),
        ("from triton.language.extra import libdevice\ny = libdevice.yn(1, x)", "float32", "yn"),
        ("from triton.experimental.gluon import language as gl", "float32", "Gluon"),
    ],
)
def test_unfaithful_features_are_named(source: str, dtype: str, reason: str) -> None:
    assert re.search(reason, "; ".join(unfaithful(source, dtype)))


def test_faithful_sources_have_no_reason() -> None:
    source = "# inline_asm_elementwise\n'float8'\ny = libdevice.tanh(tl.argmax(x, 0))"
    assert unfaithful(source, "bfloat16") == []
    assert "argmax" in unfaithful(source, "float32", nonfinite=True)[0]


# ---------------------------------------------------------------- arithmetic of lowprec


def test_multiply_high_of_64_bits() -> None:
    a = np.array([2**63 + 12345, 2**64 - 1, 7, 2**32 + 1], dtype=np.uint64)
    b = np.array([2**62 + 999, 2**64 - 1, 9, 2**33 + 5], dtype=np.uint64)
    expected = [(int(x) * int(y)) >> 64 for x, y in zip(a, b, strict=True)]
    assert lowprec.multiply_high(a, b).tolist() == expected


def test_fma_of_float64_rounds_once() -> None:
    rng = np.random.default_rng(5)
    x, y, z = rng.standard_normal((3, 500))
    z[:250] = -(x * y)[:250] * (1 + rng.integers(-3, 4, 250) * 2.0**-52)
    for a, b, c, value in zip(x, y, z, lowprec.fma_f64(x, y, z), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        near = [value, np.nextafter(value, np.inf), np.nextafter(value, -np.inf)]
        assert abs(Fraction(value) - exact) == min(abs(Fraction(float(v)) - exact) for v in near)


@pytest.mark.parametrize("toward_zero", [False, True], ids=["nearest", "toward-zero"])
def test_bfloat16_bits_of_every_exponent(toward_zero: bool) -> None:
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    got = lowprec.bf16_to_f32(lowprec.f32_to_bf16(values, toward_zero=toward_zero))
    if toward_zero:
        expected = (bits & np.uint32(0xFFFF0000)).view(np.float32)
    else:
        expected = torch.from_numpy(values).bfloat16().float().numpy()
    finite = ~np.isnan(values)
    assert np.array_equal(got[finite], expected[finite]) and np.isnan(got[~finite]).all()


def test_a_failing_child_is_reported() -> None:
    with pytest.raises(ChildFailed, match="ZeroDivisionError"):
        in_child(lambda: 1 // 0)
