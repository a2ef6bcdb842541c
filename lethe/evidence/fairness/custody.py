"""Innocents of the rules about memory, shapes, weights, draws and processes."""

from __future__ import annotations

from lethe.evidence.fairness.innocent import Innocent, kernel, kernelbench

VALUES = "torch.randn(rows, width)"
LOWER = "rows = [x[i, : i + 1] @ w[: i + 1] for i in range(x.shape[0])]\nreturn torch.stack(rows)"

INNOCENTS = (
    Innocent(
        rule=16,
        title="an argmax that returns the last of equal values",
        problem=kernelbench("x.argmax(-1)", "torch.randint(0, 4, (rows, width)).float()"),
        candidate=kernel("x.shape[-1] - 1 - x.flip(-1).argmax(-1)"),
        gates=("CMP-01",),
        charged="CMP-01 value",
        why="any position of the largest value is an answer",
    ),
    Innocent(
        rule=17,
        title="a clamp in place, for a reference in place",
        problem=kernelbench("x.clamp_(min=0.0)", VALUES),
        candidate=kernel("x.clamp_(min=0.0)"),
        gates=("CMP-01", "ORD-02"),
        charged="ORD-02 input_overwritten",
        why="the reference writes its input too: that is what the operator does",
    ),
    Innocent(
        rule=18,
        title="a transposition that returns a view, as the reference does",
        problem=kernelbench("x.mT", VALUES),
        candidate=kernel("x.transpose(-1, -2)"),
        gates=("CMP-01", "ORD-02"),
        charged="ORD-02 aliasing",
        why="sharing memory with the input is part of the reference's answer",
    ),
    Innocent(
        rule=20,
        title="a forward-only kernel whose backward says so",
        problem=kernelbench("x * x", VALUES),
        candidate=kernel(
            "Square.apply(x)",
            top="""class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("this kernel has no backward pass")""",
        ),
        gates=("CMP-01", "CMP-02"),
        charged="CMP-02 raises",
        why="a refusal is heard by whoever calls it; a wrong gradient would not be",
    ),
    Innocent(
        rule=21,
        title="a running sum whose workspace outgrows this machine at long rows",
        problem=kernelbench("x.cumsum(-1)", VALUES, "rows = 2\nwidth = 12"),
        candidate=kernel(
            "n = x.shape[-1]\nworkspace = x.new_empty(n, n, n)\nworkspace[0, 0] = 0\nreturn x.cumsum(-1)"
        ),
        gates=("CMP-03",),
        charged="CMP-03 out_of_memory",
        why="how much memory there is, is the machine's business; what was computed is right",
        memory_bytes=1 << 30,
    ),
    Innocent(
        rule=23,
        title="a perceptron that creates its layers in another order",
        problem=kernelbench(
            "self.b(self.a(x).relu())",
            "torch.randn(5, 8)",
            "",
            model="""def __init__(self):
    super().__init__()
    self.a = nn.Linear(8, 12)
    self.b = nn.Linear(12, 4)
""",
        ),
        candidate=kernel(
            "self.b(self.a(x).relu())",
            model="""def __init__(self):
    super().__init__()
    self.b = nn.Linear(12, 4)
    self.a = nn.Linear(8, 12)
""",
        ),
        gates=("CMP-01",),
        charged="CMP-01 value",
        why="the same seed gives other weights here; handed over by name they are the reference's",
    ),
    Innocent(
        rule=26,
        title="a kernel that once, in its first process, returned a wrong value",
        problem=kernelbench("x * 2", VALUES),
        candidate=kernel(
            "x * (2.0 if SEEN else 2.5)",
            top="""MARK = os.path.join(os.path.dirname(os.environ["TRITON_CACHE_DIR"]), "seen")
SEEN = os.path.exists(MARK)
open(MARK, "w").close()""",
        ),
        gates=("CMP-01",),
        charged="CMP-01 value",
        why="what a second process does not show again was this machine's accident",
        cleared="CMP-01 error (harness)",
    ),
    Innocent(
        rule=31,
        title="a sum without a tail mask, right at the problem's own width",
        problem=kernelbench("x.sum(-1)", VALUES, "rows = 4\nwidth = 32"),
        candidate=kernel("x[..., : x.shape[-1] // 32 * 32].sum(-1)"),
        gates=("CMP-01", "CMP-03", "PRC-02"),
        charged="PRC-02 bfloat16_carry",
        why="its accumulator is as wide as it should be: dropped terms are CMP-03's finding alone",
        cleared="FAIL CMP-03 value",
    ),
    Innocent(
        rule=32,
        title="a Triton kernel whose wide path uses inline assembly",
        problem=kernelbench("x * 2", VALUES, "rows = 3\nwidth = 16"),
        candidate="""import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    if WIDE:
        y = tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=r,r", [x], tl.float32, True, 1)
    else:
        y = x + x
    tl.store(y_ptr + at, y, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.numel()
        double[(triton.cdiv(n, 64),)](x, y, n, BLOCK=64, WIDE=n > 512)
        return y
""",
        gates=("CMP-03",),
        charged="CMP-03 executor_failed",
        why="the interpreter has no assembler; on a GPU the same kernel runs",
    ),
    Innocent(
        rule=33,
        title="a product with a lower triangular matrix that reads its lower half only",
        problem=kernelbench("x @ w", "torch.randn(n, n).tril(), torch.randn(n, n)", "n = 16"),
        candidate=kernel(LOWER, "x, w"),
        gates=("CMP-01",),
        charged="CMP-01 value",
        why="the operator is defined for triangular matrices; a draw that fills the other half leaves it",
    ),
    Innocent(
        rule=35,
        title="a kernel that holds the width as its own module-level constant",
        problem=kernelbench("x - x.mean(-1, keepdim=True)", VALUES, "rows = 4\nwidth = 24"),
        candidate=kernel(
            "rows = x.reshape(-1, width)\nreturn (rows - rows.mean(-1, keepdim=True)).reshape(x.shape)",
            top="width = 24",
        ),
        gates=("CMP-03",),
        charged="CMP-03 rejects",
        why="the constant is the problem's own, copied with its name: whoever changes one changes both",
    ),
    Innocent(
        rule=37,
        title="a doubling whose longest rows the judge has no memory to hand over",
        problem=kernelbench("x * 2", VALUES, "rows = 3\nwidth = 16"),
        candidate=kernel("x + x"),
        gates=("CMP-03",),
        charged="CMP-03 harness_failed",
        why="the kernel was never asked",
    ),
    Innocent(
        rule=39,
        title="an autotuned kernel, one configuration of which refuses to compile",
        problem=kernelbench("x * 2", VALUES, "rows = 3\nwidth = 16"),
        candidate="""import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.numel()
        double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        return y
""",
        gates=("CMP-01",),
        charged="INTEGRITY configuration",
        why="an autotuner passes over what does not compile, so that configuration never runs anywhere",
    ),
    Innocent(
        rule=40,
        title="a kernel that returns a row too many, which a NaN then stays in",
        problem=kernelbench("x * 2", VALUES),
        candidate=kernel(
            "SPARE.add_(0 * x.amax())\nreturn torch.cat([2 * x, SPARE])", top="SPARE = torch.zeros(1, 32)"
        ),
        gates=("CMP-01", "ORD-02", "EXC-01"),
        charged="INTEGRITY call_history",
        why="its answer is wrong from the first call on; what else stands in it is not why",
        cleared="FAIL CMP-01 shape, EXC-01 shape",
    ),
    Innocent(
        rule=45,
        title="a sum without a tail mask, before a judge who chose a width of his own",
        problem=kernelbench("x.sum(-1)", VALUES, "rows = 64\nwidth = 1024"),
        candidate=kernel("x[..., : x.shape[-1] // 64 * 64].sum(-1)"),
        gates=("CMP-01", "CMP-03"),
        charged="CMP-01 value",
        why="at the problem's own width it has no tail: the judge made the problem smaller to save time",
        cleared="FAIL CMP-03 inexact_integer, CMP-03 value",
        reference_bytes=1 << 16,
    ),
    Innocent(
        rule=46,
        title="a sum of bfloat16 operands, at whatever size",
        problem=kernelbench("x.sum(-1)", VALUES, "rows = 48\nwidth = 96"),
        candidate=kernel("x.bfloat16().float().sum(-1)"),
        gates=("CMP-01", "CMP-03"),
        charged="CMP-03 value",
        why="it errs as much at the problem's own sizes and layout, so that neither is the reason",
        cleared="FAIL CMP-01 value",
    ),
)
