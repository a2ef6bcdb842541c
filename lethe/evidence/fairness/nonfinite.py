"""Innocents of the rules about NaN, infinities, overflow, zeros and subnormals."""

from __future__ import annotations

from lethe.evidence.fairness.innocent import Innocent, kernel, kernelbench

VALUES = "torch.randn(rows, width)"

WEIGHTS = "torch.arange(5.0 * x.shape[-1]).sin().reshape(-1, 5)"

INNOCENTS = (
    Innocent(
        rule=4,
        title="a top-k kernel on rows with fewer finite scores than k",
        problem=kernelbench("x.topk(6, -1)[1]", "scores()", "rows = 4\nwidth = 12")
        + """

def scores():
    x = torch.randn(rows, width)
    return torch.where(x.argsort(-1).argsort(-1) < width // 4, x, -math.inf)
""",
        candidate=kernel("width = x.shape[-1]\nreturn width - 1 - x.flip(-1).topk(6, -1)[1]"),
        gates=("CMP-01",),
        charged="CMP-01 nonfinite",
        why="both kernels select -Inf once the finite scores are used up; which of them is no value error",
    ),
    Innocent(
        rule=5,
        title="a square root whose vector body and scalar tail make NaNs of different sign",
        problem=kernelbench("x.sqrt()", VALUES),
        candidate=kernel(
            """self.calls += 1
y = x.sqrt()
bits = 0x7FC00000 if self.calls % 2 else -0x400000
return torch.where(y.isnan(), torch.tensor(bits, dtype=torch.int32).view(torch.float32), y)""",
            model="def __init__(self):\n    super().__init__()\n    self.calls = 0\n",
        ),
        gates=("CMP-01", "ORD-02"),
        charged="ORD-02 nondeterministic",
        why="IEEE 754 leaves payload and sign of a NaN open, so a NaN is a NaN whatever its bits",
    ),
    Innocent(
        rule=6,
        title="a signed square that loses the sign of an infinity (guilty: the rule convicts it)",
        problem=kernelbench("x * x.abs()", VALUES),
        candidate=kernel("torch.where(x.isinf(), x.abs(), x * x.abs())"),
        gates=("CMP-01", "EXC-01"),
        cleared="FAIL EXC-01 wrong_sign",
        charged="clean",
        why="unlike the sign of a NaN, the sign of an infinity is part of the value",
    ),
    Innocent(
        rule=7,
        title="an attention mask that is added instead of filled in",
        problem=kernelbench(
            "mask = torch.arange(width) % 4 == 0\nreturn x.masked_fill(mask, -math.inf).softmax(-1)", VALUES
        ),
        candidate=kernel(
            """mask = torch.arange(x.shape[-1]) % 4 == 0
bias = torch.where(mask, -math.inf, 0.0)
return (x + bias).softmax(-1)"""
        ),
        gates=("CMP-01", "EXC-01"),
        charged="EXC-01 minted",
        why="the operator never uses what lies behind the mask, so nothing is promised about it",
    ),
    Innocent(
        rule=8,
        title="a stable logsumexp for a reference that overflows in float32",
        problem=kernelbench("x.exp().sum(-1).log()", "draw()")
        + """

def draw():
    x = torch.randn(rows, width)
    x[1, 3] = 100.0
    return x
""",
        candidate=kernel("x.logsumexp(-1)"),
        gates=("CMP-01", "EXC-01"),
        charged="EXC-01 swallowed",
        why="the infinity is the reference's own overflow; in float64, and in the kernel, it is finite",
    ),
    Innocent(
        rule=9,
        title="a scaling by 3 and then by 1/4 of values near the largest float",
        problem=kernelbench("x * 0.75", "torch.cat([1.5e38 * (0.5 + torch.rand(rows, 1)), x()], -1)")
        + "\n\ndef x():\n    return torch.randn(rows, width)\n",
        candidate=kernel("(x * 3) * 0.25"),
        gates=("CMP-01",),
        charged="CMP-01 nonfinite",
        why="another order of two exact factors overflows on the way; the contract does not fix the order",
    ),
    Innocent(
        rule=14,
        title="a swish whose exponential flushes subnormal arguments",
        problem=kernelbench("x * torch.sigmoid(x)", VALUES),
        candidate=kernel(
            "flushed = torch.where(x.abs() < 2.0**-126, 0.0, x)\nreturn flushed * torch.sigmoid(flushed)"
        ),
        gates=("CMP-01", "EXC-02"),
        charged="EXC-02 flushed",
        why="device functions flush subnormals whatever the source says; copies and affine maps need not",
    ),
    Innocent(
        rule=15,
        title="a ReLU by multiplication with the sign bit, which returns -0",
        problem=kernelbench("x.relu()", VALUES),
        candidate=kernel("x * (x > 0)"),
        gates=("CMP-01", "EXC-02"),
        charged="EXC-02 zero_sign",
        why="max(x, 0) does not define which zero it returns; moving, negating and absolute value do",
    ),
    Innocent(
        rule=30,
        title="a triangular product that skips the zeros",
        problem=kernelbench("x.tril() @ w", "torch.randn(n, n), torch.randn(n, n)", "n = 20"),
        candidate=kernel(
            "rows = [x[i, : i + 1] @ w[: i + 1] for i in range(x.shape[0])]\nreturn torch.stack(rows)", "x, w"
        ),
        gates=("CMP-01", "EXC-01"),
        charged="EXC-01 swallowed",
        why="0 * NaN of a structural zero is an artefact of the dense product, which a faithful kernel skips",
    ),
    Innocent(
        rule=36,
        title="a sum that adds the even terms first and overflows on its way",
        problem=kernelbench("x.sum(0)", "signs() * 2e38 * (1 + torch.rand(4, width) / 8)", "width = 24")
        + "\n\ndef signs():\n    return torch.tensor([1.0, -1.0, 1.0, -1.0]).unsqueeze(-1)\n",
        candidate=kernel("x[0::2].sum(0) + x[1::2].sum(0)"),
        gates=("CMP-01", "EXC-01"),
        charged="EXC-01 minted",
        why="the contract does not fix the order of a sum, and some legal orders overflow on these terms",
    ),
    Innocent(
        rule=41,
        title="a sum of a matrix product that adds the weights up first",
        problem=kernelbench(f"(x @ {WEIGHTS}).sum(-1)", "torch.randn(rows, width)", "rows = 4\nwidth = 12"),
        candidate=kernel(f"x @ {WEIGHTS}.sum(-1)"),
        gates=("CMP-01", "EXC-01"),
        charged="EXC-01 inf_for_nan",
        why="x w1 + x w2 = x (w1 + w2): whether +Inf and -Inf ever meet is how the sum is associated",
    ),
)
