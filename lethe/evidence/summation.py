"""Legal summation orders: does a band accept every order in which a kernel may add?

The contract of a sum does not fix its order, so no legal order may be rejected. `orders.ORDERS` are those
that kernels use, each computed faithfully in float32 (also for float16 and bfloat16 operands, as kernels
accumulate; the result is rounded to the operands' dtype once). `legal_orders` compares them with the bands of
both profiles, formula against formula; `judged_orders` puts the same orders before the judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lethe.evidence import orders
from lethe.evidence.orders import ORDERS

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.judge import Judge
    from lethe.verifier.problem import Instance
    from lethe.verifier.verdict import Verdict

SIZES = (16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144)
KINDS = ("signed", "positive", "constant", "sorted", "mixed")
DTYPES = ("float32", "float16", "bfloat16")
OPERATORS = ("sum", "mean", "dot")
ROWS = 4
"""Sums of each length; the worst of them counts."""


def inputs(kind: str, n: int, *, seed: int = 0, rows: int = ROWS) -> Tensor:
    """(rows, n) float32 terms: ``"signed"`` (normal), ``"positive"`` (uniform in [0, 1)), ``"constant"``
    (0.7), ``"sorted"`` (normal, ascending), ``"mixed"`` (signed, magnitudes over eight decades).

    Raises KeyError for another kind.
    """
    import torch

    g = torch.Generator().manual_seed(seed)
    normal = torch.randn(rows, n, generator=g)
    decades = 10.0 ** (8 * torch.rand(rows, n, generator=g) - 4)
    made: dict[str, Tensor] = {
        "signed": normal,
        "positive": torch.rand(rows, n, generator=g),
        "constant": torch.full((rows, n), 0.7),
        "sorted": normal.sort(-1).values,
        "mixed": decades * normal.sign(),
    }
    return made[kind]


@dataclass(frozen=True)
class Case:
    """One order on one input: how much of each bound its worst row uses (above 1: rejected)."""

    operator: str
    order: str
    n: int
    inputs: str
    dtype: str
    derived: float
    """Error / band of the profile `derived`."""
    paper: float
    """Error / bound of the profile `paper`, at the gate that asks: ORD-01 in float32, PRC-01 in halves."""
    paper_values: float
    """The same at CMP-01, which has a floor of 1e-5 (nan in halves, where CMP-01 does not run)."""
    charged: int
    """Rows that could have been charged; others overflow in the output's dtype."""

    @property
    def rejected(self) -> bool:
        return self.derived > 1

    @property
    def rejected_by_paper(self) -> bool:
        return self.paper > 1


def legal_orders(
    *,
    operators: Sequence[str] = OPERATORS,
    sizes: Sequence[int] = SIZES,
    kinds: Sequence[str] = KINDS,
    dtypes: Sequence[str] = DTYPES,
    seed: int = 0,
) -> list[Case]:
    """Every order of `ORDERS` (and fused dot products) on every input, against both profiles."""
    found: list[Case] = []
    for operator in operators:
        for n in sizes:
            for kind in kinds:
                for dtype in dtypes:
                    found += _compared(operator, n, kind, dtype, seed)
    return found


def _compared(operator: str, n: int, kind: str, dtype: str, seed: int) -> list[Case]:
    import math

    from lethe.verifier import oracle, tolerance
    from lethe.verifier.profiling import profile_operator
    from lethe.verifier.structure import flatten

    drawn = _operands(operator, n, kind, dtype, seed)
    instance = _instance(operator, [tuple(t.shape) for t in drawn])
    truth = flatten(oracle.run_float64(instance, drawn, dtype=dtype))[0]
    working = flatten(oracle.run_working(instance, drawn, dtype=dtype))[0]
    traits = profile_operator(instance, [t.float() for t in drawn])
    band = tolerance.bands(
        instance, drawn, truth, working, kind=kind, dtype=dtype, operator=traits, seed=seed
    )[0]

    def published(gate: str) -> tolerance.Band:
        return tolerance.bands(
            instance, drawn, truth, working, kind=kind, dtype=dtype, profile="paper", gate=gate
        )[0]

    gate = "ORD-01" if dtype == "float32" else "PRC-01"
    strict, values = published(gate), published("CMP-01")
    cases = []
    for order, result in _results(operator, drawn):
        seen = tolerance.compare(result.to(working[0].dtype), truth[0], band)
        cases.append(
            Case(
                operator,
                order,
                n,
                kind,
                dtype,
                seen.ratio,
                tolerance.compare(result.to(working[0].dtype), truth[0], strict).ratio,
                tolerance.compare(result, truth[0], values).ratio if dtype == "float32" else math.nan,
                seen.checked,
            )
        )
    return cases


def _operands(operator: str, n: int, kind: str, dtype: str, seed: int) -> list[Tensor]:
    """The operands in their dtype; in float16 scaled by a power of two so that sums stay in its range."""
    import torch

    x = inputs(kind, n, seed=seed)
    if dtype == "float16":
        x = x / max(1, n // 256) / (256 if kind == "mixed" else 1)
    drawn = [x.to(getattr(torch, dtype))]
    if operator == "dot":
        drawn.append(inputs("positive", n, seed=seed + 1, rows=1)[0].to(drawn[0].dtype))
    return drawn


def _instance(operator: str, shapes: list[tuple[int, ...]]) -> Instance:
    from lethe.verifier.problem import instantiate, load_problem

    return instantiate(load_problem(_reference(operator, shapes[0]), operator))


def _reference(operator: str, shape: tuple[int, ...]) -> str:
    """The operator in KernelBench's format, with ``rows`` and ``n`` as its sizes."""
    expression = {"sum": "x.sum(-1)", "mean": "x.mean(-1)", "dot": "x @ w"}[operator]
    arguments, drawn = "x", "torch.randn(rows, n)"
    if operator == "dot":
        arguments, drawn = "x, w", "torch.randn(rows, n), torch.randn(n)"
    return f"""import torch
import torch.nn as nn

rows = {shape[0]}
n = {shape[1]}


class Model(nn.Module):
    def forward(self, {arguments}):
        return {expression}


def get_inputs():
    return [{drawn}]


def get_init_inputs():
    return []
"""


def _results(operator: str, drawn: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(order, float32 result before the last rounding) of every order."""
    import numpy as np
    import torch

    x = drawn[0].float().numpy()
    if operator == "dot":
        w = drawn[1].float().numpy()
        terms = x * w
        yield "fused, 256 chains", torch.from_numpy(orders.fused(x, w).copy())
    else:
        terms = x
    for name, order in ORDERS.items():
        total = order(terms)
        if operator == "mean":
            total = total / np.float32(x.shape[-1])
        yield name, torch.from_numpy(np.ascontiguousarray(total))


def table(cases: Iterable[Case]) -> Any:
    """Cases as a DataFrame: the fields of `Case`, `rejected` and `rejected_by_paper`."""
    import pandas as pd

    return pd.DataFrame(
        [asdict(c) | {"rejected": c.rejected, "rejected_by_paper": c.rejected_by_paper} for c in cases]
    )


def summary(cases: Iterable[Case], by: str = "inputs") -> Any:
    """Per value of a field of `Case`: cases, worst ratio of each profile, and how many each rejects."""
    found = table(cases)
    grouped = found.groupby(by, sort=False)
    return grouped.agg(
        cases=("order", "size"),
        worst_derived=("derived", "max"),
        worst_paper=("paper", "max"),
        rejected=("rejected", "sum"),
        rejected_by_paper=("rejected_by_paper", "sum"),
    ).reset_index()


# ---------------------------------------------------------------- before the judge

GATES = ("CMP-01", "ORD-01", "ORD-03", "PRC-01", "PRC-02")
JUDGED = ("sequential", "reversed", "pairwise", "blocked 32", "interleaved 32", "warp tree")


def candidate_source(operator: str, order: str) -> str:
    """A kernel in one file that adds in `order`: the file of `orders`, and ``ModelNew``.

    Raises KeyError for an unknown order.
    """
    import inspect

    chosen = ORDERS[order]
    keywords = chosen.keywords if isinstance(chosen, partial) else {}
    function = chosen.func if isinstance(chosen, partial) else chosen
    arguments = "x, w" if operator == "dot" else "x"
    terms = "x.numpy() * w.numpy()" if operator == "dot" else "x.numpy()"
    scale = " / np.float32(x.shape[-1])" if operator == "mean" else ""
    return f"""{inspect.getsource(orders)}

import numpy as np
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, {arguments}):
        total = {getattr(function, "__name__", order)}({terms}, **{keywords!r}){scale}
        return torch.from_numpy(np.ascontiguousarray(total))
"""


def judged_orders(
    judge: Judge,
    *,
    operators: Sequence[str] = OPERATORS,
    names: Sequence[str] = JUDGED,
    n: int = 1024,
    gates: Sequence[str] = GATES,
) -> list[tuple[str, str, Verdict]]:
    """(operator, order, verdict) of candidates that add in each order, by the judge's own draws and gates."""
    from lethe.verifier.problem import load_candidate, load_problem

    verdicts = []
    for operator in operators:
        problem = load_problem(_reference(operator, (ROWS, n)), operator)
        for order in names:
            candidate = load_candidate(candidate_source(operator, order), name=f"{operator}, {order}")
            verdicts.append((operator, order, judge.verify(problem, candidate, gates=gates)))
    return verdicts


def judged_table(verdicts: Iterable[tuple[str, str, Verdict]]) -> Any:
    """One row per judged order: operator, order, clean, failed, and the worst error/bound of each band
    gate."""
    import pandas as pd

    rows = []
    for operator, order, verdict in verdicts:
        ratios = {g.gate: g.measured.get("worst_ratio") for g in verdict.gates if "worst_ratio" in g.measured}
        rows.append(
            {
                "operator": operator,
                "order": order,
                "clean": verdict.clean,
                "failed": ", ".join(verdict.failed),
                **ratios,
            }
        )
    return pd.DataFrame(rows)
