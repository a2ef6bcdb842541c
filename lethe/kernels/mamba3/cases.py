"""The shapes at which the kernels are timed, their operands, and the least memory traffic of each.

Scan cases are those of the comparator `selective_scan`: u[B, L, D], N states. Head cases follow the official
module: H heads of P = 64 channels, N = 128 states, R ranks, 32 angles.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

HEADDIM, HEAD_STATES, ANGLES = 64, 128, 32


@dataclass(frozen=True)
class Case:
    """One shape of one suite: ``scan`` (C1, C2), ``block`` (C5, C6), ``siso`` (C4) or ``mimo`` (C3)."""

    suite: str
    batch: int
    length: int
    width: int
    """D of the scan; H * 64 of the head."""
    states: int = 16
    ranks: int = 1

    def facts(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def id(self) -> str:
        return f"{self.suite}-B{self.batch}-L{self.length}-D{self.width}-N{self.states}-R{self.ranks}"


def grid(suite: str) -> list[Case]:
    """Lengths 512 to 16,384, batches 1 to 8, widths 256 to 4,096, the most telling first."""
    if suite in ("siso", "mimo"):
        ranks = 4 if suite == "mimo" else 1
        sizes = [(2, 2048, 2048), (1, 512, 2048), (1, 2048, 1024), (2, 4096, 2048), (1, 8192, 1024)]
        return [Case(suite, *size, states=HEAD_STATES, ranks=ranks) for size in sizes]
    sizes = [
        (1, 2048, 2048), (8, 2048, 2048), (1, 512, 256), (1, 4096, 1024), (2, 2048, 4096), (1, 16384, 256),
        (8, 512, 1024), (1, 8192, 2048), (4, 1024, 1024), (1, 2048, 256), (8, 4096, 256), (1, 16384, 1024),
        (2, 512, 4096), (4, 4096, 2048), (1, 512, 2048),
    ]  # fmt: skip
    cases = [Case(suite, *size) for size in sizes]
    return [*cases, Case(suite, 1, 2048, 2048, states=64)] if suite == "scan" else cases


def operands(case: Case, device: str, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Operands by the operator's argument names; on ``"meta"`` nothing is drawn. Seeded."""
    if device != "meta":
        torch.manual_seed(0)

    def io(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    def parameter(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, device=device) * scale

    b, length, width, n = case.batch, case.length, case.width, case.states
    if case.suite in ("scan", "block"):
        rates = -torch.arange(1, n + 1, device=device, dtype=torch.float32).repeat(width, 1)
        o = {
            "dt": io(b, length, width) - 4, "A": rates, "B": io(b, length, n), "C": io(b, length, n),
            "D": parameter(width), "z": io(b, length, width), "dt_bias": parameter(width, scale=0.1),
        }  # fmt: skip
        if case.suite == "scan":
            return {"u": io(b, length, width), **o}
        taps = {"conv_weight": parameter(width, 4), "conv_bias": parameter(width)}
        return {"x": io(b, length, width), **o, **taps}
    heads, r = width // HEADDIM, case.ranks
    dt = torch.nn.functional.softplus(parameter(b, heads, length) - 4)
    o = {
        "q": io(b, length, r, 1, n), "k": io(b, length, r, 1, n), "v": io(b, length, heads, HEADDIM),
        "adt": -dt, "dt": dt, "q_bias": parameter(heads, r, n), "k_bias": parameter(heads, r, n),
        "angle": parameter(b, length, heads, ANGLES), "trap": parameter(b, heads, length),
        "D": parameter(heads), "z": io(b, length, heads, HEADDIM),
    }  # fmt: skip
    if r > 1:
        o |= {name: parameter(heads, r, HEADDIM) for name in ("mimo_x", "mimo_z", "mimo_o")}
    return o


STREAMED = {"scan": ("u", "dt", "z", "B", "C"), "block": ("x", "dt", "z", "B", "C")}


def traffic(case: Case, given: dict[str, Tensor]) -> dict[str, int]:
    """The least bytes of device memory that a direction moves: every operand read once, every result written.

    Backward reads the operands and the output's gradient and writes a gradient for each operand.
    """
    read = sum(t.numel() * t.element_size() for t in given.values())
    result = given["v"] if "v" in given else given["dt"]
    out = result.numel() * result.element_size()
    return {"forward": read + out, "backward": 2 * read + out}
