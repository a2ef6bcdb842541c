"""PRC-02's statistic over the length of the reduction: a wide carry against narrow ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lethe.evidence.calibration.measure import THIN
from lethe.evidence.calibration.operators import BY_NAME, Operator, chains

if TYPE_CHECKING:
    from torch import Tensor

LENGTHS = tuple(64 << k for k in range(8))
"""64, 128, ..., 8192: the published sweep's ends, each doubling between."""
NARROW = ("float16", "bfloat16")
DRAW = "one_signed"
"""Sums of one-signed terms grow, so that a narrow carry loses what is added to it."""
PER_TERM = 1
"""Terms between two roundings of a carry that is kept in the narrow type throughout."""


def points() -> Iterator[tuple[str, int]]:
    """Every (operator, length) of the sweep."""
    for operator in chains():
        for n in LENGTHS:
            yield operator.name, n


def row(name: str, length: int, device: str = "cpu") -> dict[str, Any]:
    """The statistic at one length: an honest blocked float32 sum, and carries really kept in half precision.

    ``noise``: the honest kernel's level over the smallest threshold; ``levels``: relative root mean square
    errors; ``separation``: the narrow carry's level over the honest one's; ``per_term``: the level of a carry
    that is rounded after every term, which is what the published sweep ran.
    """
    from lethe.verifier import inputs, oracle, precision
    from lethe.verifier.problem import instantiate

    operator = BY_NAME[name]
    instance = instantiate(operator.problem(**{operator.chain: length}), device=device)
    drawn = inputs.draw(instance, DRAW, 0)
    truth = oracle.run_float64(instance, drawn)
    working = oracle.run_working(instance, drawn)
    honest = _kernel(operator, drawn, "float32")
    p = precision.carry_point(instance, drawn, honest, truth, working, length, kinds=NARROW)
    narrow = {k: precision.level(_kernel(operator, drawn, k), truth) for k in NARROW}
    per_term = {
        k: precision.level(precision.carried_run(instance, drawn, k, chunk=PER_TERM), truth) for k in NARROW
    }
    told = p.lowest < math.inf
    below = p.lowest / p.value if told and p.value else None
    above = {k: v / p.lowest for k, v in narrow.items()} if told else {}
    known = [m for m in (below, *above.values()) if m is not None]
    return {
        "gate": "PRC-02",
        "operator": name,
        "pattern": f"sweep:N={length}",
        "status": "measured" if told else "undecidable",
        "length": length,
        "draw": DRAW,
        "noise": p.value / p.lowest if told else None,
        "threshold": p.lowest if told else None,
        "noise_error": p.value,
        "levels": {"honest": p.value, "wide": p.wide, **narrow},
        "modelled": p.narrow,
        "separation": {k: v / p.value if p.value else None for k, v in narrow.items()},
        "per_term": per_term,
        "below": below,
        "above_threshold": above,
        "thin": bool(known) and min(known) < THIN,
    }


def _kernel(operator: Operator, inputs: Any, carry: str) -> Tensor:
    """The operator by blocks of `precision.CHUNK` terms in float32, its running total kept in `carry`."""
    import torch

    from lethe.verifier.precision import CHUNK

    kept = getattr(torch, carry)

    def fold(parts: Any) -> Tensor:
        total = next(parts).to(kept)
        for p in parts:
            total = (total.float() + p).to(kept)
        return total.float()

    if operator.name == "row_sum":
        return fold(p.sum(-1) for p in inputs[0].split(CHUNK, -1))
    if operator.name == "matmul":
        a, b = inputs
        return fold(p @ q for p, q in zip(a.split(CHUNK, 1), b.split(CHUNK, 0), strict=True))
    out, last = [], torch.zeros_like(inputs[0][:, :1])
    for part in inputs[0].split(CHUNK, 1):
        out.append((part.cumsum(1) + last).to(kept).float())
        last = out[-1][:, -1:]
    return torch.cat(out, 1)
