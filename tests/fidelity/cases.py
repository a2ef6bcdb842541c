"""What is recorded: name -> how to run it on a device, and how exactly a repetition must agree.

Inputs come from written-out values and a multiplicative hash, so they are the same under every torch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.fidelity import kernels as k

EXACT = 0
"""Every bit agrees (NaN payloads and signs aside)."""
INFORMATIVE = -1
"""Recorded for the reader; a GPU's own result depends on layout or order, so nothing is compared."""


@dataclass(frozen=True)
class Case:
    """One recorded result."""

    run: Callable[[], Tensor]
    ulps: int
    """Largest accepted distance in units in the last place; `EXACT` or `INFORMATIVE`."""


DEVICE = "cuda"

NAN, INF = float("nan"), float("inf")
_TINY, _SUBNORMAL, _HUGE = 2.0**-126, 2.0**-140, 3.0e38
SPECIALS = [0.0, -0.0, 1.0, -1.0, 2.5, INF, -INF, NAN, _SUBNORMAL, -_SUBNORMAL, _HUGE]


def hashed(n: int, low: float = -4.0, high: float = 4.0, start: int = 1) -> list[float]:
    """n reproducible values spread over [low, high)."""
    return [low + (high - low) * ((i * 2654435761) % 2**32) / 2**32 for i in range(start, start + n)]


def whole(n: int, low: int, high: int) -> list[int]:
    """n reproducible integers in [low, high]."""
    return [low + ((i * 2654435761) % 2**32) % (high - low + 1) for i in range(1, n + 1)]


def tensor(values: list[float] | list[int], dtype: torch.dtype, size: int | None = None) -> Tensor:
    """`values` on the device, padded with ones to `size`."""
    padded = [*values, *[1] * ((size or len(values)) - len(values))]
    return torch.tensor(padded, dtype=dtype).to(DEVICE)


def from_bits(bits: list[int]) -> list[float]:
    """Float32 values with these bit patterns."""
    return [struct.unpack("<f", struct.pack("<I", b & 0xFFFFFFFF))[0] for b in bits]


def empty(size: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.zeros(size, dtype=dtype).to(DEVICE)


def _unary_inputs() -> list[float]:
    extra = [
        _TINY,
        -_TINY,
        2.0**-149,
        88.0,
        -87.0,
        -100.0,
        -104.0,
        89.0,
        127.5,
        -126.5,
        -140.0,
        -150.0,
        1e-3,
        65504.0,
    ]
    return [*SPECIALS, *extra, *hashed(128 - len(SPECIALS) - len(extra), -20.0, 20.0)]


def unary(op: str, ulps: int, dtype: torch.dtype = torch.float32, values: list[float] | None = None) -> Case:
    def run() -> Tensor:
        x = tensor(values or _unary_inputs(), dtype, 128)
        o = empty(128, dtype)
        k.unary[(1,)](x, o, op, 128)
        return o

    return Case(run, ulps)


def _pairs() -> tuple[list[float], list[float]]:
    first = [a for a in SPECIALS for _ in SPECIALS]
    second = [b for _ in SPECIALS for b in SPECIALS]
    return first, second


def binary(
    op: str,
    ulps: int,
    dtype: torch.dtype = torch.float32,
    pairs: tuple[list[float], list[float]] | tuple[list[int], list[int]] | None = None,
    out: torch.dtype | None = None,
) -> Case:
    def run() -> Tensor:
        first, second = pairs or _pairs()
        o = empty(128, out or dtype)
        k.binary[(1,)](tensor(first, dtype, 128), tensor(second, dtype, 128), o, op, 128)
        return o

    return Case(run, ulps)


def clamp(propagate: bool) -> Case:
    def run() -> Tensor:
        o = empty(16, torch.float32)
        k.clamp[(1,)](tensor(SPECIALS, torch.float32, 16), o, -1.5, 2.0, propagate, 16)
        return o

    return Case(run, EXACT)


def ternary(op: str, dtype: torch.dtype, ulps: int = EXACT) -> Case:
    def run() -> Tensor:
        ones = [1.0 + i * 2.0**-7 for i in range(64)]
        a = tensor([*hashed(64), *ones], dtype)
        b = tensor([*hashed(64, start=500), *ones[::-1]], dtype)
        c = tensor([*hashed(64, start=900), *[-1.0 - 2.0**-12 * i for i in range(64)]], dtype)
        o = empty(128, dtype)
        k.ternary[(1,)](a, b, c, o, op, 128)
        return o

    return Case(run, ulps)


def _cast_inputs() -> list[float]:
    halfway = from_bits(
        [0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7F8000, 0x7F7F7FFF, 0x7F7FFFFF, 0x00008000]
    )
    half16 = [
        1.0 + 2.0**-11,
        1.0 + 3 * 2.0**-11,
        65504.0,
        65519.996,
        65520.0,
        70000.0,
        2.0**-25,
        2.0**-24 * 1.5,
        6e-8,
    ]
    whole_ = [
        0.5,
        1.5,
        -0.5,
        127.0,
        128.0,
        255.0,
        256.0,
        300.0,
        -128.0,
        -129.0,
        32767.5,
        65536.0,
        2.0**31,
        -(2.0**31),
        3e9,
        1e19,
    ]
    values = [*SPECIALS, *halfway, *half16, *whole_]
    return [*values, *hashed(64 - len(values), -300.0, 300.0)]


def cast(
    source: torch.dtype,
    target: torch.dtype,
    mode: str = "rne",
    values: list[int] | None = None,
    ulps: int = EXACT,
) -> Case:
    names = {torch.float8_e4m3fn: "float8e4nv", torch.float8_e5m2: "float8e5"}
    name = names.get(target, str(target).removeprefix("torch."))

    def run() -> Tensor:
        import triton.language as tl

        x = tensor(values if values is not None else _cast_inputs(), source, 64)
        o = empty(64, torch.uint8 if mode == "bits" else target)
        k.cast[(1,)](x, o, getattr(tl, name), mode, 64)
        return o

    return Case(run, ulps)


def _nan_rows() -> list[float]:
    """16 rows of 8: NaN in each position, all NaN, none, both zeros, infinities, ties."""
    base = [3.0, -1.0, 7.0, 7.0, -5.0, -5.0, 0.5, 2.0]
    rows = [[NAN if j == i else v for j, v in enumerate(base)] for i in range(8)]
    rows += [
        [NAN] * 8,
        base,
        [-0.0, 0.0] * 4,
        [0.0, -0.0] * 4,
        [INF, -INF, *base[2:]],
        [-0.0] * 8,
        [NAN] * 7 + [1.0],
    ]
    rows += [[4.0] * 8]
    return [v for row in rows for v in row]


def _number_rows() -> list[float]:
    """16 rows of 8 numbers with ties and both zeros."""
    rows = [[float(v) for v in whole(128, -3, 3)[i * 8 : i * 8 + 8]] for i in range(14)]
    rows += [[-0.0, 0.0] * 4, [0.0, -0.0] * 4]
    return [v for row in rows for v in row]


def rows(
    op: str,
    ulps: int,
    values: Callable[[], list[float]] | Callable[[], list[int]],
    dtype: torch.dtype = torch.float32,
    out: torch.dtype | None = None,
    shape: tuple[int, int] = (16, 8),
) -> Case:
    def run() -> Tensor:
        o = empty(shape[0], out or dtype)
        k.rows[(1,)](tensor(values(), dtype), o, op, *shape)
        return o

    return Case(run, ulps)


def scan(op: str, ulps: int, values: list[float], dtype: torch.dtype = torch.float32) -> Case:
    def run() -> Tensor:
        o = empty(256, dtype)
        k.scan_rows[(1,)](tensor(values, dtype), o, op, 8, 32)
        return o

    return Case(run, ulps)


def masked_load(other: str, ulps: int) -> Case:
    def run() -> Tensor:
        o = empty(32, torch.float32)
        k.masked_load[(1,)](tensor(hashed(32), torch.float32), o, 19, other, 32)
        return o

    return Case(run, ulps)


def atomic(op: str, dtype: torch.dtype, part: str = "target") -> Case:
    def run() -> Tensor:
        target, old = tensor(hashed(32, start=70), dtype), empty(32, dtype)
        values = [float(v) for v in whole(32, -4, 4)] if op == "pile" else hashed(32)
        if op == "pile":
            target = empty(32, dtype)
        k.atomics[(1,)](tensor(values, dtype), target, old, op, 32)
        return target if part == "target" else old

    return Case(run, EXACT)


def dot(dtype: torch.dtype, precision: str, out: str, n: int, ulps: int, values: str) -> Case:
    def run() -> Tensor:
        import triton.language as tl

        if values == "identity":  # reads one operand back as the tensor core saw it
            a = torch.eye(n, dtype=dtype).to(DEVICE)
            b = tensor(hashed(n * n), dtype).view(n, n)
        elif values == "whole":
            a = tensor(whole(n * n, -8, 8), dtype).view(n, n)
            b = tensor(whole(n * n, -7, 9), dtype).view(n, n)
        else:
            a = tensor(hashed(n * n), dtype).view(n, n)
            b = tensor(hashed(n * n, start=9000), dtype).view(n, n)
        kinds = {"float32": torch.float32, "float16": torch.float16, "int32": torch.int32}
        o = empty((n, n), kinds[out])
        k.dot[(1,)](a, b, o, precision, getattr(tl, out), n)
        return o

    return Case(run, ulps)


def random(op: str, dtype: torch.dtype) -> Case:
    def run() -> Tensor:
        o = empty(64, dtype)
        k.random[(1,)](o, 1234, op, 64)
        return o

    return Case(run, EXACT)


def histogram() -> Case:
    def run() -> Tensor:
        o = empty(16, torch.int32)
        k.histogram[(1,)](tensor(whole(64, 0, 15), torch.int32), o, 16, 64)
        return o

    return Case(run, EXACT)


def gather() -> Case:
    def run() -> Tensor:
        o = empty(32, torch.float32)
        k.gather[(1,)](tensor(hashed(32), torch.float32), tensor(whole(32, 0, 31), torch.int32), o, 32)
        return o

    return Case(run, EXACT)


def scaled(dtype: torch.dtype) -> Case:
    """A float argument is a float32 scalar: a half tensor times it is float32."""

    def run() -> Tensor:
        o = empty(64, torch.float32)
        k.scaled[(1,)](tensor(hashed(64), dtype), o, 0.1, 64)
        return o

    return Case(run, EXACT)


def _all() -> dict[str, Case]:
    f32, f16, bf16, f64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
    i8, u8, i16, i32, i64 = torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64
    signed = ([v or 1 for v in whole(128, -50, 50)], [v or 3 for v in whole(128, -9, 9)[::-1]])
    shifts = (whole(128, -1000, 1000), whole(128, 0, 9))
    random_pairs = (hashed(128), hashed(128, start=700))
    positive = [0.0, -0.0, 1.0, INF, NAN, -1.0, _TINY, _SUBNORMAL, 2.0**-149, _HUGE, *hashed(118, 1e-3, 50.0)]
    small = [float(v) for v in whole(256, -8, 8)]
    cases: dict[str, Case] = {}

    # Approximate instructions: ex2.approx, sqrt.approx, rsqrt.approx 1-2 ulp; div.full 2 ulp (PTX ISA);
    # libdevice functions 1-2 ulp, pow 4 (CUDA C++ Programming Guide).
    for op, ulps in {"exp": 2, "exp2": 2, "sin": 2, "cos": 2, "erf": 2, "sigmoid": 4, "reciprocal": 1,
                     "tanh": 2, "expm1": 2, "fast_expf": 4}.items():  # fmt: skip
        cases[f"{op}/f32"] = unary(op, ulps)
    for op, ulps in {"log": 2, "log2": 2, "sqrt": 1, "sqrt_rn": EXACT, "rsqrt": 2, "log1p": 2}.items():
        cases[f"{op}/f32"] = unary(op, ulps, values=positive)
    for op in ("abs", "floor", "ceil", "rint"):
        cases[f"{op}/f32"] = unary(op, EXACT)
    for dtype, tag in ((f32, "f32"), (f16, "f16"), (bf16, "bf16")):
        cases[f"abs/{tag}"] = unary("abs", EXACT, dtype)
        # No zeros: triton 3.6 and 3.7 compute 0 - x, later versions flip the sign.
        cases[f"neg/{tag}"] = unary("neg", EXACT, dtype, [NAN, INF, -INF, *hashed(125)])

    for op in ("maximum", "maximum_all", "minimum", "minimum_all", "where", "add", "sub", "mul"):
        for dtype, tag in ((f32, "f32"), (f16, "f16"), (bf16, "bf16")):
            cases[f"{op}/specials/{tag}"] = binary(op, EXACT, dtype)
    for op in ("less", "equal", "different", "boolean"):
        for dtype, tag in ((f32, "f32"), (bf16, "bf16")):
            cases[f"{op}/specials/{tag}"] = binary(op, EXACT, dtype, out=i32)
    for op in ("add", "sub", "mul"):
        for dtype, tag in ((f32, "f32"), (f16, "f16"), (bf16, "bf16")):
            cases[f"{op}/random/{tag}"] = binary(op, EXACT, dtype, random_pairs)
    cases["div/random/f32"] = binary("div", 2, f32, random_pairs)
    cases["div/specials/f32"] = binary("div", 2)
    cases["div_rn/random/f32"] = binary("div_rn", EXACT, f32, random_pairs)
    cases["div/random/bf16"] = binary("div", 1, bf16, random_pairs)
    cases["div/random/f16"] = binary("div", 1, f16, random_pairs)
    cases["pow/f32"] = binary("pow", 8, f32, (hashed(128, 0.01, 9.0), hashed(128, -3.0, 3.0, start=40)))
    for op in ("floordiv", "mod", "cdiv"):
        cases[f"{op}/i32"] = binary(op, EXACT, i32, signed)
    cases["floordiv/i64"] = binary("floordiv", EXACT, i64, signed)
    cases["mod/f32"] = binary(
        "mod", INFORMATIVE, f32, (hashed(128), [v or 1.0 for v in hashed(128, start=31)])
    )
    cases["shl/i32"] = binary("shl", EXACT, i32, shifts)
    cases["shr/i32"] = binary("shr", EXACT, i32, shifts)
    big = (
        [v * 1_000_003 for v in whole(128, -2000, 2000)],
        [v * 900_007 for v in whole(128, -2000, 2000)[::-1]],
    )
    cases["umulhi/i32"] = binary("umulhi", EXACT, i32, big)
    cases["clamp/none"] = clamp(propagate=False)
    cases["clamp/all"] = clamp(propagate=True)

    for dtype, tag in ((f32, "f32"), (f16, "f16"), (bf16, "bf16"), (f64, "f64")):
        cases[f"fma/{tag}"] = ternary("fma", dtype)
    for dtype, tag in ((f32, "f32"), (bf16, "bf16")):
        cases[f"mul_add/{tag}"] = ternary("mul_add", dtype, INFORMATIVE)

    for target, tag in ((f16, "f16"), (bf16, "bf16")):
        cases[f"cast/f32-{tag}"] = cast(f32, target)
        cases[f"cast/f32-{tag}/rtz"] = cast(f32, target, "rtz")
        cases[f"cast/f64-{tag}"] = cast(f64, target)
        cases[f"cast/{tag}-f32"] = cast(target, f32)
        cases[f"cast/i32-{tag}"] = cast(
            i32, target, values=[*whole(60, -70000, 70000), 2**24 + 1, 257, 65519, -513]
        )
    cases["cast/bf16-f16"] = cast(bf16, f16)
    cases["cast/f16-bf16"] = cast(f16, bf16)
    for target, tag in ((i8, "i8"), (u8, "u8"), (i16, "i16"), (i32, "i32"), (i64, "i64")):
        cases[f"cast/f32-{tag}"] = cast(f32, target)
    cases["cast/bf16-i32"] = cast(bf16, i32)
    cases["cast/f64-i32"] = cast(f64, i32)
    cases["cast/i32-f32"] = cast(i32, f32, values=[*whole(62, -(2**31), 2**31 - 1), 2**24 + 1, 2**25 + 3])
    cases["cast/f32-e4m3"] = cast(f32, torch.float8_e4m3fn, "bits", ulps=INFORMATIVE)
    cases["cast/f32-e5m2"] = cast(f32, torch.float8_e5m2, "bits", ulps=INFORMATIVE)
    for dtype, tag in ((f16, "f16"), (bf16, "bf16"), (f32, "f32")):
        cases[f"scaled/{tag}"] = scaled(dtype)

    for dtype, tag in ((f32, "f32"), (bf16, "bf16"), (f16, "f16")):
        cases[f"max/nan/{tag}"] = rows("max", EXACT, _nan_rows, dtype, f32)
        cases[f"min/nan/{tag}"] = rows("min", EXACT, _nan_rows, dtype, f32)
        cases[f"argmax/ties/{tag}"] = rows("argmax", EXACT, _number_rows, dtype, i32)
        cases[f"argmin/ties/{tag}"] = rows("argmin", EXACT, _number_rows, dtype, i32)
        cases[f"sum/whole/{tag}"] = rows("sum", EXACT, _number_rows, dtype)
    cases["argmax/nan/f32"] = rows("argmax", INFORMATIVE, _nan_rows, f32, i32)
    cases["argmax/fast/f32"] = rows("argmax_fast", INFORMATIVE, _number_rows, f32, i32)
    cases["xor/i32"] = rows("xor", EXACT, lambda: whole(128, 0, 2**20), i32)
    cases["custom/f32"] = rows("custom", EXACT, _number_rows, f32)
    cases["custom/nan/f32"] = rows("custom", INFORMATIVE, _nan_rows, f32)
    grow = [2048.0, *[1.0] * 31]
    for dtype, tag in ((f32, "f32"), (f16, "f16"), (bf16, "bf16")):
        cases[f"sum/order/{tag}"] = rows("sum", INFORMATIVE, lambda: grow * 4, dtype, None, (4, 32))

    cases["cumsum/whole/f32"] = scan("cumsum", EXACT, small)
    cases["cumsum_reverse/whole/f32"] = scan("cumsum_reverse", EXACT, small)
    cases["cumsum/whole/bf16"] = scan("cumsum", EXACT, [float(v) for v in whole(256, -2, 2)], bf16)
    cases["cumsum/whole/f16"] = scan("cumsum", EXACT, small, f16)
    cases["cumprod/signs/f32"] = scan(
        "cumprod", EXACT, [(-1.0) ** v * 2.0 ** (v % 3 - 1) for v in whole(256, 0, 9)]
    )
    cases["scan/custom/f32"] = scan("custom", EXACT, hashed(256))
    cases["sort/f32"] = scan("sort", EXACT, [*hashed(250), 0.0, -0.0, INF, -INF, 1.0, 1.0])
    cases["softmax/f32"] = scan("softmax", 8, hashed(256, -8.0, 8.0))

    cases["load/other"] = masked_load("value", EXACT)
    cases["load/no-other"] = masked_load("none", EXACT)
    for part in ("target", "old"):
        cases[f"atomic_add/f32/{part}"] = atomic("add", f32, part)
        cases[f"atomic_add/f16/{part}"] = atomic("add", f16, part)
        cases[f"atomic_add/bf16/{part}"] = atomic("add", bf16, part)
        cases[f"atomic_max/f32/{part}"] = atomic("max", f32, part)
        cases[f"atomic_min/f32/{part}"] = atomic("min", f32, part)
        cases[f"atomic_xchg/f32/{part}"] = atomic("xchg", f32, part)
    cases["atomic_pile/f32"] = atomic("pile", f32)

    cases["dot/f16/whole"] = dot(f16, "ieee", "float32", 16, EXACT, "whole")
    cases["dot/bf16/whole"] = dot(bf16, "ieee", "float32", 16, EXACT, "whole")
    cases["dot/f32/ieee/whole"] = dot(f32, "ieee", "float32", 16, EXACT, "whole")
    cases["dot/i8/whole"] = dot(i8, "ieee", "int32", 32, EXACT, "whole")
    cases["dot/f16/f16-out/whole"] = dot(f16, "ieee", "float16", 16, EXACT, "whole")
    cases["dot/f32/ieee/identity"] = dot(f32, "ieee", "float32", 16, EXACT, "identity")
    cases["dot/f32/tf32/identity/16"] = dot(f32, "tf32", "float32", 16, EXACT, "identity")
    cases["dot/f32/tf32/identity/64"] = dot(f32, "tf32", "float32", 64, EXACT, "identity")
    cases["dot/bf16/identity"] = dot(bf16, "ieee", "float32", 16, EXACT, "identity")
    cases["dot/f16/random"] = dot(f16, "ieee", "float32", 16, INFORMATIVE, "random")
    cases["dot/f16/f16-out/random"] = dot(f16, "ieee", "float16", 64, INFORMATIVE, "random")
    cases["dot/f32/tf32x3/random"] = dot(f32, "tf32x3", "float32", 16, INFORMATIVE, "random")

    cases["rand/f32"] = random("rand", f32)
    cases["randint/i32"] = random("randint", i32)
    cases["histogram/i32"] = histogram()
    cases["gather/f32"] = gather()
    return cases


CASES = _all()
