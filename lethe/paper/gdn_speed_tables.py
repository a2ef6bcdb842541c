"""Tables about the speed of the gated linear recurrence's kernels, and what was noted while building them.

Times are medians of device time in microseconds. As in `gdn_tables`, what is missing says so.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lethe.evidence import gdn_precision
from lethe.paper.gdn_tables import filled, samples, scientific
from lethe.paper.kernel_tables import MISSING
from lethe.provenance import ROOT, Measurement
from lethe.verifier.catalog import CONTRACTS

Row = Mapping[str, Any]
TARGET_US = 250.0
"""What the backward pass may take at the main shape (`MAIN`)."""

MAIN = {"member": "gdn2", "batch": 2, "heads": 16, "length": 2048, "dv": 128, "io": "bf16"}
PLAIN = {"save": False, "gate": "mild"}
"""What a shape is where its row does not say it."""

OTHERS = {"fla": "fla", "cudnn": "cuDNN"}
"""Whose kernels are timed beside ours, by the kind of row."""

STAGES = ("prep", "scan", "out")
BOTH = "forward+backward"
DESIGN = ROOT / "lethe" / "kernels" / "gdn" / "DESIGN.md"


def timed(record: Measurement | None) -> list[Row]:
    """Shapes whose times are there."""
    return [r for r in samples(record, "ours") if "median_us" in r]


def compared(record: Measurement | None, kind: str = "fla") -> list[Row]:
    """Shapes on which other people's kernels were timed beside ours."""
    return [r for r in samples(record, kind) if "us" in r]


def skipped(record: Measurement | None) -> str:
    """Whose kernels were not timed, and why, as sentences; empty if everybody's were."""
    return " ".join(dict.fromkeys(f"{r['skipped']}." for r in samples(record) if "skipped" in r))


def at(rows: Iterable[Row], **shape: Any) -> Row | None:
    """The row of a shape, the main one where nothing else is said."""
    wanted = {**MAIN, **PLAIN, **shape}
    return next((r for r in rows if wanted.items() <= {**PLAIN, **r}.items()), None)


def over_length(rows: Iterable[Row]) -> list[Row]:
    """The main shape at every length, by length."""
    fixed = {k: v for k, v in {**MAIN, **PLAIN}.items() if k != "length"}
    found = (r for r in rows if fixed.items() <= {**PLAIN, **r}.items())
    return sorted(found, key=lambda r: int(r["length"]))


def speed(rows: Sequence[Row]) -> pd.DataFrame:
    """Both passes and each kernel by shape, the distance to the floors, and the peak of memory."""
    columns = ["member", "inputs", "g", "mode", "B", "H", "L", "d_v", "forward", "× least", *STAGES,
               "backward", "× traffic", "× least ", "peak (MiB)"]  # fmt: skip
    times = (*(f"backward.{stage}" for stage in STAGES), "backward")
    found = []
    for r in sorted(({**PLAIN, **r} for r in rows), key=_place):
        shape = [r["member"], r["io"], r["gate"], "save" if r["save"] else "recompute"]
        shape += [r[name] for name in ("batch", "heads", "length", "dv")]
        ahead, traffic, least = (
            f"{r['ratio'][n]:.2f}" if n in r["ratio"] else "–" for n in ("least_forward", "backward", "least")
        )
        us = [f"{r['median_us'][n]:.1f}" for n in ("forward", *times)]
        peak = round(r["peak"]["backward"] / 2**20)
        found.append([*shape, us[0], ahead, *us[1:], traffic, least, peak])
    return filled(columns, found)


def _place(row: Row) -> tuple[Any, ...]:
    member = list(gdn_precision.MEMBERS).index(row["member"])
    plain = (row["save"], row["gate"])
    return -member, -row["dv"], row["io"], plain, row["batch"], row["heads"], row["length"]


def predictions(design: Path = DESIGN) -> dict[str, float]:
    """Microseconds that the design predicts for each kernel of the main shape, before anything was timed."""
    found = {}
    for line in design.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 7 and cells[0] in STAGES and (time := re.fullmatch(r"(\d+) us", cells[6])):
            found[cells[0]] = float(time[1])
    return found


def breakdown(rows: Sequence[Row], design: Path = DESIGN) -> pd.DataFrame:
    """Each kernel at the main shape: bytes, floor and time beside the prediction."""
    row, predicted = at(rows), predictions(design)
    shown = []
    for name, expected in {**predicted, "backward": sum(predicted.values())}.items():
        measured = ["–", "–", MISSING, "–"]
        if row is not None:
            us = row["median_us"]["backward" if name == "backward" else f"backward.{name}"]
            moved, floor = row["bytes"][name], row["floor_us"][name]
            measured = [f"{moved / 1e6:.0f}", f"{floor:.1f}", f"{us:.1f}", f"{us / floor:.2f}"]
        shown.append([name, f"{expected:.0f}", *measured])
    return filled(["kernel", "predicted (µs)", "MB", "floor (µs)", "measured (µs)", "× floor"], shown)


def against(rows: Sequence[Row]) -> pd.DataFrame:
    """Other people's kernels and ours on the same inputs, in one process; above one, ours is faster."""
    columns = ["whose", "member", "B", "H", "L", "d_v", "pass", "ours", "theirs", "theirs / ours",
               "their clock", "largest difference"]  # fmt: skip
    shown = []
    for r in rows:
        shape: list[Any] = [r[name] for name in ("member", "batch", "heads", "length", "dv")]
        for name, ours in r["us"].items():
            mine, theirs = (statistics.median(x) for x in (ours, r[name]["their_us"]))
            cells = [f"{mine:.0f}", f"{theirs:.0f}", f"{r[name]['over_ours']:.2f}", r[name]["clock"]]
            difference = scientific(max(r["agrees"].values()))
            shown.append([OTHERS[r["kind"]], *shape, name.replace("+", " + "), *cells, difference])
    return filled(columns, shown)


def ratios(rows: Sequence[Row], name: str) -> list[tuple[str, float]]:
    """(shape, theirs over ours) for the general member."""
    return [(f"L{r['length']}", r[name]["over_ours"]) for r in rows if r["member"] == "gdn2"]


def span(values: Sequence[float]) -> str:
    """``"1.20 to 3.40"``, or that nothing was measured."""
    return f"{min(values):.2f} to {max(values):.2f}" if values else MISSING


def main_time(rows: Sequence[Row], name: str) -> str:
    """A time of the main shape with its unit, or that it was not measured."""
    row = at(rows)
    return MISSING if row is None else f"{row['median_us'][name]:.0f} µs"


def main_ratio(rows: Sequence[Row], name: str) -> str:
    """How many times its floor a pass takes at the main shape, or that it was not measured."""
    row = at(rows)
    return MISSING if row is None else f"{row['ratio'][name]:.2f}"


def targets(record: Measurement | None, values: Measurement | None) -> pd.DataFrame:
    """What was aimed at before anything was timed, and what came of it."""
    ours, done = timed(record), samples(values, "accuracy")
    row, both = at(ours), [ratio for _, ratio in ratios(over_length(compared(record)), BOTH)]
    kda = [r["backward"]["over_ours"] for r in compared(record, "cudnn") if r["length"] >= 2048]
    held = sum(bool(r.get("passed")) for r in done)
    found: list[tuple[str, str, bool | None]] = [
        (
            "every error within its pin",
            f"{held} of {len(done)} cases" if done else MISSING,
            held == len(done) if done else None,
        ),
        (
            f"backward at most {TARGET_US:.0f} µs (B 2, H 16, L 2,048, d 128)",
            main_time(ours, "backward"),
            None if row is None else row["median_us"]["backward"] <= TARGET_US,
        ),
        (
            "faster than fla's chunk_gdn2 at every L, forward and backward",
            f"{span(both)} times" if both else MISSING,
            min(both) > 1 if both else None,
        ),
        (
            "faster than the KDA backward of cuDNN's frontend from L 2,048 on",
            f"{span(kda)} times" if kda else MISSING,
            min(kda) > 1 if kda else None,
        ),
    ]
    met = {None: "–", True: "yes", False: "**no**"}
    return filled(["target", "measured", "met"], [[text, value, met[ok]] for text, value, ok in found])


# --- levers and faults --------------------------------------------------------------------------


def noted(path: Path | str, what: str) -> list[Row]:
    """The rows of a file under ``data/review``."""
    rows: list[Row] = json.loads(Path(path).read_text(encoding="utf-8"))[what]
    return rows


def levers(rows: Sequence[Row], speeds: Sequence[Row]) -> pd.DataFrame:
    """Levers that were built or are open, what they should bring, and the time that shows it."""

    def shown(name: str) -> str:
        return f"{name}: {main_time(speeds, name)}" if name else "–"

    columns = ["lever", "kernel", "state", "expected", "measured"]
    kept = [r for r in rows if r["state"] != "killed"]
    return filled(columns, [[*(r[c] for c in columns[:4]), shown(r["timed"])] for r in kept])


def killed(rows: Sequence[Row]) -> pd.DataFrame:
    """Levers that were dropped on paper or by emulation, and why."""
    dropped = [r for r in rows if r["state"] == "killed"]
    return filled(["lever", "kernel", "why not"], [[r["lever"], r["kernel"], r["expected"]] for r in dropped])


def faults(rows: Sequence[Row]) -> pd.DataFrame:
    """The log of our own faults."""
    return filled(["kernel", "fault", "found by"], [[r["kernel"], r["fault"], r["found"]] for r in rows])


def found_by(rows: Sequence[Row]) -> str:
    """``"assembler 6, compiler 3, ..."``, the most frequent first."""
    counts = sorted(Counter(r["kind"] for r in rows).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind} {n}" for kind, n in counts)


def bridge(rows: Sequence[Row], published: Row) -> pd.DataFrame:
    """By gate: how often the audited kernels broke it, as published, and our own faults of that kind."""
    shown = []
    for contract in CONTRACTS:
        own = [r for r in rows if r["like"] == contract.identifier]
        if own:
            counted = published["audit"]["gates"].get(contract.identifier)
            rate = f"{counted['fail']:,} of {counted['fail'] + counted['pass']:,}" if counted else "not run"
            shown.append([contract.identifier, contract.name, rate, len(own), _finders(own)])
    rest = [r for r in rows if not r["like"]]
    shown.append(["–", "none of the twelve", "–", len(rest), _finders(rest)])
    return filled(["gate", "contract", "published rows that fail", "our own faults", "found by"], shown)


def _finders(rows: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(r["found"] for r in rows))
