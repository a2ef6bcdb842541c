"""Repairs to the operations of Triton's interpreter, so that each computes what the GPU computes.

`install` replaces methods of ``InterpreterBuilder``. The PTX that Triton emits for sm_90 is the reference
(triton 3.6 to 3.9 agree on all of these): ``max.f32`` drops NaN, ``cvt.rzi`` saturates, ``exp`` is
``ex2.approx(x * log2 e)``, ``exp2``, ``sqrt``, ``rsqrt``, ``sin``, ``floor`` and others flush subnormals,
``tl.dot`` of float32 operands uses TF32 unless told otherwise, and fp16 accumulators are rounded after every
k = 16 instruction. Results recorded on an H200 hold it to that (tests/fidelity).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lethe.verifier.executors import lowprec
from lethe.verifier.executors.lowprec import Array

_LOG2_E = np.float32(1.4426950408889634)
_MMA_K_F16 = 16
"""Depth of one fp16 tensor-core instruction (``mma.m16n8k16``, ``wgmma...k16``)."""


def install() -> None:
    """Patch ``InterpreterBuilder`` once for this process."""
    from triton.runtime import interpreter as host

    host._get_np_dtype = _numpy_dtypes(host._get_np_dtype)
    for name, method in _methods().items():
        setattr(host.InterpreterBuilder, name, method)


def _numpy_dtypes(original: Callable[[Any], np.dtype[Any]]) -> Callable[[Any], np.dtype[Any]]:
    """Triton's own mapping from its types to numpy's, remembered by name (it is on every path)."""
    tl = _types()
    known: dict[str, np.dtype[Any]] = {}

    def numpy_dtype(kind: Any) -> np.dtype[Any]:
        if isinstance(kind, tl.block_type):
            kind = kind.element_ty
        found = known.get(kind.name)
        if found is None:
            found = known[kind.name] = original(kind)
        return found

    return numpy_dtype


def _methods() -> dict[str, Callable[..., Any]]:
    methods: dict[str, Callable[..., Any]] = {}
    for group in (_arithmetic, _extrema, _casts, _transcendental, _contraction, _atomics):
        methods.update(group())
    return methods


def _types() -> Any:
    import triton.language as tl

    return tl


def _arithmetic() -> dict[str, Callable[..., Any]]:
    from triton.runtime import interpreter as host

    tl, handle = _types(), host.TensorHandle
    plain_binary, plain_unary = host.InterpreterBuilder.binary_op, host.InterpreterBuilder.unary_op
    plain_fma = host.InterpreterBuilder.create_fma
    exact_fma = hasattr(host._interpreter, "fma_fp32")

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Callable[..., Array]) -> Any:
        if lhs.dtype.scalar == tl.bfloat16:
            result = handle(lowprec.on_bf16(op)(lhs.data, rhs.data), tl.bfloat16)
        else:
            result = plain_binary(self, lhs, rhs, op)
        # A comparison's handle says so; else a mask made from bf16 would be read as bf16 later.
        return handle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    def unary_op(self: Any, arg: Any, op: Callable[..., Array]) -> Any:
        if arg.dtype.scalar == tl.bfloat16:
            return handle(lowprec.on_bf16(op)(arg.data), tl.bfloat16)
        return plain_unary(self, arg, op)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        scalar = z.dtype.scalar
        if scalar == tl.bfloat16:
            fused = lowprec.fma_narrow(*(lowprec.bf16_to_f32(v.data) for v in (x, y, z)))
            return handle(lowprec.f64_to_bf16(fused), scalar)
        if scalar == tl.float64:
            if exact_fma:
                return plain_fma(self, x, y, z)
            return handle(lowprec.fma_f64(x.data, y.data, z.data), scalar)
        if scalar == tl.float32 and exact_fma:
            return plain_fma(self, x, y, z)
        return handle(lowprec.fma_narrow(x.data, y.data, z.data).astype(z.data.dtype), scalar)

    def get_bf16(self: Any, value: Any) -> Any:
        return handle(lowprec.f64_to_bf16(np.array([value], dtype=np.float64)), tl.bfloat16)

    def create_umulhi(self: Any, lhs: Any, rhs: Any) -> Any:
        return handle(lowprec.multiply_high(lhs.data, rhs.data), lhs.dtype.scalar)

    return {
        "binary_op": binary_op,
        "unary_op": unary_op,
        "create_fma": create_fma,
        "create_umulhi": create_umulhi,
        "get_bf16": get_bf16,
    }


def _extrema() -> dict[str, Callable[..., Any]]:
    from triton.runtime import interpreter as host

    propagate_all = host._ir.PROPAGATE_NAN.ALL

    def extremum(function: Callable[..., Array], propagate_nan: bool) -> Callable[..., Any]:
        def method(self: Any, lhs: Any, rhs: Any) -> Any:
            return self.binary_op(lhs, rhs, lambda a, b: function(a, b, propagate_nan=propagate_nan))

        return method

    def create_clampf(self: Any, arg: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        if propagate_nans == propagate_all:
            return self.create_minimumf(self.create_maximumf(arg, low), high)
        return self.create_minnumf(self.create_maxnumf(arg, low), high)

    return {
        "create_maxnumf": extremum(lowprec.max_number, False),
        "create_minnumf": extremum(lowprec.min_number, False),
        "create_maximumf": extremum(lowprec.max_number, True),
        "create_minimumf": extremum(lowprec.min_number, True),
        "create_clampf": create_clampf,
    }


def _casts() -> dict[str, Callable[..., Any]]:
    from triton.runtime import interpreter as host

    tl, handle = _types(), host.TensorHandle
    numpy_dtype = host._get_np_dtype
    plain_cast = host.InterpreterBuilder.cast_impl
    plain_fp_to_fp = host.InterpreterBuilder.create_fp_to_fp
    wide = (tl.float64, tl.float32, tl.float16, tl.bfloat16)
    toward_zero_mode = host._ir.ROUNDING_MODE.RTZ

    def to_bf16(data: Array, toward_zero: bool = False) -> Array:
        if data.dtype in (np.dtype(np.float32), np.dtype(np.float16)) or toward_zero:
            return lowprec.f32_to_bf16(data.astype(np.float32), toward_zero=toward_zero)
        return lowprec.f64_to_bf16(data.astype(np.float64))

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == target:
            return handle(src.data, target)
        if source == tl.bfloat16:
            widened = handle(lowprec.bf16_to_f32(src.data), tl.float32)
            return widened if target == tl.float32 else self.cast_impl(widened, dst_type)
        if target == tl.bfloat16:
            return handle(to_bf16(src.data), target)
        if src.data.dtype.kind == "f" and target.is_int() and target.primitive_bitwidth > 1:
            return handle(lowprec.float_to_int(src.data, numpy_dtype(target)), target)
        return plain_cast(self, src, dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source not in wide or target not in wide:
            return plain_fp_to_fp(self, src, dst_type, rounding_mode)
        if rounding_mode != toward_zero_mode:
            return self.cast_impl(src, dst_type)
        data = lowprec.bf16_to_f32(src.data) if source == tl.bfloat16 else src.data
        if target == tl.bfloat16:
            return handle(to_bf16(data, toward_zero=True), target)
        if target == tl.float16:
            return handle(lowprec.f32_to_f16(data, toward_zero=True), target)
        return self.cast_impl(src, dst_type)

    return {"cast_impl": cast_impl, "create_fp_to_fp": create_fp_to_fp}


def _through_f64(function: Callable[[Array], Array], *, flush: bool) -> Callable[[Array], Array]:
    """A float32 function computed in float64 and rounded once, with PTX ``.ftz`` when asked."""

    def apply(values: Array) -> Array:
        if values.dtype != np.float32:
            return function(values)
        result = function((lowprec.flush(values) if flush else values).astype(np.float64)).astype(np.float32)
        return lowprec.flush(result) if flush else result

    return apply


def _exp(values: Array) -> Array:
    if values.dtype != np.float32:
        return np.exp(values)
    return np.exp2((values * _LOG2_E).astype(np.float64)).astype(np.float32)


def _erf(values: Array) -> Array:
    import torch

    with torch._C.DisableTorchFunction():
        return np.asarray(torch.special.erf(torch.from_numpy(np.ascontiguousarray(values))).numpy())


def _transcendental() -> dict[str, Callable[..., Any]]:
    functions = {
        "create_exp": _exp,
        "create_exp2": _through_f64(np.exp2, flush=True),
        "create_sqrt": _through_f64(np.sqrt, flush=True),
        "create_rsqrt": _through_f64(lambda v: 1.0 / np.sqrt(v), flush=True),
        "create_log": _through_f64(np.log, flush=False),
        "create_log2": _through_f64(np.log2, flush=False),
        "create_sin": _through_f64(np.sin, flush=True),
        "create_cos": _through_f64(np.cos, flush=True),
        "create_erf": _through_f64(_erf, flush=True),
        "create_floor": _through_f64(np.floor, flush=True),
        "create_ceil": _through_f64(np.ceil, flush=True),
    }

    def method(function: Callable[[Array], Array]) -> Callable[..., Any]:
        return lambda self, arg: self.unary_op(arg, function)

    return {name: method(function) for name, function in functions.items()}


def _contraction() -> dict[str, Callable[..., Any]]:
    from triton.runtime import interpreter as host

    tl, handle = _types(), host.TensorHandle
    plain_dot = host.InterpreterBuilder.create_dot
    tf32 = host._ir.INPUT_PRECISION.TF32

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, imprecise: Any) -> Any:
        kinds = {a.dtype.scalar, b.dtype.scalar}
        if kinds == {tl.bfloat16}:
            left, right = lowprec.bf16_to_f32(a.data), lowprec.bf16_to_f32(b.data)
        elif kinds == {tl.float32} and input_precision == tf32:
            left, right = lowprec.truncate_tf32(a.data), lowprec.truncate_tf32(b.data)
        elif kinds <= {tl.int8, tl.uint8}:
            # Exact: |sum| <= 2^16 K, far below 2^53.
            product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
            return handle(product.astype(np.int64).astype(d.data.dtype) + d.data, d.dtype.scalar)
        elif kinds == {tl.float16}:
            left, right = a.data.astype(np.float32), b.data.astype(np.float32)
        else:
            return plain_dot(self, a, b, d, input_precision, imprecise)
        if d.dtype.scalar != tl.float16:
            return handle(np.matmul(left, right) + d.data, d.dtype.scalar)
        total = d.data
        for k in range(0, left.shape[-1], _MMA_K_F16):
            step = np.matmul(left[..., k : k + _MMA_K_F16], right[..., k : k + _MMA_K_F16, :])
            total = (total.astype(np.float32) + step).astype(np.float16)
        return handle(total, tl.float16)

    return {"create_dot": create_dot}


def _atomics() -> dict[str, Callable[..., Any]]:
    from triton.runtime import interpreter as host

    tl, handle = _types(), host.TensorHandle
    builder = host.InterpreterBuilder
    plain_rmw = builder.create_atomic_rmw
    add, exchange = host._ir.ATOMIC_OP.FADD, host._ir.ATOMIC_OP.XCHG
    raw: dict[int, Any] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}

    def create_atomic_rmw(self: Any, rmwOp: Any, ptr: Any, val: Any, mask: Any, *order: Any) -> Any:
        scalar = val.dtype.scalar
        if rmwOp == add and scalar == tl.bfloat16:
            combine = lowprec.on_bf16(np.add)
        elif rmwOp == exchange and scalar.is_floating():
            combine = _second
        else:
            return plain_rmw(self, rmwOp, ptr, val, mask, *order)
        bits = raw[val.data.dtype.itemsize]
        operands = np.broadcast_arrays(ptr.data, val.data, mask.data)
        pointers, values, active = (np.ascontiguousarray(operand).reshape(-1) for operand in operands)
        values = values.view(bits)
        before = np.zeros(pointers.shape, dtype=bits)
        for lanes in _distinct_rounds(pointers, active):
            everyone = np.ones(len(lanes), dtype=bool)
            old = host._interpreter.load(pointers[lanes], everyone, before[lanes], bits)
            before[lanes] = old
            host._interpreter.store(pointers[lanes], combine(old, values[lanes]), everyone)
        return handle(before.view(val.data.dtype).reshape(ptr.data.shape), scalar)

    return {"create_atomic_rmw": create_atomic_rmw}


def _second(old: Array, new: Array) -> Array:
    return new


def _distinct_rounds(pointers: Array, active: Array) -> list[Array]:
    """Active lanes split into rounds that touch each address once, earlier lanes in earlier rounds."""
    lanes = np.flatnonzero(active)
    rounds = []
    while lanes.size:
        _, first = np.unique(pointers[lanes], return_index=True)
        now = np.zeros(lanes.size, dtype=bool)
        now[first] = True
        rounds.append(lanes[now])
        lanes = lanes[~now]
    return rounds
