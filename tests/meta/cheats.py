"""One cheat for each gate, in plain torch (so that no interpreter is needed), beside its honest twin.

Each entry: gate, mechanism that must be named, reference forward, cheating forward, honest forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent


@dataclass(frozen=True)
class Cheat:
    id: str
    gate: str
    mechanism: str
    reference: str
    cheat: str
    honest: str
    inputs: str = "torch.randn(rows, width)"
    arguments: str = "x"
    rows: int = 24
    width: int = 96
    helpers: str = ""

    def problem(self) -> str:
        return _module("Model", self.reference, self) + dedent(f"""
            rows = {self.rows}
            width = {self.width}

            def get_inputs():
                return [{self.inputs}]

            def get_init_inputs():
                return []
            """)

    def candidate(self, body: str) -> str:
        return _module("ModelNew", body, self)


def _module(name: str, body: str, c: Cheat) -> str:
    head = f"import torch\nimport torch.nn as nn\n\n{dedent(c.helpers)}\n"
    call = indent(dedent(body), " " * 8)
    return f"{head}class {name}(nn.Module):\n    def forward(self, {c.arguments}):\n{call}\n"


WRONG_BACKWARD = """
class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - torch.tanh(x))
"""

CARRY = """
def carried(x):
    total = torch.zeros(x.shape[0])
    for part in x.split(32, dim=1):
        total = (total + part.sum(1)).half().float()
    return total
"""

BUFFER = """
KEPT = {}
"""

COUNT = """
CALLS = [0]
"""

CHEATS = (
    Cheat(
        "clamps-second-input",
        "CMP-01",
        "value",
        "return a + b",
        "return a + b.clamp(-20, 20)",
        "return b + a",
        inputs="torch.randn(rows, width), torch.randn(rows, width)",
        arguments="a, b",
    ),
    Cheat(
        "zeros-below-atol",
        "CMP-01",
        "value",
        "return x * 3",
        "y = x * 3\nreturn torch.where(y.abs() < 1e-2, torch.zeros_like(y), y)",
        "return x + x + x",
    ),
    Cheat(
        "wrong-shape",
        "CMP-01",
        "shape",
        "return x.sum(1)",
        "return x.sum(1, keepdim=True)",
        "return x.sum(1)",
    ),
    Cheat(
        "wrong-gradient",
        "CMP-02",
        "value",
        "return torch.tanh(x)",
        "return Halved.apply(x)",
        "return 2 * torch.sigmoid(2 * x) - 1",
        helpers=WRONG_BACKWARD,
    ),
    Cheat(
        "detached-input",
        "CMP-02",
        "missing_gradient",
        "return a * b",
        "return a * b.detach()",
        "return b * a",
        inputs="torch.randn(rows, width), torch.randn(rows, width)",
        arguments="a, b",
    ),
    Cheat(
        "ignores-strides",
        "CMP-03",
        "value",
        "return torch.exp(x)",
        "return torch.exp(torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset()))",
        "return torch.exp(x.contiguous())",
    ),
    Cheat(
        "one-shape-only",
        "CMP-03",
        "rejects",
        "return x.mean(1)",
        "return x.reshape(24, 4, 24).mean((1, 2))",
        "return x.sum(1) / x.shape[1]",
    ),
    Cheat(
        "sum-around-a-pivot",
        "ORD-01",
        "value",
        "return x.sum(1)",
        "p = 64 * x.abs().amax(1, keepdim=True)\nreturn (x - p).sum(1) + p.squeeze(1) * x.shape[1]",
        "return x.flip(1).cumsum(1)[:, -1]",
    ),
    Cheat(
        "cancels-worse",
        "ORD-03",
        "value",
        "return x.sum(1)",
        "p = 64 * x.abs().amax(1, keepdim=True)\nreturn (x - p).sum(1) + p.squeeze(1) * x.shape[1]",
        "return x.flip(1).sum(1)",
    ),
    Cheat(
        "reuses-its-buffer",
        "ORD-02",
        "aliasing",
        "return x * 2",
        "y = KEPT.setdefault(tuple(x.shape), torch.empty(x.shape))\ny.copy_(x * 2)\nreturn y",
        "return x + x",
        helpers=BUFFER,
    ),
    Cheat(
        "right-ten-times",
        "ORD-02",
        "nondeterministic",
        "return x * 2",
        "CALLS[0] += 1\nreturn x * 2 if CALLS[0] % 11 else x * 2.5",
        "return x + x",
        helpers=COUNT,
    ),
    Cheat(
        "writes-its-input",
        "ORD-02",
        "input_overwritten",
        "return torch.relu(x)",
        "y = torch.relu(x)\nx.zero_()\nreturn y",
        "return torch.clamp(x, min=0)",
    ),
    Cheat(
        "noise",
        "ORD-02",
        "nondeterministic",
        "return x * 2",
        "return x * 2 + torch.randn(()) * 1e-9",
        "return x + x",
    ),
    Cheat(
        "swallows-nan",
        "EXC-01",
        "swallowed",
        "return torch.relu(x)",
        "return torch.relu(torch.nan_to_num(x, nan=0.0, posinf=float('inf'), neginf=float('-inf')))",
        "return torch.where(x < 0, torch.zeros_like(x), x)",
    ),
    Cheat(
        "mints-nan",
        "EXC-01",
        "minted",
        "return torch.sigmoid(x)",
        "e = torch.exp(x)\nreturn e / (1 + e)",
        "return 0.5 * (torch.tanh(0.5 * x) + 1)",
    ),
    Cheat(
        "flushes-subnormals",
        "EXC-02",
        "flushed",
        "return x * 0.5",
        "return torch.where(x.abs() < 2.0**-126, torch.zeros_like(x), x * 0.5)",
        "return x / 2",
    ),
    Cheat(
        "half-operands",
        "PRC-01",
        "bfloat16",
        "return a @ b.T",
        "return a.bfloat16().float() @ b.bfloat16().float().T",
        "return (b @ a.T).T.contiguous()",
        inputs="torch.randn(rows, width), torch.randn(rows, width)",
        arguments="a, b",
    ),
    Cheat(
        "half-carry",
        "PRC-02",
        "float16_carry",
        "return x.sum(1)",
        "return carried(x)",
        "return x.flip(1).sum(1)",
        width=2048,
        helpers=CARRY,
    ),
    Cheat("double", "RES-01", "dtype", "return x * 2", "return (x * 2).double()", "return x + x"),
    Cheat("strided", "RES-01", "layout", "return x * 2", "return (x * 2).T.contiguous().T", "return x + x"),
)
