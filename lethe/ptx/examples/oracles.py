"""What the recorded kernels should compute, in float64, with a bound on what rounding may change.

Every oracle takes the inputs in float64 (already rounded to the kernel's dtype) and returns, for each output,
``(value, bound)``. Bounds are for any order of float32 accumulation, sum of n products: ``n u sum |a||b|``
with ``u = 2**-23`` (the tensor core truncates), plus ``half * |x|`` wherever a kernel rounds an intermediate
to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Result = dict[str, tuple[Array, Array]]
Oracle = Callable[[Mapping[str, Array], float], Result]

UNIT = 2.0**-23
HALF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
CHUNK = 128


def product(a: Array, b: Array) -> tuple[Array, Array]:
    """``a @ b`` and the bound of its float32 accumulation."""
    return a @ b, a.shape[1] * UNIT * (np.abs(a) @ np.abs(b)) + 1e-30


def gemm(inputs: Mapping[str, Array], half: float) -> Result:
    """C = A B^T."""
    return {"c": product(inputs["a"], inputs["b"].T)}


def pair(inputs: Mapping[str, Array], half: float) -> Result:
    """C = [A B0^T, A B1^T], B0 above B1."""
    return gemm(inputs, half)


def chain(inputs: Mapping[str, Array], half: float) -> Result:
    """O = half(A B^T) V."""
    score, slack = product(inputs["a"], inputs["b"].T)
    v = inputs["vt"].T
    value, bound = product(score, v)
    return {"o": (value, bound + (slack + half * np.abs(score)) @ np.abs(v))}


def scan(inputs: Mapping[str, Array], half: float) -> Result:
    """The recurrence token by token: H decays at the first token of a chunk of 128, then Y_i = H q_i."""
    q, k, v, decay = (inputs[name] for name in ("q", "k", "v", "decay"))
    state = np.zeros((v.shape[1], q.shape[1]))
    size = np.zeros_like(state)
    y, bound = np.zeros_like(v), np.zeros_like(v)
    for token in range(len(q)):
        if token % CHUNK == 0:
            state, size = decay[token // CHUNK] * state, decay[token // CHUNK] * size
        state = state + np.outer(v[token], k[token])
        size = size + np.outer(np.abs(v[token]), np.abs(k[token]))
        y[token] = state @ q[token]
        bound[token] = size @ np.abs(q[token])
    rounding = 2 * half + len(q) * UNIT
    return {"y": (y, rounding * bound + 1e-30), "state": (state, len(q) * UNIT * size + 1e-30)}


def softmax(inputs: Mapping[str, Array], half: float) -> Result:
    """Row-wise; exp2 of the hardware is good to two units, and so is the division."""
    x = inputs["x"]
    e = np.exp(x - x.max(1, keepdims=True))
    value = e / e.sum(1, keepdims=True)
    return {"y": (value, value * (2.0**-20 + 2.0**-22 * np.abs(x - x.max(1, keepdims=True))) + 1e-30)}


def layer_norm(inputs: Mapping[str, Array], half: float) -> Result:
    """Row-wise mean and variance, then scale and shift."""
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    centred = x - x.mean(1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    value = centred / deviation * weight + bias
    return {
        "y": (value, 2.0**-18 * (np.abs(x).max(1, keepdims=True) / deviation * np.abs(weight) + np.abs(bias)))
    }


def cumulative(inputs: Mapping[str, Array], half: float) -> Result:
    """Running sum along each row."""
    x = inputs["x"]
    return {"y": (np.cumsum(x, 1), x.shape[1] * UNIT * np.cumsum(np.abs(x), 1) + 1e-30)}


def histogram(inputs: Mapping[str, Array], half: float) -> Result:
    """How often each of 32 values occurs: integers, so no rounding."""
    counts = np.bincount(inputs["x"].astype(np.int64), minlength=32).astype(np.float64)
    return {"counts": (counts, np.zeros_like(counts))}


ORACLES: dict[str, Oracle] = {
    f.__name__: f for f in (gemm, pair, chain, scan, softmax, layer_norm, cumulative, histogram)
}
