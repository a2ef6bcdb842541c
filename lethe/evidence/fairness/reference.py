"""Innocents of the rules about what the reference itself does."""

from __future__ import annotations

from lethe.evidence.fairness.innocent import Innocent, kernel, kernelbench

VALUES = "torch.randn(rows, width)"
ROTATING = "x.roll(next(CALLS) % 7, -1).sum(-1)"
AVERAGE = """def __init__(self):
    super().__init__()
    self.register_buffer("mean", torch.zeros(32))
"""
CENTRED = "self.mean.mul_(0.9).add_(0.1 * x.mean(0))\nreturn x - self.mean"
TABLE = """def __init__(self):
    super().__init__()
    self.table = nn.Parameter(torch.randn(64, 8))
"""
ROUNDED = "((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)"

INNOCENTS = (
    Innocent(
        rule=1,
        title="a Cholesky factorisation that returns NaN where the reference raises",
        problem=kernelbench(
            "torch.linalg.cholesky(x @ x.mT + n * torch.eye(n))", "torch.randn(n, n)", "n = 6"
        ),
        candidate=kernel(
            """n = x.shape[-1]
factor, _ = torch.linalg.cholesky_ex(x @ x.mT + n * torch.eye(n))
return factor"""
        ),
        gates=("CMP-01", "EXC-01"),
        charged="EXC-01 error (reference)",
        why="where the reference raises there is no answer to compare with",
    ),
    Innocent(
        rule=2,
        title="a sum by atomic additions, whose order changes from run to run, as the reference's does",
        problem=kernelbench(ROTATING, VALUES, "rows = 4\nwidth = 200\nCALLS = itertools.count()"),
        candidate=kernel(ROTATING, top="CALLS = itertools.count()"),
        gates=("CMP-01", "ORD-02"),
        charged="ORD-02 nondeterministic",
        why="the reference does not repeat itself to the bit either",
    ),
    Innocent(
        rule=3,
        title="a dropout with a generator of its own, for a reference that seeds torch's",
        problem=kernelbench("torch.manual_seed(5)\nreturn F.dropout(x, 0.5, True)", VALUES),
        candidate=kernel("2 * x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(7)) > 0.5)"),
        gates=("CMP-01",),
        charged="CMP-01 value",
        why="two random masks are equally right, so values cannot be compared",
        cleared="not applicable (stochastic_operator)",
    ),
    Innocent(
        rule=13,
        title="a TF32 product for a reference that turns TF32 on",
        problem=kernelbench(
            'torch.set_float32_matmul_precision("high")\nreturn x @ w',
            "torch.randn(m, k), torch.randn(k, n)",
            "m = 24\nk = 96\nn = 20",
        ),
        candidate=kernel(f"x, w = (\n    {ROUNDED}\n    for x in (x, w)\n)\nreturn x @ w", "x, w"),
        gates=("PRC-01",),
        charged="PRC-01 tf32 or float16",
        why="the reference asks for TF32 itself, so TF32 is the contract",
        cleared="not applicable (tf32_reference)",
    ),
    Innocent(
        rule=19,
        title="a position table that refuses positions it does not hold",
        problem=kernelbench(
            "x + self.table[torch.arange(x.shape[1])]",
            "torch.randn(2, length, 8)",
            "length = 12",
            model=TABLE,
        ),
        candidate=kernel(
            "x + F.embedding(torch.arange(x.shape[1]), self.table)",
            model=TABLE,
        ),
        gates=("CMP-03",),
        charged="CMP-03 rejects",
        why="the reference refuses these lengths as well; they are outside the operator's domain",
    ),
    Innocent(
        rule=25,
        title="a maximum minus its own mean, computed as the zero that it is",
        problem=kernelbench(
            "y = x.amax(-1, keepdim=True)\nreturn F.gelu(y - y.mean(-1, keepdim=True))", VALUES
        ),
        candidate=kernel("torch.zeros(x.shape[0], 1)"),
        gates=("CMP-01", "EXC-01"),
        charged="EXC-01 swallowed",
        why="the operator does not depend on its input: neither a pass nor a failure says anything",
        cleared="not applicable (vacuous)",
    ),
    Innocent(
        rule=34,
        title="a running average that is kept between calls, as the reference keeps it",
        problem=kernelbench(CENTRED, VALUES, model=AVERAGE),
        candidate=kernel(CENTRED, model=AVERAGE),
        gates=("CMP-01", "ORD-02"),
        charged="CMP-01 value",
        why="the state belongs to the operator: each check starts from a module built afresh",
    ),
)
