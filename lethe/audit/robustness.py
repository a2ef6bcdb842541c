"""Does the headline stand if whatever somebody may contest is taken away?

Each *strip* removes one thing from every verdict and counts again: an operator class, a gate, a channel. A
row stays convicted while any other finding speaks against it. `CONTESTED` names what is contested and by
which argument; the last line of the table removes all of it at once. Besides: the same rows under the
published formula, or in another environment (`paired`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lethe.audit.report import denominator
from lethe.audit.statistics import cluster_interval, wilson
from lethe.verifier.catalog import SET_ASIDE
from lethe.verifier.verdict import CANDIDATE_FAULTS

if TYPE_CHECKING:
    import pandas as pd

Finding = Mapping[str, Any]
Record = Mapping[str, Any]
FAULTS = {str(s) for s in CANDIDATE_FAULTS}


@dataclass(frozen=True)
class Strip:
    """Something that may be contested, and why."""

    name: str
    why: str
    drops: Callable[[Finding], bool]
    """Whether a finding (with its gate) is taken away."""
    among: Callable[[Record], bool] = lambda record: True
    """The rows of which it is taken away."""


def _gate(*gates: str) -> Callable[[Finding], bool]:
    return lambda f: f["gate"] in gates


def _maxnum(f: Finding) -> bool:
    return f["gate"] == "EXC-01" and bool((f.get("extra") or {}).get("maxnum"))


def _detached(f: Finding) -> bool:
    return f["gate"] == "CMP-02" and bool((f.get("extra") or {}).get("detached"))


def _refuses(f: Finding) -> bool:
    from lethe.audit.floor import REFUSES

    return f["gate"] == "CMP-03" and f["channel"] == "T" and f["mechanism"] in REFUSES


def _layout(f: Finding) -> bool:
    return f["gate"] == "CMP-03" and str(f.get("case", "")).startswith("layout:")


def _banded(f: Finding) -> bool:
    return bool(f["channel"] == "B")


def _convolves_in_tf32(record: Record) -> bool:
    """Whether PRC-01 found TF32's error, and the problem's name holds a convolution."""
    found = any(f["gate"] == "PRC-01" and "tf32" in f["mechanism"] for f in record["findings"])
    return found and "conv" in record["problem"].lower()


def _probe(f: Finding) -> bool:
    return f["gate"] == "INTEGRITY"


CONTESTED = (
    Strip("set-aside gates", "a backstop, graded, low signal", _gate(*sorted(SET_ASIDE))),
    Strip("PRC-01", "a policy may allow TF32 inside float32", _gate("PRC-01")),
    Strip("TF32 in convolutions", "torch's own use it by default", _banded, _convolves_in_tf32),
    Strip("EXC-02", "a tool chain may flush subnormals", _gate("EXC-02")),
    Strip("IEEE maxNum", "fmax drops NaN by definition", _maxnum),
    Strip("shape refusals", "a kernel may be made for one shape and say so", _refuses),
    Strip("memory layouts", "a kernel may ask for contiguous inputs", _layout),
    Strip("ORD-01", "which summation orders are legal is a convention", _gate("ORD-01")),
    Strip("detached launches", "a launch without a backward pass of its own carries no gradient", _detached),
    Strip("CMP-02", "a kernel may be meant for inference only", _gate("CMP-02")),
    Strip("integrity probes", "no contract of the twelve", _probe),
)


PRODUCT = re.compile(r"matmul|matrix|gemm|bmm|linear", re.IGNORECASE)
"""In a problem's name: a matrix product, alone or fused with what follows it."""


def multiplies(record: Record) -> bool:
    """Whether a row's operator holds a matrix product, by its class or its problem's name."""
    return record["family"] == "matmul" or bool(PRODUCT.search(record["problem"]))


def convicted(record: Record, drops: Callable[[Finding], bool]) -> bool:
    """Whether a row of `report.frame` is still convicted without the findings that `drops` names."""
    if not record["decided"]:
        return False
    if record["status"] in FAULTS:
        return True
    found = [*record["findings"], *({**f, "gate": "INTEGRITY"} for f in record["integrity"])]
    return any(not drops(f) for f in found)


def strips(df: pd.DataFrame) -> pd.DataFrame:
    """The headline after each strip: without, why, rows, of, rate, low, high (Wilson), cluster_low,
    cluster_high (by resampling problems)."""
    import pandas as pd

    base = denominator(df)
    records: list[Record] = base.to_dict("records")  # type: ignore[assignment]
    bare = [r for r in records if not multiplies(r)]
    rows = [_line("nothing", "", records)]
    rows += [_line(s.name, s.why, records, s) for s in CONTESTED]
    rows.append(_line("matrix products", "tensor-core arithmetic is contested", bare))
    rows.append(_line("all of these", "", bare, *CONTESTED))
    return pd.DataFrame(rows)


def _line(name: str, why: str, records: list[Record], *strips: Strip) -> dict[str, Any]:
    def still(record: Record) -> bool:
        fitting = [s for s in strips if s.among(record)]
        return convicted(record, lambda f: any(s.drops(f) for s in fitting))

    hits = [still(r) for r in records]
    low, high = wilson(sum(hits), len(hits))
    cluster_low, cluster_high = cluster_interval(hits, [r["problem"] for r in records])
    return {
        "without": name,
        "why": why,
        "rows": sum(hits),
        "of": len(hits),
        "rate": sum(hits) / len(hits) if hits else float("nan"),
        "low": low,
        "high": high,
        "cluster_low": cluster_low,
        "cluster_high": cluster_high,
    }


def paired(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Two audits of the same rows, where both reached a verdict and the row counts.

    Columns: what (any contract, the floor, or a gate), rows, both, first_only, second_only, neither; for a
    gate only rows that it was applicable to on both sides.
    """
    import pandas as pd

    from lethe.audit.floor import in_floor
    from lethe.verifier.catalog import IDS

    ours = {(r["corpus"], r["id"]): r for r in denominator(first).to_dict("records")}
    theirs = {(r["corpus"], r["id"]): r for r in denominator(second).to_dict("records")}
    pairs = [(ours[k], theirs[k]) for k in ours if k in theirs]
    rows = [
        _cells("any contract", [(bool(a["violated"]), bool(b["violated"])) for a, b in pairs]),
        _cells("floor", [(in_floor(a["channels"]), in_floor(b["channels"])) for a, b in pairs]),
    ]
    for gate in IDS:
        both = [(a[gate], b[gate]) for a, b in pairs if {a[gate], b[gate]} <= {"pass", "fail"}]
        rows.append(_cells(gate, [(a == "fail", b == "fail") for a, b in both]))
    return pd.DataFrame(rows)


def _cells(what: str, pairs: list[tuple[bool, bool]]) -> dict[str, Any]:
    return {
        "what": what,
        "rows": len(pairs),
        "both": pairs.count((True, True)),
        "first_only": pairs.count((True, False)),
        "second_only": pairs.count((False, True)),
        "neither": pairs.count((False, False)),
    }
