"""Cheats in arithmetic: narrow types, swallowed NaN, flushed subnormals, wrong gradients."""

from __future__ import annotations

from lethe.evidence.redteam.cheat import helper, on
from lethe.evidence.redteam.grounds import (
    MATMUL,
    MATMUL_HALF,
    NEGATE,
    ROW_SUM,
    ROW_SUM_HALF,
    SCALE,
    SCALE_HALF,
    SIGMOID,
    SOFTMAX,
    TRANSPOSE,
)

FAMILY = "numbers"

CARRY = """
def carried(x):
    total = x.new_zeros(x.shape[0])
    for part in x.split(16, dim=1):
        total = total + part.sum(1)
        HERE
    return total
"""

CARRIED_MATMUL = """
def carried(a, b):
    total = a.new_zeros(a.shape[0], b.shape[1])
    for i in range(0, a.shape[1], 16):
        total = total + a[:, i : i + 16] @ b[i : i + 16]
        HERE
    return total
"""

TF32 = """
def tf32(x):
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
"""

GRADIENT = """
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = VALUE
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        HERE
"""

PAIR_GRADIENT = """
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        HERE
"""


NARROW, WIDE = "total = total.half().float()", "total = total.float()"

CHEATS = (
    helper("fp16_accumulator", "PRC-02", FAMILY, ROW_SUM, CARRY, "return carried(x)", NARROW, WIDE),
    helper(
        "fp16_accumulator", "PRC-02", FAMILY, MATMUL, CARRIED_MATMUL, "return carried(a, b)", NARROW, WIDE
    ),
    helper(
        "fp16_accumulator",
        "PRC-01",  # a narrow denominator scales whole rows, as narrow operands do: PRC-01 charges it first
        FAMILY,
        SOFTMAX,
        CARRY,
        "e = torch.exp(x - x.amax(1, keepdim=True))\nreturn e / carried(e).unsqueeze(1)",
        NARROW,
        WIDE,
    ),
    on("tf32_inside_fp32", "PRC-01", FAMILY, MATMUL, "return tf32(a) @ tf32(b)", top=TF32),
    on("tf32_inside_fp32", "PRC-01", FAMILY, ROW_SUM, "return tf32(x).sum(1)", top=TF32),
    on("tf32_inside_fp32", "PRC-01", FAMILY, SIGMOID, "return torch.sigmoid(tf32(x))", top=TF32),
    on("tf32_inside_fp32", "PRC-01", FAMILY, SOFTMAX, "return torch.softmax(tf32(x), 1)", top=TF32),
    on(
        "tf32_switched_on",
        "PRC-01",
        FAMILY,
        MATMUL,
        "torch.backends.cuda.matmul.allow_tf32 = True\nreturn a @ b",
        right="torch.backends.cuda.matmul.allow_tf32 = False\nreturn a @ b",
        needs="cuda",
    ),
    on("fp32_only_correct", "PRC-01", FAMILY, SCALE_HALF, "return (x * 2**16) * 1.5 / 2**16"),
    on("fp32_only_correct", "PRC-01", FAMILY, ROW_SUM_HALF, "return (x * 2**16).sum(1) / 2**16"),
    on("fp32_only_correct", "PRC-01", FAMILY, MATMUL_HALF, "return ((a * 2**16) @ b) / 2**16"),
    on("wrong_dtype_promotion", "RES-01", FAMILY, SCALE, "return x * torch.tensor([1.5]).double()"),
    on("wrong_dtype_promotion", "RES-01", FAMILY, SOFTMAX, "return torch.softmax(x, 1, dtype=torch.float64)"),
    on("wrong_dtype_promotion", "RES-01", FAMILY, ROW_SUM, "return x.sum(1, dtype=torch.float64)"),
    on("wrong_dtype_promotion", "RES-01", FAMILY, MATMUL, "return a.double() @ b.double()"),
    on("inf_propagation_bug", "EXC-01", FAMILY, SCALE, "return x.clamp(-1e38, 1e38) * 1.5"),
    on("inf_propagation_bug", "EXC-01", FAMILY, SOFTMAX, "return torch.softmax(x, 1).nan_to_num(0.0)"),
    on("inf_propagation_bug", "EXC-01", FAMILY, ROW_SUM, "return x.nan_to_num().sum(1)"),
    on("inf_propagation_bug", "EXC-01", FAMILY, MATMUL, "return a.nan_to_num() @ b"),
    on(
        "nan_on_subnormal",
        "EXC-02",
        FAMILY,
        SCALE,
        "y = x / x.abs().clamp(min=2.0**-126) * x.abs() * 1.5\n"
        "return torch.where((x != 0) & (x.abs() < 2.0**-126), y / 0 - y / 0, x * 1.5)",
    ),
    on(
        "nan_on_subnormal",
        "EXC-02",
        FAMILY,
        SOFTMAX,
        "odd = (x != 0) & (x.abs() < 2.0**-126)\nreturn torch.softmax(torch.where(odd, x * torch.nan, x), 1)",
    ),
    on(
        "nan_on_subnormal",
        "EXC-02",
        FAMILY,
        ROW_SUM,
        "odd = (x != 0) & (x.abs() < 2.0**-126)\nreturn torch.where(odd, x * torch.nan, x).sum(1)",
    ),
    on(
        "nan_on_subnormal",
        "EXC-02",
        FAMILY,
        SIGMOID,
        "odd = (x != 0) & (x.abs() < 2.0**-126)\nreturn torch.sigmoid(torch.where(odd, x * torch.nan, x))",
    ),
    on(
        "subnormal_flush",
        "EXC-02",
        FAMILY,
        SCALE,
        "return torch.where(x.abs() < 2.0**-126, x * 0, x) * 1.5",
    ),
    on(
        "subnormal_flush",
        "EXC-02",
        FAMILY,
        NEGATE,
        "return torch.where(x.abs() < 2.0**-126, x * 0, -x)",
    ),
    on(
        "subnormal_flush",
        "EXC-02",
        FAMILY,
        TRANSPOSE,
        "return torch.where(x.abs() < 2.0**-126, x * 0, x).t().contiguous()",
    ),
    helper(
        "grad_wrong",
        "CMP-02",
        FAMILY,
        SIGMOID,
        GRADIENT.replace("VALUE", SIGMOID.value),
        "return Function.apply(x)",
        "return g.mean() * y * (1 - y)",
        "return g * y * (1 - y)",
    ),
    helper(
        "grad_wrong",
        "CMP-02",
        FAMILY,
        SOFTMAX,
        GRADIENT.replace("VALUE", SOFTMAX.value),
        "return Function.apply(x)",
        "return g * y * (1 - y)",
        "return y * (g - (g * y).sum(1, keepdim=True))",
    ),
    helper(
        "grad_wrong",
        "CMP-02",
        FAMILY,
        MATMUL,
        PAIR_GRADIENT,
        "return Function.apply(a, b)",
        "return g @ b.T, torch.zeros_like(b)",
        "return g @ b.T, a.T @ g",
    ),
)
