"""The kernels whose results are recorded. Their text is part of a recording: it is hashed into it."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def unary(x, o, OP: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    if OP == "exp":
        r = tl.exp(v)
    elif OP == "exp2":
        r = tl.exp2(v)
    elif OP == "log":
        r = tl.log(v)
    elif OP == "log2":
        r = tl.log2(v)
    elif OP == "sqrt":
        r = tl.sqrt(v)
    elif OP == "sqrt_rn":
        r = tl.sqrt_rn(v)
    elif OP == "rsqrt":
        r = tl.rsqrt(v)
    elif OP == "sin":
        r = tl.sin(v)
    elif OP == "cos":
        r = tl.cos(v)
    elif OP == "erf":
        r = tl.erf(v)
    elif OP == "sigmoid":
        r = tl.sigmoid(v)
    elif OP == "reciprocal":
        r = 1.0 / v
    elif OP == "abs":
        r = tl.abs(v)
    elif OP == "neg":
        r = -v
    elif OP == "floor":
        r = tl.floor(v)
    elif OP == "ceil":
        r = tl.ceil(v)
    elif OP == "tanh":
        r = libdevice.tanh(v)
    elif OP == "expm1":
        r = libdevice.expm1(v)
    elif OP == "log1p":
        r = libdevice.log1p(v)
    elif OP == "rint":
        r = libdevice.rint(v)
    elif OP == "fast_expf":
        r = libdevice.fast_expf(v)
    tl.store(o + i, r)


@triton.jit
def binary(x, y, o, OP: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "div_rn":
        r = tl.div_rn(a, b)
    elif OP == "floordiv":
        r = a // b
    elif OP == "mod":
        r = a % b
    elif OP == "shl":
        r = a << b
    elif OP == "shr":
        r = a >> b
    elif OP == "umulhi":
        r = tl.umulhi(a, b)
    elif OP == "cdiv":
        r = tl.cdiv(a, b)
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "maximum_all":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "minimum_all":
        r = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "less":
        r = (a < b).to(tl.int32)
    elif OP == "equal":
        r = (a == b).to(tl.int32)
    elif OP == "different":
        r = (a != b).to(tl.int32)
    elif OP == "where":
        r = tl.where(a < b, a, b)
    elif OP == "boolean":
        equal = a == b
        r = ((a < b) and not equal).to(tl.int32)
    elif OP == "pow":
        r = libdevice.pow(a, b)
    tl.store(o + i, r)


@triton.jit
def clamp(x, o, low, high, ALL: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    if ALL:
        r = tl.clamp(v, low, high, propagate_nan=tl.PropagateNan.ALL)
    else:
        r = tl.clamp(v, low, high)
    tl.store(o + i, r)


@triton.jit
def ternary(x, y, z, o, OP: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    b = tl.load(y + i)
    c = tl.load(z + i)
    if OP == "fma":
        r = tl.fma(a, b, c)
    elif OP == "mul_add":
        r = a * b + c
    tl.store(o + i, r)


@triton.jit
def cast(x, o, TO: tl.constexpr, MODE: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    if MODE == "rtz":
        r = v.to(TO, fp_downcast_rounding="rtz")
    elif MODE == "bits":
        r = v.to(TO).to(tl.uint8, bitcast=True)
    else:
        r = v.to(TO)
    tl.store(o + i, r)


@triton.jit
def scaled(x, o, factor, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.load(x + i) * factor)


@triton.jit
def take_larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def rows(x, o, OP: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    r = tl.arange(0, R)
    v = tl.load(x + r[:, None] * C + tl.arange(0, C)[None, :])
    if OP == "max":
        s = tl.max(v, axis=1)
    elif OP == "min":
        s = tl.min(v, axis=1)
    elif OP == "argmax":
        s = tl.argmax(v, axis=1)
    elif OP == "argmin":
        s = tl.argmin(v, axis=1)
    elif OP == "argmax_fast":
        s = tl.argmax(v, axis=1, tie_break_left=False)
    elif OP == "sum":
        s = tl.sum(v, axis=1)
    elif OP == "xor":
        s = tl.xor_sum(v, axis=1)
    elif OP == "custom":
        s = tl.reduce(v, 1, take_larger)
    tl.store(o + r, s)


@triton.jit
def scan_rows(x, o, OP: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    v = tl.load(x + at)
    if OP == "cumsum":
        s = tl.cumsum(v, axis=1)
    elif OP == "cumsum_reverse":
        s = tl.cumsum(v, axis=1, reverse=True)
    elif OP == "cumprod":
        s = tl.cumprod(v, axis=1)
    elif OP == "custom":
        s = tl.associative_scan(v, 1, take_larger)
    elif OP == "sort":
        s = tl.sort(v)
    elif OP == "softmax":
        e = tl.exp(v - tl.max(v, axis=1)[:, None])
        s = e / tl.sum(e, axis=1)[:, None]
    tl.store(o + at, s)


@triton.jit
def masked_load(x, o, n, OTHER: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    if OTHER == "none":
        v = tl.load(x + i, mask=i < n)
    else:
        v = tl.load(x + i, mask=i < n, other=-7.0)
    tl.store(o + i, v)


@triton.jit
def atomics(x, target, old, OP: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i)
    if OP == "add":
        before = tl.atomic_add(target + i, v)
    elif OP == "max":
        before = tl.atomic_max(target + i, v)
    elif OP == "min":
        before = tl.atomic_min(target + i, v)
    elif OP == "xchg":
        before = tl.atomic_xchg(target + i, v)
    elif OP == "pile":
        before = tl.atomic_add(target + i * 0, v)
    tl.store(old + i, before)


@triton.jit
def dot(a, b, o, PRECISION: tl.constexpr, OUT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    r = tl.dot(tl.load(a + at), tl.load(b + at), input_precision=PRECISION, out_dtype=OUT)
    tl.store(o + at, r)


@triton.jit
def random(o, seed, OP: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    if OP == "rand":
        r = tl.rand(seed, i)
    elif OP == "randint":
        r = tl.randint(seed, i)
    tl.store(o + i, r)


@triton.jit
def histogram(x, o, BINS: tl.constexpr, B: tl.constexpr):
    tl.store(o + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, B)), BINS))


@triton.jit
def gather(x, index, o, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, tl.gather(tl.load(x + i), tl.load(index + i), axis=0))
