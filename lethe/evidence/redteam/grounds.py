"""The operators that cheats are tried on: small references that all of them share.

Sharing keeps the corpus cheap: the judge prepares a reference once for all its candidates. Widths are
powers of two, as in the benchmarks whose kernels were found to be right at such widths only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lethe.verifier.problem import OpSpec, Problem, load_problem, problem_from_spec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ground:
    """One operator: its reference, and how a candidate writes it down."""

    name: str
    arguments: str
    """Parameters of ``forward``: ``"x"``."""
    value: str
    """The operator as one honest torch expression over its arguments."""
    draw: str
    """What ``get_inputs`` returns."""
    sizes: tuple[tuple[str, int], ...]
    spec: OpSpec | None = None
    """Instead of a source text, where several dtypes are declared."""

    @cached_property
    def problem(self) -> Problem:
        if self.spec is not None:
            return problem_from_spec(self.spec)
        sizes = "".join(f"{name} = {value}\n" for name, value in self.sizes)
        return load_problem(
            "import torch\nimport torch.nn as nn\n\n\n"
            f"class Model(nn.Module):\n    def forward(self, {self.arguments}):\n"
            f"        return {self.value}\n"
            f"\n\n{sizes}\n\ndef get_inputs():\n    return [{self.draw}]\n"
            "\n\ndef get_init_inputs():\n    return []\n",
            f"redteam_{self.name}",
        )


_ROWS = (("rows", 24), ("width", 128))

SCALE = Ground("scale", "x", "x * 1.5", "torch.randn(rows, width)", _ROWS)
"""Elementwise and affine: subnormals must survive."""
NEGATE = Ground("negate", "x", "-x", "torch.randn(rows, width)", _ROWS)
TRANSPOSE = Ground("transpose", "x", "x.t().contiguous()", "torch.randn(rows, width)", _ROWS)
"""These two only move values: subnormals must survive them as well."""
SIGMOID = Ground("sigmoid", "x", "torch.sigmoid(x)", "torch.randn(rows, width)", _ROWS)
"""Elementwise, not linear, with a gradient that depends on its input."""
SOFTMAX = Ground("softmax", "x", "torch.softmax(x, 1)", "torch.randn(rows, width)", _ROWS)
"""A reduction of each row, and a normalisation."""
ROW_SUM = Ground("row_sum", "x", "x.sum(1)", "torch.randn(rows, width)", (("rows", 16), ("width", 512)))
"""A reduction that is linear and long enough for a narrow carry to show."""
MATMUL = Ground(
    "matmul",
    "a, b",
    "a @ b",
    "torch.randn(rows, inner), torch.randn(inner, cols)",
    (("rows", 32), ("inner", 128), ("cols", 24)),
)
"""A contraction of two inputs."""


def _scale(x: Tensor) -> Tensor:
    return x * 1.5


def _row_sum(x: Tensor) -> Tensor:
    return x.sum(1)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def _drawn(rows: int, width: int) -> list[Any]:
    import torch

    return [torch.randn(rows, width)]


def _drawn_pair(rows: int, inner: int, cols: int) -> list[Any]:
    import torch

    return [torch.randn(rows, inner), torch.randn(inner, cols)]


HALF = ("float32", "float16")

SCALE_HALF = Ground(
    "scale_half", "x", "x * 1.5", "", _ROWS, OpSpec("scale_half", _scale, _drawn, dict(_ROWS), dtypes=HALF)
)
"""The same operators, declared for float16 as well."""
ROW_SUM_HALF = Ground(
    "row_sum_half",
    "x",
    "x.sum(1)",
    "",
    ROW_SUM.sizes,
    OpSpec("row_sum_half", _row_sum, _drawn, dict(ROW_SUM.sizes), dtypes=HALF),
)
MATMUL_HALF = Ground(
    "matmul_half",
    "a, b",
    "a @ b",
    "",
    MATMUL.sizes,
    OpSpec("matmul_half", _matmul, _drawn_pair, dict(MATMUL.sizes), dtypes=HALF),
)
