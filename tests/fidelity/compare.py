"""Hold one recording against another: exact bits, or distance in units in the last place."""

from __future__ import annotations

from typing import Any

_SIGNED = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
_MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def _is_nan(bits: int, dtype: str) -> bool:
    width, mantissa = _SIGNED[dtype], _MANTISSA[dtype]
    magnitude = bits & ((1 << (width - 1)) - 1)
    return magnitude > ((1 << (width - 1 - mantissa)) - 1) << mantissa


def _ordered(bits: int, dtype: str) -> int:
    """An integer that grows by one from each float to the next; both zeros are 0."""
    width = _SIGNED[dtype]
    magnitude = bits & ((1 << (width - 1)) - 1)
    return -magnitude if bits >> (width - 1) & 1 else magnitude


def distance(a: int, b: int, dtype: str) -> float:
    """Units in the last place between two bit patterns; 0 for two NaN, infinite for one."""
    if dtype not in _SIGNED:
        return 0.0 if a == b else float("inf")
    if _is_nan(a, dtype) or _is_nan(b, dtype):
        return 0.0 if _is_nan(a, dtype) and _is_nan(b, dtype) else float("inf")
    if a == b:
        return 0.0
    return float(abs(_ordered(a, dtype) - _ordered(b, dtype))) or 0.5  # zeros of different sign


def differences(recorded: dict[str, Any], computed: dict[str, Any], ulps: int) -> list[str]:
    """Sentences about the elements of one case that lie further apart than `ulps`; empty when none do."""
    for row in (recorded, computed):
        if "error" in row:
            return [row["error"]]
    if recorded["dtype"] != computed["dtype"] or len(recorded["bits"]) != len(computed["bits"]):
        return [f"{recorded['dtype']} x {len(recorded['bits'])} was recorded, {computed['dtype']} computed"]
    dtype = recorded["dtype"]
    found = []
    for index, (a, b) in enumerate(zip(recorded["bits"], computed["bits"], strict=True)):
        apart = distance(a, b, dtype)
        if apart > ulps:
            mask = (1 << _SIGNED.get(dtype, 64)) - 1
            found.append(f"[{index}] recorded {a & mask:#x}, computed {b & mask:#x}: {apart:g} ulp apart")
    return found
