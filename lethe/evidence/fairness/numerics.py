"""Innocents of the rules about bands, precision and legitimate approximations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lethe.evidence.fairness.innocent import Innocent, kernel, kernelbench
from lethe.verifier.problem import OpSpec

if TYPE_CHECKING:
    from torch import Tensor


def log_sigmoid(x: Tensor) -> Tensor:
    """log(1 / (1 + exp(-x))), elementwise."""
    from torch.nn import functional as F

    return F.logsigmoid(x)


def positive_logits(rows: int, width: int) -> list[Any]:
    """One normal float32 tensor (rows, width) of mean 4."""
    import torch

    return [4 + torch.randn(rows, width)]


SEQUENTIAL = """total = np.add.accumulate(x.numpy(), axis=-1, dtype=np.float32)[..., -1]
return torch.from_numpy(total.copy())"""

INNOCENTS = (
    Innocent(
        rule=10,
        title="a sequential sum of sorted values",
        problem=kernelbench("x.sum(-1)", "centred()", "rows = 1\nwidth = 8192")
        + """

def centred():
    x = torch.randn(rows, width)
    return x - x.mean(-1, keepdim=True)
""",
        candidate=kernel(SEQUENTIAL),
        gates=("ORD-01",),
        charged="ORD-01 value",
        why="the order is legal: the partial sums of sorted values are large although the total is small",
    ),
    Innocent(
        rule=11,
        title="a sequential sum of a constant",
        problem=kernelbench("x.sum(-1)", "torch.rand(rows, width)", "rows = 1\nwidth = 65536"),
        candidate=kernel(SEQUENTIAL),
        gates=("CMP-01",),
        charged="CMP-01 value",
        why="equal terms repeat one rounding error, which adds up instead of averaging out",
    ),
    Innocent(
        rule=12,
        title="a float16 log-sigmoid that rounds after every operation",
        problem=OpSpec(
            "log_sigmoid", log_sigmoid, positive_logits, {"rows": 8, "width": 256}, dtypes=("float16",)
        ),
        candidate=kernel("-torch.log(1 + torch.exp(-x))"),
        gates=("PRC-01",),
        charged="PRC-01 value",
        why="a kernel declared for float16 is judged by the roundoff of float16, not of float32",
    ),
    Innocent(
        rule=22,
        title="a reciprocal root of 18 bits on rows where the band came out low",
        problem=kernelbench("x.square().sum(-1).rsqrt()", "torch.randn(rows, width)", "rows = 5\nwidth = 4"),
        candidate=kernel(
            """fraction, exponent = torch.frexp(x.square().sum(-1).rsqrt())
return torch.ldexp((fraction * 2**18).round() / 2**18, exponent)"""
        ),
        gates=("ORD-01",),
        charged="ORD-01 value",
        why="a band is an estimate from eight draws: what another eight would allow is not beyond doubt",
    ),
    Innocent(
        rule=29,
        title="a convolution by fast Fourier transform",
        problem=kernelbench(
            "self.conv(x)",
            "torch.randn(2, 3, size, size)",
            "size = 14",
            model="def __init__(self):\n    super().__init__()\n    self.conv = nn.Conv2d(3, 4, 3)\n",
        ),
        candidate=kernel(
            """n = x.shape[-1]
image = torch.fft.rfft2(x)
taps = torch.fft.rfft2(self.conv.weight, s=(n, n)).conj()
out = torch.fft.irfft2(torch.einsum("bchw,ochw->bohw", image, taps), s=(n, n))
return out[..., : n - 2, : n - 2] + self.conv.bias.reshape(1, -1, 1, 1)""",
            model="def __init__(self):\n    super().__init__()\n    self.conv = nn.Conv2d(3, 4, 3)\n",
        ),
        gates=("CMP-01", "EXC-01"),
        charged="EXC-01 minted",
        why="transform-domain convolutions are legal, and mix the elements of an image, errors and NaN alike",
    ),
    Innocent(
        rule=38,
        title="a GELU in its tanh form",
        problem=kernelbench("F.gelu(x)", "torch.randn(rows, width)", "rows = 8\nwidth = 64"),
        candidate=kernel('F.gelu(x, approximate="tanh")'),
        gates=("CMP-01",),
        charged="CMP-01 value",
        why="the tanh form is how the function was published, and every library offers it",
    ),
    Innocent(
        rule=42,
        title="a product in float32 before a GELU in its sigmoid form",
        problem=kernelbench(
            "F.gelu(x @ w)", "torch.randn(m, k), torch.randn(k, n)", "m = 24\nk = 96\nn = 20"
        ),
        candidate=kernel("y = x @ w\nreturn y * torch.sigmoid(1.702 * y)", "x, w"),
        gates=("CMP-01", "PRC-01"),
        charged="PRC-01 tf32 or float16",
        why="the function is another one, which CMP-01 says; whole numbers, which no regime rounds, err "
        "as well",
        cleared="FAIL CMP-01 value",
    ),
    Innocent(
        rule=43,
        title="a sum that never writes its last row",
        problem=kernelbench("x.sum(-1)", "torch.randn(rows, width)"),
        candidate=kernel("y = x.sum(-1)\ny[-1] = torch.nan\nreturn y"),
        gates=("CMP-01", "ORD-01"),
        charged="ORD-01 nonfinite",
        why="no order of summation makes a NaN of what was never written",
        cleared="FAIL CMP-01 nonfinite",
    ),
    Innocent(
        rule=44,
        title="a straight-through gradient behind a coarse product and a clamp",
        problem=kernelbench(
            "F.hardtanh(x @ w)", "0.1 * torch.randn(m, k), torch.randn(k, n)", "m = 24\nk = 96\nn = 60"
        ),
        candidate=kernel("z = x @ w\nreturn F.hardtanh(z + ((z * 64).round() / 64 - z).detach())", "x, w"),
        gates=("CMP-01", "CMP-02"),
        charged="CMP-02 value",
        why="where values have crossed the clamp, the gradient is right for those that were returned",
        cleared="FAIL CMP-01 value",
    ),
)
