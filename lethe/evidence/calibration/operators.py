"""Operators whose right kernel is known, and a dial that makes the kernel wrong by a chosen amount.

Each operator is a KernelBench-format reference and an *honest* kernel that reaches the same result by
another legal way (blocked sums, another elementary function, a tap-wise convolution), so that the noise
measured is that of a second implementation and not of the reference against itself. The dial stands in the
candidate's source text: a relative error `EPS` laid on the output in a pattern, or the number of
significant `BITS` to which an accumulator's carry is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lethe.verifier.problem import Candidate, Problem, load_candidate, load_problem

INJECTED = ("uniform", "random_sign", "element", "tile")
"""Patterns of an injected relative error: the same factor everywhere, the same size with random signs, one
element only, one tile of `TILE` consecutive elements only."""
CARRY = "carry"
"""The pattern of an accumulator: its running total is rounded to fewer significant bits after each block."""
TILE = 64
WHOLE_BITS = 24
"""Significant bits of float32: a carry of so many is an honest one."""

_DIAL = '''
EPS = {eps!r}
PATTERN = {pattern!r}
BITS = {bits}
BLOCK = 32


def carry(t):
    """t rounded to BITS significant bits by Veltkamp's splitting."""
    if BITS >= 24:
        return t
    c = t * (2.0 ** (24 - BITS) + 1.0)
    return c - (c - t)


def total(x, dim=-1):
    """Sum along dim, block after block."""
    out = None
    for part in x.split(BLOCK, dim):
        s = part.sum(dim, keepdim=True)
        out = s if out is None else carry(out + s)
    return out


def inject(y):
    if EPS == 0.0:
        return y
    if PATTERN == "uniform":
        return (y.double() * (1.0 + EPS)).to(y.dtype)
    n = y.numel()
    i = torch.arange(n, device=y.device)
    weight = {{
        "random_sign": ((i * 2654435761 >> 13) % 2) * 2 - 1,
        "element": (i == n // 2).long(),
        "tile": (i // {tile} == n // 2 // {tile}).long(),
    }}[PATTERN]
    return (y.double() * (1.0 + EPS * weight.reshape(y.shape))).to(y.dtype)
'''

_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


@dataclass(frozen=True)
class Operator:
    """A reference and its honest twin, as source text."""

    name: str
    sizes: str
    """Module-level assignments of the reference's sizes."""
    model: str
    """Body of ``class Model(nn.Module)``."""
    honest: str
    """Body of ``class ModelNew(nn.Module)``; its output goes through ``inject``."""
    inputs: str
    """What ``get_inputs`` returns."""
    init: str = "[]"
    accumulates: bool = True
    """Whether a carry can be narrowed."""
    chain: str = ""
    """For the carry sweep: the name of the size that is the reduction's length; "" takes no part."""

    def problem(self, **sizes: int) -> Problem:
        """The reference; `sizes` replace those written (``width=512``)."""
        lines = [
            f"{n.strip()} = {sizes.get(n.strip(), int(v))}"
            for n, v in (line.split("=") for line in self.sizes.split("; "))
        ]
        source = (
            f"{_HEAD}\n{chr(10).join(lines)}\n\n\nclass Model(nn.Module):\n{_indented(self.model)}\n\n\n"
            f"def get_inputs():\n    return {self.inputs}\n\n\n"
            f"def get_init_inputs():\n    return {self.init}\n"
        )
        return load_problem(source, self.name)

    def candidate(self, eps: float = 0.0, pattern: str = "uniform", bits: int = WHOLE_BITS) -> Candidate:
        """The honest kernel with its dial at a relative error `eps` or a carry of `bits`."""
        dial = _DIAL.format(eps=eps, pattern=pattern, bits=bits, tile=TILE)
        source = f"{_HEAD}{dial}\n\nclass ModelNew(nn.Module):\n{_indented(self.honest)}\n"
        return load_candidate(source, name=self.name)

    @property
    def patterns(self) -> tuple[str, ...]:
        return (*INJECTED, CARRY) if self.accumulates else INJECTED


def _indented(body: str) -> str:
    return "\n".join("    " + line if line else line for line in body.strip("\n").splitlines())


_FORWARD = "def forward(self, {args}):\n    return {value}"


def _plain(args: str, value: str) -> str:
    return _FORWARD.format(args=args, value=value)


_NORM_INIT = """
def __init__(self, width):
    super().__init__()
    self.norm = nn.LayerNorm(width)
"""
_CONV_INIT = """
def __init__(self, channels):
    super().__init__()
    self.conv = nn.Conv2d(channels, channels, 3, padding=1)
"""

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "exp",
        "rows = 48; width = 200",
        _plain("x", "torch.exp(x)"),
        _plain("x", "inject(torch.exp2(x * 1.4426950408889634))"),
        "[torch.randn(rows, width)]",
        accumulates=False,
    ),
    Operator(
        "gelu",
        "rows = 48; width = 200",
        _plain("x", "F.gelu(x)"),
        _plain("x", "inject(0.5 * x * torch.erfc(-x * 0.7071067811865476))"),
        "[torch.randn(rows, width)]",
        accumulates=False,
    ),
    Operator(
        "row_sum",
        "rows = 48; width = 512",
        _plain("x", "x.sum(-1)"),
        _plain("x", "inject(total(x).squeeze(-1))"),
        "[torch.randn(rows, width)]",
        chain="width",
    ),
    Operator(
        "softmax",
        "rows = 48; width = 512",
        _plain("x", "torch.softmax(x, dim=-1)"),
        """
def forward(self, x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return inject(e * (1.0 / total(e)))
""",
        "[torch.randn(rows, width)]",
    ),
    Operator(
        "layernorm",
        "rows = 48; width = 512",
        _NORM_INIT + _plain("x", "self.norm(x)"),
        _NORM_INIT
        + """
def forward(self, x):
    d = x - total(x) / x.shape[-1]
    scale = torch.rsqrt(total(d * d) / x.shape[-1] + self.norm.eps)
    return inject(d * scale * self.norm.weight + self.norm.bias)
""",
        "[torch.randn(rows, width)]",
        init="[width]",
    ),
    Operator(
        "matmul",
        "rows = 40; inner = 512; columns = 56",
        _plain("a, b", "torch.matmul(a, b)"),
        """
def forward(self, a, b):
    out = None
    for p, q in zip(a.split(BLOCK, 1), b.split(BLOCK, 0)):
        s = torch.matmul(p, q)
        out = s if out is None else carry(out + s)
    return inject(out)
""",
        "[torch.randn(rows, inner), torch.randn(inner, columns)]",
        chain="inner",
    ),
    Operator(
        "scan",
        "rows = 48; length = 256",
        _plain("x", "torch.cumsum(x, dim=1)"),
        """
def forward(self, x):
    out, last = [], torch.zeros_like(x[:, :1])
    for part in x.split(BLOCK, 1):
        out.append(carry(torch.cumsum(part, 1) + last))
        last = out[-1][:, -1:]
    return inject(torch.cat(out, 1))
""",
        "[torch.randn(rows, length)]",
        chain="length",
    ),
    Operator(
        "conv",
        "batch = 3; channels = 64; height = 14; breadth = 18",
        _CONV_INIT + _plain("x", "self.conv(x)"),
        _CONV_INIT
        + """
def forward(self, x):
    w, (h, v) = self.conv.weight, x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1))
    out = self.conv.bias.reshape(1, -1, 1, 1)
    for i in range(3):
        for j in range(3):
            tap = padded[:, :, i : i + h, j : j + v].permute(0, 2, 3, 1) @ w[:, :, i, j].T
            out = carry(out + tap.permute(0, 3, 1, 2))
    return inject(out)
""",
        "[torch.randn(batch, channels, height, breadth)]",
        init="[channels]",
    ),
)
"""Two elementwise functions, a sum, a softmax, a normalisation, a contraction, a scan and a convolution."""

BY_NAME = {o.name: o for o in OPERATORS}


def chains() -> Iterator[Operator]:
    """The operators that take part in the carry sweep."""
    return (o for o in OPERATORS if o.chain)
