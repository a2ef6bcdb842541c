"""Kernels for the executor tests; imported only after an executor was installed."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def double(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def broken(x):
    tl.store(x + tl.arange(0, 4), tl.load(x + tl.arange(0, 8)))


@triton.jit
def inline_assembly(x):
    v = tl.load(x + tl.arange(0, 4))
    r = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x + tl.arange(0, 4), r)


def _count(args: dict[str, Any]) -> None:
    args["hooked"].add_(1)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 16}, pre_hook=_count),
        triton.Config({"BLOCK": 32}, num_warps=8),
        triton.Config({"BLOCK": 64}),
    ],
    key=["n"],
    reset_to_zero=["o"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(x, o, hooked, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(o + i, tl.load(x + i, mask=i < n), mask=i < n)
    tl.store(hooked + 1, BLOCK)
    tl.store(hooked + 2, EVEN)


@triton.jit
def elementwise(x, y, o, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OP == "add":
        r = a + b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "maximum_all":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "clamp":
        r = tl.clamp(a, -1.0, 1.0)
    elif OP == "fma":
        r = tl.fma(a, b, a)
    elif OP == "boolean":
        r = ((a < b) and not (a < -b)).to(tl.float32)
    elif OP == "either":
        r = ((a < b) or (a > 1.0)).to(tl.float32)
    elif OP == "tanh":
        r = libdevice.tanh(a)
    elif OP == "erf":
        r = tl.erf(a)
    elif OP == "exp":
        r = tl.exp(a)
    tl.store(o + i, r)


@triton.jit
def convert(x, o, TO: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i).to(TO))


@triton.jit
def scale(x, o, factor, flag, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = b = tl.load(x + i) * factor
    if flag:
        tl.store(o + i, a + 0 * b)


@triton.jit
def smaller(a, b):
    return tl.where(a < b, a, b)


@triton.jit
def smaller_by_branch(a, b):
    if a < b:
        r = a
    else:
        r = b
    return r


@triton.jit
def first(a, b):
    return a + 0 * b


@triton.jit
def reduce_rows(x, o, OP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r = tl.arange(0, ROWS)
    v = tl.load(x + r[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    if OP == "max":
        s = tl.max(v, axis=1)
    elif OP == "min":
        s = tl.min(v, axis=-1)
    elif OP == "sum":
        s = v.sum(axis=1)
    elif OP == "argmax":
        s = tl.argmax(v, axis=1)
    elif OP == "argmin":
        s = tl.argmin(v, axis=1)
    elif OP == "smaller":
        s = tl.reduce(v, -1, smaller)
    elif OP == "branch":
        s = tl.reduce(v, -1, smaller_by_branch)
    elif OP == "first":
        s = tl.reduce(v, 1, first)
    tl.store(o + r, s)


@triton.jit
def scan_rows(x, o, OP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    v = tl.load(x + at)
    if OP == "cumsum":
        s = tl.cumsum(v, axis=1)
    elif OP == "reverse":
        s = tl.cumsum(v, axis=1, reverse=True)
    elif OP == "smaller":
        s = tl.associative_scan(v, 1, smaller)
    elif OP == "branch":
        s = tl.associative_scan(v, 1, smaller_by_branch)
    elif OP == "first":
        s = tl.associative_scan(v, -1, first)
    elif OP == "sort":
        s = tl.sort(v)
    tl.store(o + at, s)


@triton.jit
def pile_up(x, total, BLOCK: tl.constexpr):
    tl.atomic_add(total + tl.arange(0, BLOCK) % 2, tl.load(x + tl.arange(0, BLOCK)))


@triton.jit
def activation(x):
    return libdevice.tanh(x)


@triton.jit
def matmul(a, b, c, n, TF32: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = i[:, None] * n + i[None, :]
    precision: tl.constexpr = "tf32" if TF32 else "ieee"
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision=precision))


@triton.jit
def long_matmul(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        left = tl.load(a + i[:, None] * k + (start + d)[None, :])
        right = tl.load(b + (start + d)[:, None] * N + j[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + i[:, None] * N + j[None, :], activation(total).to(c.dtype.element_ty))


def filler(value: float, size: int) -> torch.Tensor:
    """A kernel that reads variables of the enclosing function."""

    @triton.jit
    def fill(o, BLOCK: tl.constexpr):
        tl.store(o + tl.arange(0, BLOCK), tl.full((BLOCK,), value, tl.float32))

    o = torch.empty(size, device="cuda")
    fill[(1,)](o, size)
    return o


class Squared(torch.autograd.Function):
    """Remembers where its backward pass believed to run."""

    where: str = ""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        Squared.where = f"{gradient.device.type} {x.is_cuda}"
        o = torch.empty_like(x)
        double[(1,)](x * gradient, o, x.numel(), 16)
        return o
