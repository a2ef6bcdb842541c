"""Tables about the gated linear recurrence: reductions, ladder, precision, execution, accuracy on a GPU.

A record that is missing gives a table that says *not measured yet*, never an empty one. Errors of float64
forms are printed as they are, all others in thousandths of the largest value. Speeds, levers and faults are
in `gdn_speed_tables`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lethe.evidence import gdn_gpu_training, gdn_precision, gdn_training_judged
from lethe.paper.kernel_tables import MISSING, missing
from lethe.provenance import Measurement

Row = Mapping[str, Any]
CHOSEN = "fp16 scaled"
"""The plan of the native kernels, as the record names it."""

GATES = {
    "unit": "within [−1, 0]",
    "mild": "mild",
    "strong": "to −5",
    "steep": "to −20",
    "none": "none or near zero",
}
"""Kinds of decay by the name that a case has."""

SHOWN = {"q": "dq", "k": "dk", "v": "dv", "g": "dg", "b": "db", "w": "dw", "initial_state": "dS₀"}
SYMBOLS = {"beta": "β", "dt": "Δ", "dt A": "Δ A", "d_k^-1/2": "1/√dₖ"}
ABOUT = {
    "prep": "everything that a chunk knows by itself",
    "scan": "states, forward and in reverse",
    "out": "gradients of the inputs",
    "forward": "states, and the outputs",
}
MISSED = " ✗"


def filled(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """The rows, or one that says that there are none."""
    shown = [list(row) for row in rows] or [[MISSING, *[""] * (len(columns) - 1)]]
    return pd.DataFrame(shown, columns=list(columns), dtype=object)


def samples(record: Measurement | None, kind: str | None = None) -> list[Row]:
    """The rows of a record, of one kind where it is said; none without a record."""
    rows = [] if record is None else list(record.samples)
    return [r for r in rows if kind is None or r.get("kind") == kind]


def thousandths(error: float | None) -> str:
    """``0.00109`` -> ``"1.09"``; an error that is no number is infinite."""
    return "∞" if error is None else f"{1e3 * error:.2f}"


def scientific(error: float | None) -> str:
    """``"4.5e-16"``."""
    return "∞" if error is None else f"{error:.1e}"


# --- one recurrence -----------------------------------------------------------------------------


def reductions(rows: Sequence[Row]) -> pd.DataFrame:
    """What each gate is in each member, how many numbers it has, and bytes of the backward pass a chunk."""

    def gate(row: Row, name: str) -> str:
        width = {0: "", 1: " a head"}.get(row[f"{name}_width"], " a channel")
        return f"{SYMBOLS.get(row[name], row[name])}{width}"

    found = []
    for r in rows:
        operands = ", ".join(r[name] for name in "qkv")
        scale, inverse = SYMBOLS.get(r["scale"], r["scale"]), "I" if r["identity"] else "(I + M)⁻¹"
        sizes = [round(r[name] / 1024) for name in ("bytes", "least")]
        found.append([r["member"], operands, *(gate(r, n) for n in "gbw"), scale, inverse, *sizes])
    return filled(
        ["member", "q, k, v", "g", "b", "w", "s", "T", "KiB a chunk", "of these inputs and gradients"], found
    )


def definitions(rows: Sequence[Row]) -> pd.DataFrame:
    """The worst of outputs, final state and gradients of each member against its own definition."""
    found = []
    for r in rows:
        name, error = max(r["errors"].items(), key=lambda item: item[1])
        gradients = [n.removeprefix("d") for n in r["errors"] if n not in ("o", "final")]
        found.append([r["member"], ", ".join(gradients), scientific(error), name])
    return filled(["member", "gradients of", "worst error", "in"], found)


def ladder(rows: Sequence[Row]) -> pd.DataFrame:
    """A row for each rung: its errors against the float64 rung below, by gradient."""
    found = []
    for r in rows:
        errors = [scientific(r["errors"][n]) if r["errors"] else "–" for n in SHOWN]
        bound = "–" if r["bound"] is None else f"{r['bound']:.0e}" + ("" if r["holds"] else MISSED)
        found.append([r["rung"], r["arithmetic"], *errors, bound])
    return filled(["rung", "arithmetic", *SHOWN.values(), "bound"], found)


# --- precision ----------------------------------------------------------------------------------


def precision(record: Measurement | None, io: str) -> pd.DataFrame:
    """Plans and the worst error of each gradient under them, for one input dtype."""
    columns = ["plan", *SHOWN.values(), "products", "handed on (KiB)", "holds"]
    if (table := missing(record, columns)) is not None:
        return table
    rows = gdn_precision.table([dict(r) for r in samples(record)], io)
    least = min(r["mmac"] for r in rows)
    found = []
    for r in rows:
        cost = [f"{r['mmac'] / least:.2f}", f"{r['handed']:.0f}"]
        found.append([r["plan"], *(thousandths(r[n]) for n in SHOWN), *cost, "yes" if r["holds"] else "no"])
    return filled(columns, found)


# --- executed without a GPU ---------------------------------------------------------------------


def kernels(record: Measurement | None) -> pd.DataFrame:
    """What each launch of the first recorded case is, and what its execution took."""
    columns = ["launch", "what", "threads", "registers", "spilled (B)", "shared (B)", "instructions",
               "asynchronous"]  # fmt: skip
    numbers = ("threads", "registers", "spilled", "shared", "instructions", "asynchronous")
    launched = [k for r in samples(record)[:1] for k in r.get("kernels", [])]
    return filled(
        columns,
        [[f"{k['pass']}: {k['stage']}", ABOUT[k["stage"]], *(k.get(n) for n in numbers)] for k in launched],
    )


def emulated(record: Measurement | None) -> pd.DataFrame:
    """Each recorded case: the result that is nearest to its bound, and whether all schedules agreed."""
    columns = ["member", "inputs", "g", "d_v", "schedules", "same bits", "nearest to its bound", "error",
               "bound"]  # fmt: skip
    rows = []
    for r in samples(record):
        start = [r["member"], r["io"], GATES[r["gate"]], r["dv"]]
        if "error" in r:
            rows.append([*start, "–", "–", r["error"], "–", "–"])
            continue
        name, share = nearest(r["errors"], r["bounds"])
        bits = "no: " + ", ".join(r["differ"]) if r["differ"] else "yes"
        bound = thousandths(r["bounds"][name]) + (MISSED if share > 1 else "")
        rows.append([*start, r["schedules"], bits, name, thousandths(r["errors"][name]), bound])
    return filled(columns, rows)


def nearest(errors: Row, bounds: Row) -> tuple[str, float]:
    """The result with the largest share of its bound."""
    shares = {n: float("inf") if e is None else e / bounds[n] for n, e in errors.items()}
    return max(shares.items(), key=lambda item: item[1])


def passed(rows: Sequence[Row]) -> str:
    """``"61 of 64"``, or that nothing was measured."""
    return f"{sum(bool(r.get('passed')) for r in rows)} of {len(rows)}" if rows else MISSING


# --- on a GPU -----------------------------------------------------------------------------------


def bounds(row: Row) -> dict[str, float]:
    """What each result of an accuracy row was held against: some are stored in float32, without rounding."""
    wide = ("final", "dg", "dinitial_state")
    return {n: row["pin"] + (0.0 if n in wide else row["stored"]) for n in row["errors"]}


def grid(record: Measurement | None) -> list[Row]:
    """Accuracy rows of whole sequences in recompute mode at the common length: the members' grid."""
    rows = [r for r in samples(record, "accuracy") if not r.get("cuts") and not r.get("save")]
    return [r for r in rows if r.get("length", 0) < 1000 and r.get("heads") == 2]


def accuracy(record: Measurement | None) -> pd.DataFrame:
    """By member, d_v and inputs: for each kind of gates the result that is nearest to its bound."""
    cells: dict[tuple[str, int, str], dict[str, Row]] = {}
    for r in grid(record):
        cells.setdefault((r["member"], r["dv"], r["io"]), {})[r["gate"]] = r
    names = list(gdn_precision.MEMBERS)
    found = []
    for key in sorted(cells, key=lambda k: (names.index(k[0]), k[1], k[2])):
        part = cells[key]
        pins = sorted({r["pin"] for r in part.values() if "pin" in r})
        row = [_accuracy_cell(part.get(gate)) for gate in GATES]
        found.append([*key, *row, ", ".join(map(thousandths, pins))])
    return filled(["member", "d_v", "inputs", *(f"g {text}" for text in GATES.values()), "pins"], found)


def _accuracy_cell(row: Row | None) -> str:
    if row is None:
        return "–"
    if "errors" not in row:
        return "did not run"
    held = bounds(row)
    name, _ = nearest(row["errors"], held)
    found = f"{name} {thousandths(row['errors'][name])} of {thousandths(held[name])}"
    return found if row["passed"] else found + MISSED


CHECKS = {
    "accuracy": "every error is within its bound",
    "control": "an input that is wrong at one token is noticed",
    "bits": "every run gives the same bits",
    "graph": "a captured graph on fresh inputs gives the bits of the eager call",
    "operator": "the public operator and its autograd give the kernels' bits",
    "compiled": "torch.compile traces the operator as one graph, which gives the same bits",
    "red zones": "nothing outside of its tensors is read or written",
}


def checks(record: Measurement | None) -> pd.DataFrame:
    """By kind of check: cases, those that pass, and what the others say."""
    rows = []
    for kind, text in CHECKS.items():
        part = samples(record, kind)
        if part:
            bad = [r for r in part if not r.get("passed")]
            said = Counter(map(_said, bad))
            others = "; ".join(f"{text} ({n})" if n > 1 else text for text, n in said.items())
            rows.append([kind, text, len(part), len(part) - len(bad), others or "–"])
    return filled(["check", "holds if", "cases", "pass", "the others"], rows)


def _said(row: Row) -> str:
    if "error" in row:
        return str(row["error"]).splitlines()[0][:90]
    return f"{row['member']} {row['io']} {row['gate']} d_v {row['dv']}" + (
        " packed" if row.get("cuts") else ""
    )


def training(record: Measurement | None) -> pd.DataFrame:
    """Each task of each training: losses of the last tenth in bits, and how far the kernels are from torch.

    The distances, of the means over seeds, are in standard deviations between torch's seeds.
    """
    columns = ["member", "steps", "L", "task", "memoryless", "torch", "between seeds", "native", "right (%)",
               "apart, curve", "apart, end", "allowed", "holds"]  # fmt: skip
    every, rows = gdn_training_judged.judged(samples(record)), []
    for one in every:
        curve, end = (one.parts[name] for name in gdn_training_judged.PARTS)
        verdict = ("noticed" if one.holds else "**missed**") if one.control else _yes(one.holds)
        rows.append(
            [one.title, one.native["steps"], one.native["length"], one.task,
             f"{one.native['memoryless'][one.task]:.2f}", f"{end.reference:.3f}", f"{end.spread:.3f}",
             f"{end.candidate:.3f}", _right(one), f"{curve.apart:+.2f}", f"{end.apart:+.2f}",
             f"{end.allowed:.2f}", verdict]
        )  # fmt: skip
    for r in gdn_training_judged.uncompared(samples(record)):
        said = str(r["error"]).splitlines()[0][:90] if "error" in r else "nothing to compare with"
        rows.append([f"{r['member']}, {r['backend']}", r["steps"], r["length"], said, *["–"] * 8, "**no**"])
    return filled(columns, rows)


def _right(one: gdn_training_judged.Judged) -> str:
    """Right answers in the last tenth of the steps: torch's, then the native ones."""
    both = (100 * statistics.fmean(row["right"][one.task]) for row in (one.torch, one.native))
    return ", ".join(f"{share:.1f}" for share in both)


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def trained(record: Measurement | None) -> dict[str, str]:
    """The trainings in short: those that hold, steps that were not finite, largest distance, control."""
    every = gdn_training_judged.judged(samples(record))
    rows = [r for r in samples(record, "training") if r.get("backend") == gdn_gpu_training.NATIVE]
    ours = [one for one in every if not one.control]
    control = [one.holds for one in every if one.control]
    if not rows:
        return dict.fromkeys(("hold", "non_finite", "apart", "allowed", "control"), MISSING)
    hold = [all(one.holds for one in part) for r in rows if (part := [x for x in ours if x.native is r])]
    broken = sum(gdn_training_judged.broken(r) for r in rows if "losses" in r)
    parts = [part for one in ours for part in one.parts.values()]
    return {
        "hold": f"{sum(hold)} of {len(rows)}",
        "non_finite": f"{broken} of {sum(r['steps'] for r in rows if 'losses' in r):,}",
        "apart": f"{max(abs(part.apart) for part in parts):.2f}" if parts else MISSING,
        "allowed": f"{max(part.allowed for part in parts):.2f}" if parts else MISSING,
        "control": ("noticed" if all(control) else "not noticed") if control else MISSING,
    }


def learning(record: Measurement | None) -> list[dict[str, Any]]:
    """A panel for each task of each native training, all of one task first: its curves, and torch's."""
    every = [one for one in gdn_training_judged.judged(samples(record)) if not one.control]
    return [
        {"title": f"{one.title}, L {one.native['length']}", "task": task, "steps": one.native["steps"],
         "native": one.native["losses"][task], "torch": one.torch["losses"][task],
         "memoryless": one.native["memoryless"][task]}
        for task in gdn_gpu_training.TASKS
        for one in every
        if one.task == task
    ]  # fmt: skip


def unfinished(*records: Measurement | None) -> str:
    """Whether the recorded runs did all of their tasks, and what failed, as a sentence or two."""
    if not all(records):
        return f"The run on a GPU is {MISSING}."
    rows = [r for record in records for r in samples(record)]
    early = [str(r["why"]) for r in rows if r.get("kind") == "end"]
    said = Counter(f"{r['kind']}: {str(r['error']).splitlines()[0][:110]}" for r in rows if "error" in r)
    broken = "; ".join(f"{text} ({n} times)" if n > 1 else text for text, n in said.items())
    ended = f"The run ended early: {'; '.join(early)}." if early else "The run did all of its tasks."
    return ended + (f" Without a result are: {broken}." if broken else "")


def worst(record: Measurement | None) -> str:
    """The largest error of any gradient on the GPU, in thousandths, or that it was not measured."""
    rows = [r for r in samples(record, "accuracy") if "errors" in r]
    found = [(float("inf") if e is None else e, n, r) for r in rows for n, e in r["errors"].items()]
    if not found:
        return MISSING
    error, name, row = max(found, key=lambda item: item[0])
    case = f"{row['member']}, {row['io']} inputs, d_v {row['dv']}, {row['gate']} gates"
    return f"{1e3 * error:.2f}e-3 ({name} of {case})"


def error_points(record: Measurement | None, planned: Measurement | None) -> list[dict[str, Any]]:
    """For each member and inputs: errors of gradients on the GPU, and those that the chosen plan predicts."""
    points = []
    for member in gdn_precision.MEMBERS:
        for io in ("fp16", "bf16"):
            measured = [r for r in grid(record) if (r["member"], r["io"]) == (member, io) and "errors" in r]
            emulation = [r for r in samples(planned) if r.get("plan") == CHOSEN]
            both = (measured, [r for r in emulation if (r["member"], r["io"]) == (member, io)])
            found, expected = ([e for r in rows for e in r["errors"].values() if e] for rows in both)
            points.append({"name": f"{member}, {io}", "measured": found, "planned": expected})
    return points
