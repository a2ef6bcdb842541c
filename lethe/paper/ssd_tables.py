"""Tables about the state-space engine: contract, rules, prediction, accuracy, checks, speed, other targets.

A record that is missing gives a table that says *not measured yet*, never an empty one. Times are medians of
device time in microseconds.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.evidence import controls as judged
from lethe.evidence import ssd_controls, ssd_predicted
from lethe.paper.gdn_tables import filled
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import ROOT, Measurement

Row = Mapping[str, Any]
CONTRACT = ROOT / "data" / "review" / "ssd_contract.json"
SIDES = {"pr1133": "PR #1133", "mamba": "mamba-ssm", "ours": "ours"}

TARGETS = {False: 1.41, True: 1.32}
"""Forward and backward: how many times the official operator's time ours is to fit into, by gate."""

OURS = "ours"
FOREIGN = "official"
KINDS = {
    "deterministic": "equal bits in every run", "rebinding": "one plan on other memory",
    "allocation": "execution allocates nothing", "streams": "one plan on several streams",
    "replay": "graph replay equals eager", "compile": "training step, torch.compile fullgraph",
    "training graph": "training steps from a CUDA graph",
}  # fmt: skip


def contract(file: Path = CONTRACT) -> pd.DataFrame:
    """Feature by feature, three operators."""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return pd.DataFrame(rows)[["feature", *SIDES]].rename(columns=SIDES)


def rules() -> pd.DataFrame:
    """What the analyzer asks of a graph; a refusal cites the name."""
    return pd.DataFrame([{"rule": f"`{name}`", "asks": text} for name, text in ssd_predicted.rules()])


def interface(rows: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """Everything public: name and call, and what it is."""
    return pd.DataFrame([{"name": f"`{name}{call}`", "what": what} for name, call, what in rows])


def operands(rows: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """Arguments of the operator."""
    return pd.DataFrame(
        [{"argument": f"`{n}`", "default": f"`{d}`" if d else "", "meaning": m} for n, d, m in rows]
    )


# --- what was run --------------------------------------------------------------------------------


def checked(record: Measurement | None, kind: str) -> list[Row]:
    """Rows of one kind that came to a finding."""
    rows = [] if record is None else record.samples
    return [r for r in rows if r.get("kind") == kind and "ok" in r]


def accuracy(rows: Sequence[Row], theirs: Sequence[Row] | None = None) -> pd.DataFrame:
    """A row for each case: the worst of output, final state and gradients in both measures; beside it, if
    given, how mamba-ssm's kernels did on the same case."""
    columns = ["case", "worst by RMS", "relative RMS, %", "worst by peak", "peak, %", "within"]
    columns += [] if theirs is None else ["mamba-ssm"]
    official = {r["id"]: r for r in theirs or ()}
    found = []
    for r in rows:
        other = [] if theirs is None else [_theirs(official.get(r["id"]))]
        if "errors" not in r:
            found.append([r["id"], r.get("error", "")[:60], "", "", "", "no", *other])
            continue
        rms, peak = (max(r["errors"].items(), key=lambda e, at=at: _size(e[1][at])) for at in (0, 1))  # type: ignore[misc]
        found.append([
            r["id"], rms[0], f"{100 * _size(rms[1][0]):.3f}", peak[0], f"{100 * _size(peak[1][1]):.3f}",
            "yes" if r["passed"] else "no", *other,
        ])  # fmt: skip
    return filled(columns, found)


def _size(error: float | None) -> float:
    """JSON has no infinity."""
    return math.inf if error is None else error


def _theirs(row: Row | None) -> str:
    if row is None:
        return MISSING
    if "declined" in row:
        return "declines"
    if "errors" not in row:
        return "fails"
    return f"{'within' if row['passed'] else 'beyond'}, {100 * _size(row['worst'][0]):.2f}%"


def failures(rows: Sequence[Row]) -> str:
    """How often an engine ended with an error, by the error's first line."""
    said = Counter(r["error"].splitlines()[0].rstrip(".") for r in rows if "error" in r)
    if not rows:
        return MISSING
    return "; ".join(f"{times} of {len(rows)}: {what}" for what, times in said.most_common()) or "none"


def controls(record: Measurement | None) -> pd.DataFrame:
    """The twelve gates on the engine as a candidate: forward (S1), and backward with its states (S2)."""
    names = list(ssd_controls.NAMES)
    if record is None:
        return filled(["gate", *names], [])
    table = judged.gate_table(record.samples).reindex(columns=names)
    cells = [[gate, *(str(status).replace("_", " ") for status in table.loc[gate])] for gate in table.index]
    return filled(["gate", *names], cells)


def by(record: Measurement | None, engine: str) -> list[Row]:
    """Cases that one engine was measured on."""
    return [] if record is None else [r for r in record.samples if r["engine"] == engine]


def worst(rows: Sequence[Row], at: int) -> str:
    """The largest error of all cases as a percentage (0: relative RMS, 1: peak), or that there is none."""
    errors = [_size(e[at]) for r in rows for e in r.get("errors", {}).values()]
    return f"{100 * max(errors):.2f}%" if errors else MISSING


def held(rows: Sequence[Row], what: str = "ok") -> str:
    """``"29 of 29"``."""
    return f"{sum(r[what] for r in rows)} of {len(rows)}" if rows else MISSING


def checks(record: Measurement | None) -> pd.DataFrame:
    """A row for each promise of execution and training."""
    found = []
    for kind, about in KINDS.items():
        rows = checked(record, kind)
        if rows:
            wrong = "; ".join(str(r.get("error") or r.get("changed") or "")[:80] for r in rows if not r["ok"])
            found.append([about, held(rows), wrong])
    return filled(["promise", "held", "what did not"], found)


# --- prediction and speed ----------------------------------------------------------------------------


def timed(record: Measurement | None) -> list[Row]:
    """Shapes whose times are there."""
    return [] if record is None else [r for r in record.samples if OURS in r.get("times", {})]


def prediction(rows: Sequence[Row]) -> pd.DataFrame:
    """The launches of the first two speed shapes: bytes, operations, floor, and what was measured."""
    columns = ["shape", "launch", "MB", "GFLOP", "floor, µs", "measured, µs", "× floor"]
    measured = {
        (r["id"], m["op"], m["kernel"]): m["us"]["median"] for r in rows for m in r.get("launches", [])
    }
    found = []
    for p in ssd_predicted.launches():
        time, floor = measured.get((p["id"], p["op"], p["kernel"])), p["floor_us"]
        found.append([
            p["id"], f"{p['op']} {p['kernel']}", f"{p['bytes'] / 1e6:.0f}", f"{p['operations'] / 1e9:.1f}",
            f"{floor:.1f}", MISSING if time is None else f"{time:.1f}",
            "" if time is None else f"{time / floor:.1f}",
        ])  # fmt: skip
    return filled(columns, found)


def median(row: Row, name: str, what: str) -> float:
    """Microseconds of a contestant, ``forward``, ``backward`` or ``both``."""
    value = row["times"][name][f"{what}_us"]
    return float(value["median"] if isinstance(value, Mapping) else value)


def official(row: Row, what: str) -> tuple[str, float] | None:
    """The official operator's fastest chunk of one direction, and its time."""
    names = [name for name in row["times"] if name.startswith(FOREIGN)]
    best = min(names, key=lambda name: median(row, name, what), default=None)
    return None if best is None else (best.rsplit(" ", 1)[1], median(row, best, what))


def speeds(rows: Sequence[Row]) -> pd.DataFrame:
    """Each shape: ours, the official operator at its best chunk, and the ratios of all directions."""
    columns = ["B", "L", "H", "G", "N", "gate", "forward", "backward", "both", "official both", "its chunk",
               "× forward", "× backward", "× both"]  # fmt: skip
    found = []
    for r in rows:
        shape = [r[k] for k in ("batch", "length", "heads", "groups", "n")] + ["yes" if r["gated"] else "no"]
        ours = [f"{median(r, OURS, what):.1f}" for what in ("forward", "backward", "both")]
        theirs = official(r, "both")
        if theirs is None:
            found.append([*shape, *ours, MISSING, "", "", "", ""])
            continue
        ratios = [f"{ratio(r, what):.2f}" for what in ("forward", "backward", "both")]
        found.append([*shape, *ours, f"{theirs[1]:.1f}", theirs[0], *ratios])
    return filled(columns, found)


def ratio(row: Row, what: str) -> float | None:
    """The official operator's best time over ours; None where it was not timed."""
    theirs = official(row, what)
    return None if theirs is None else theirs[1] / median(row, OURS, what)


def missed(rows: Sequence[Row]) -> str:
    """The shapes at which forward and backward together miss the target, in words."""
    timed = [(r, found) for r in rows if (found := ratio(r, "both")) is not None]
    short = [
        f"L {r['length']:,}, N {r['n']}, G {r['groups']}, {('ungated', 'gated')[r['gated']]} ({found:.2f})"
        for r, found in timed
        if found < TARGETS[r["gated"]]
    ]
    return ", ".join(short) or "none" if timed else MISSING


def ways(rows: Sequence[Row]) -> pd.DataFrame:
    """Forward and backward of the engine's own ways, at the shapes of the target."""
    columns = ["way", *(f"{what}, {gate}" for gate in ("ungated", "gated") for what in ("forward", "both"))]
    pair = {r["gated"]: r for r in rows[:2]}
    names = [n for n in (rows[0]["times"] if rows else []) if n.startswith(OURS)]
    found = [
        [name]
        + [
            f"{median(pair[gated], name, what):.1f}" if gated in pair and name in pair[gated]["times"] else ""
            for gated in (False, True)
            for what in ("forward", "both")
        ]
        for name in names
    ]
    return filled(columns, found)


def host(rows: Sequence[Row]) -> pd.DataFrame:
    """Host time to submit a call."""
    calls = ["prepared_forward", "prepared_backward", "public_forward", "public_both"]
    found = [[r["id"], *(f"{r['host'][f'{call}_us']:.0f}" for call in calls)] for r in rows if "host" in r]
    return filled(["shape", *(call.replace("_", " ") for call in calls)], found)


def official_launches(rows: Sequence[Row]) -> pd.DataFrame:
    """Kernels of the official operator's forward and backward pass, at its best chunk."""
    columns = ["kernel", "calls", "µs"]
    first = next((r for r in rows if r.get("official_kernels")), None)
    named = [] if first is None else first["official_kernels"]
    return filled(columns, [[f"`{k['kernel'][:60]}`", k["calls"], f"{k['us']:.1f}"] for k in named])


# --- other targets ------------------------------------------------------------------------------------


def resources(record: Measurement | None) -> pd.DataFrame:
    """Each kernel on each target: the most that any of its compiled forms needs."""
    columns = ["kernel", "target", "forms", "registers", "spills (B)", "shared (B)", "TMEM columns",
               "matrix instructions", "read early"]  # fmt: skip
    if record is None:
        return filled(columns, [])
    found = []
    rows = record.samples["resources"]
    for r in rows:
        if "error" in r:
            found.append(
                [r["kernel"], r["target"], 0, "", "", "", "", f"does not compile: {r['error'][:60]}", ""]
            )
    df = pd.DataFrame([r for r in rows if "error" not in r])
    for (kernel, target), part in df.groupby(["kernel", "target"], sort=False):
        kinds: Counter[str] = Counter()
        for products in part["products"]:
            kinds.update(products)
        most = [int(part[c].max()) for c in ("registers", "spill_bytes", "shared_bytes", "tmem_columns")]
        early = int(part["read_early"].max())
        names = ", ".join(f"`{name}`" for name in kinds) or "none"
        found.append([kernel, target, len(part), *most, names, early])
    return filled(columns, sorted(found))


def executed(record: Measurement | None) -> pd.DataFrame:
    """The small case by the emulator, for each target, with and without its checks."""
    columns = ["target", "checks", "warp instructions", "outcome", "worst RMS, %", "what stopped it"]
    found = []
    for r in [] if record is None else record.samples["executed"]:
        errors = r.get("errors", {})
        rms = f"{100 * max(rms for rms, _ in errors.values()):.2f}" if errors else ""
        said = r.get("message", "").splitlines()[0] if r.get("message") else ""
        found.append([
            r["target"], "on" if r["checks"] else "off", f"{sum(r['instructions'].values()):,}", r["status"],
            rms, said,
        ])  # fmt: skip
    return filled(columns, found)


def outcome(record: Measurement | None, target: str, *, checks: bool = True) -> str:
    """How the small case ended on a target: ``right``, ``wrong``, a fault's kind, or that it was not run."""
    rows = [] if record is None else record.samples["executed"]
    return next((r["status"] for r in rows if (r["target"], r["checks"]) == (target, checks)), MISSING)
