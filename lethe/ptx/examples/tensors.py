"""Tensors of a recorded example: shape, dtype, memory order and how their values are drawn.

numpy has no bfloat16, so such a tensor is an array of its bit patterns (uint16); `to_float` and `from_float`
know. Two kinds of values: ``normal`` (as a user would draw) and ``integers``, small whole numbers whose
products and sums are exact in float32, so that every legal order of accumulation gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Role = Literal["input", "output", "both"]
Values = Literal["normal", "integers"]

STORAGE = {"bfloat16": "uint16"}


def storage(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that holds a tensor's elements."""
    return np.dtype(STORAGE.get(dtype, dtype))


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument. ``draw``: how inputs are drawn; ``contiguous_first``: the first of two modes is
    unit-stride."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: Role = "input"
    draw: Literal["normal", "decay", "indices", "zeros"] = "normal"
    contiguous_first: bool = False

    def array(self, generator: np.random.Generator, values: Values = "normal") -> Array:
        """A fresh array: drawn for an input, 0xFF bytes (a NaN or -1, never a right answer) for an output."""
        if self.role == "output":
            empty = np.full(self.shape, 0xFF, np.uint8).repeat(storage(self.dtype).itemsize, axis=-1)
            made = empty.view(storage(self.dtype)).reshape(self.shape)
        else:
            made = from_float(self._drawn(generator, values), self.dtype)
        return np.asfortranarray(made) if self.contiguous_first else np.ascontiguousarray(made)

    def _drawn(self, generator: np.random.Generator, values: Values) -> Array:
        if self.draw == "zeros":
            return np.zeros(self.shape)
        if self.draw == "decay":
            return (
                generator.choice([0.5, 1.0], self.shape)
                if values == "integers"
                else generator.uniform(0.5, 1, self.shape)
            )
        if self.draw == "indices":
            return generator.integers(0, 32, self.shape)
        if values == "integers":
            return generator.integers(-2, 3, self.shape).astype(np.float64)
        return generator.standard_normal(self.shape)


def from_float(values: Array, dtype: str) -> Array:
    """Round to nearest even into a dtype's storage (bfloat16: bit patterns)."""
    if dtype != "bfloat16":
        return np.asarray(values).astype(storage(dtype))
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_float(array: Array, dtype: str) -> Array:
    """A tensor's values in float64."""
    if dtype != "bfloat16":
        return np.asarray(array, np.float64)
    return (np.asarray(array).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
