"""``tl.reduce`` and ``tl.associative_scan`` for the interpreter: GPU semantics, no per-element Python.

Sums, maxima and their indices use numpy; every other combine function is evaluated on whole slices, as
a tree over adjacent pairs (reduce) or by doubling strides (scan). Both keep the order of the operands, so
an associative function need not be commutative. Float16 and bfloat16 sums round after every addition, as
``add.f16`` and ``add.bf16`` do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lethe.verifier.executors import lowprec
from lethe.verifier.executors.lowprec import Array

Combine = Callable[[list[Array], list[Array]], list[Array]]


class ScalarsNeeded(Exception):
    """The combine function branches on values, so it must see one element at a time."""


_whole_slices = False


def forbid_truth(tensor: Any) -> None:
    """Called when Python asks for the truth of `tensor`; raises while a combine sees whole slices."""
    if _whole_slices and tensor.handle.data.size != 1:
        raise ScalarsNeeded


def install() -> None:
    """Patch the interpreter's reduction and scan classes once for this process."""
    from triton.runtime.interpreter import ReduceOps, ScanOps

    plain_reduce, plain_scan = ReduceOps.apply_impl, ScanOps.apply_impl

    def reduce(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
        try:
            return _reduce(inputs, self.axis, self.combine_fn, self.keep_dims)
        except ScalarsNeeded:
            self.axis = _plain(self.axis)
            if self.axis is not None:
                self.axis %= len(inputs[0].shape)
            return list(plain_reduce(self, inputs))

    def scan(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
        try:
            return _scan(inputs, self.axis, self.combine_fn, _plain(self.reverse))
        except ScalarsNeeded:
            self.axis = _plain(self.axis) % len(inputs[0].shape)
            return list(plain_scan(self, inputs))

    ReduceOps.apply_impl = reduce
    ScanOps.apply_impl = scan


def _plain(value: Any) -> Any:
    import triton.language as tl

    return value.value if isinstance(value, tl.constexpr) else value


def _to_tensor(data: Array, dtype: Any) -> Any:
    """A tl.tensor of `data`; a single element becomes a scalar, stored with shape (1,)."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    data = np.asarray(data).astype(_get_np_dtype(dtype), copy=False)
    if data.ndim == 0:
        return tl.tensor(TensorHandle(data.reshape(1), dtype.scalar), dtype)
    return tl.tensor(TensorHandle(data, dtype.scalar), tl.block_type(dtype, list(data.shape)))


def _combiner(function: Any, dtypes: Sequence[Any]) -> Combine:
    """`function` on lists of equally shaped arrays, one array per operand of the reduction."""
    import triton.language as tl
    from triton.runtime.errors import InterpreterError

    def combine(left: list[Array], right: list[Array]) -> list[Array]:
        global _whole_slices
        columns = zip((*left, *right), (*dtypes, *dtypes), strict=True)
        operands = [_to_tensor(data, dtype) for data, dtype in columns]
        _whole_slices = True
        try:
            results = function(*operands)
        except InterpreterError as error:
            if _caused_by_branch(error):
                raise ScalarsNeeded from error
            raise
        finally:
            _whole_slices = False
        values = results if isinstance(results, (tuple, tl.tuple)) else (results,)
        shape = left[0].shape
        return [
            np.broadcast_to(
                np.asarray(value.handle.data if isinstance(value, tl.tensor) else value), shape
            ).astype(data.dtype)
            for value, data in zip(values, left, strict=True)
        ]

    return combine


def _caused_by_branch(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ScalarsNeeded):
            return True
        error = error.__cause__
    return False


def _tree(columns: list[Array], combine: Combine) -> list[Array]:
    """Reduce axis 0 by combining neighbours; a last odd element waits for the next round."""
    while (length := columns[0].shape[0]) > 1:
        even = length - length % 2
        paired = combine([c[0:even:2] for c in columns], [c[1:even:2] for c in columns])
        if even < length:
            paired = [np.concatenate([p, c[even:]]) for p, c in zip(paired, columns, strict=True)]
        columns = paired
    return [c[0] for c in columns]


def _extremum(data: Array, sign: int) -> Array:
    """Maximum (sign 1) or minimum (-1) over axis 0: NaN dropped, +0 above -0."""
    function = np.fmax if sign > 0 else np.fmin
    result = function.reduce(data, axis=0)
    if data.dtype.kind == "f" and np.any(result == 0):
        negative = np.signbit(data) & (data == 0)
        positive = ~np.signbit(data) & (data == 0)
        minus_zero = ~positive.any(axis=0) if sign > 0 else negative.any(axis=0)
        result = np.where(result == 0, np.where(minus_zero, -0.0, 0.0).astype(data.dtype), result)
    return np.asarray(result)


def _extremum_with_index(value: Array, index: Array, sign: int) -> list[Array] | None:
    """Extremum over axis 0 and the lowest index that holds it; None when a NaN makes order matter."""
    if value.dtype.kind == "f" and np.isnan(value).any():
        return None
    position = np.expand_dims(np.argmax(value, axis=0) if sign > 0 else np.argmin(value, axis=0), 0)
    return [np.take_along_axis(column, position, axis=0)[0] for column in (value, index)]


def _rounded_sum(data: Array, bf16: bool) -> Array:
    add = lowprec.on_bf16(np.add) if bf16 else np.add
    return _tree([data], lambda left, right: [add(left[0], right[0])])[0]


def _reduce_columns(columns: list[Array], dtypes: list[Any], function: Any) -> list[Array]:
    import triton.language as tl

    standard, bf16 = tl.standard, dtypes[0] == tl.bfloat16
    if function is standard._sum_combine and len(columns) == 1:
        if bf16 or dtypes[0] == tl.float16:
            return [_rounded_sum(columns[0], bf16)]
        return [np.sum(columns[0], axis=0, dtype=columns[0].dtype)]
    for sign, elementwise, indexed in (
        (1, standard._elementwise_max, ("_argmax_combine_tie_break_left", "_argmax_combine_tie_break_fast")),
        (-1, standard._elementwise_min, ("_argmin_combine_tie_break_left", "_argmin_combine_tie_break_fast")),
    ):
        if function is elementwise and not bf16:
            return [_extremum(columns[0], sign)]
        if any(function is getattr(standard, name) for name in indexed) and not bf16:
            found = _extremum_with_index(columns[0], columns[1], sign)
            if found is not None:
                return found
    return _tree(columns, _combiner(function, dtypes))


def _reduce(inputs: tuple[Any, ...], axis: Any, function: Any, keep_dims: Any) -> list[Any]:
    axis, keep_dims = _plain(axis), _plain(keep_dims)
    dtypes = [tensor.dtype for tensor in inputs]
    arrays = [tensor.handle.data for tensor in inputs]
    shape = arrays[0].shape
    if axis is None:
        columns = [data.reshape(-1) for data in arrays]
    else:
        columns = [np.moveaxis(data, axis, 0) for data in arrays]
    results = _reduce_columns(columns, dtypes, function)
    if keep_dims:
        gone = range(len(shape)) if axis is None else (axis % len(shape),)
        kept = [1 if a in gone else n for a, n in enumerate(shape)]
        results = [np.reshape(data, kept) for data in results]
    return [_to_tensor(data, dtype) for data, dtype in zip(results, dtypes, strict=True)]


def _scan_columns(columns: list[Array], dtypes: list[Any], function: Any) -> list[Array]:
    import triton.language as tl

    if len(columns) == 1 and dtypes[0] != tl.bfloat16:
        if function is tl.standard._sum_combine:
            return [np.cumsum(columns[0], axis=0, dtype=columns[0].dtype)]
        if function is tl.standard._prod_combine:
            return [np.cumprod(columns[0], axis=0, dtype=columns[0].dtype)]
    combine = _combiner(function, dtypes)
    stride = 1
    while stride < columns[0].shape[0]:
        # Whole columns, because Triton refuses block lengths that are no power of two.
        earlier = [np.roll(column, stride, axis=0) for column in columns]
        combined = combine(earlier, columns)
        columns = [np.concatenate([c[:stride], d[stride:]]) for c, d in zip(columns, combined, strict=True)]
        stride *= 2
    return columns


def _scan(inputs: tuple[Any, ...], axis: Any, function: Any, reverse: bool) -> list[Any]:
    axis = _plain(axis)
    dtypes = [tensor.dtype for tensor in inputs]
    columns = [np.moveaxis(tensor.handle.data, axis, 0) for tensor in inputs]
    if reverse:
        columns = [column[::-1] for column in columns]
    results = _scan_columns(columns, dtypes, function)
    if reverse:
        results = [result[::-1] for result in results]
    return [
        _to_tensor(np.ascontiguousarray(np.moveaxis(data, 0, axis)), dtype)
        for data, dtype in zip(results, dtypes, strict=True)
    ]
