"""Tables of what the paper published, for chapters whose own measurement is still to come.

Each table says *published* in its caption; the facts and their sources are in
``data/published/figures.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from lethe.paper.numbers import formatted, number, percent

Figures = dict[str, Any]
Table = tuple[str, pd.DataFrame]
"""Caption and content."""


def tables(figures: Figures) -> dict[str, Table]:
    """Name -> (caption, table), for every table below."""
    makers: list[Callable[[Figures], Table]] = [
        funnel, gates, classes, floor, calibration, carry, recurrence_speed,
        forward_speed, killed_levers, ecg, edit_rewards, ssd, second_corpora,
    ]  # fmt: skip
    return {make.__name__: make(figures) for make in makers}


def _frame(columns: list[str], rows: list[list[Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns, dtype=object)


def funnel(f: Figures) -> Table:
    a, steps = f["audit"], f["audit"]["funnel"]
    rows = [
        ["trajectories in the corpus", a["trajectories"]],
        ["operator classes close to state-space models", steps["ssm_adjacent"]],
        ["accepted by the corpus's own check", steps["accepted"]],
        ["reference executable", steps["reference_executable"]],
        ["tool-chain or compile artefacts, set aside", steps["toolchain_or_compile_artifact"]],
        ["judged", steps["denominator"]],
        ["break at least one contract", a["any_violation"]],
        ["break one without any tolerance", a["tolerance_free"]],
    ]
    return "Published acceptance funnel of the drkernel audit (B200).", _frame(["step", "rows"], rows)


def gates(f: Figures) -> Table:
    rows = []
    for gate, n in f["audit"]["gates"].items():
        applicable = n["fail"] + n["pass"]
        fail_rate = percent(n["fail"] / applicable)
        rows.append([gate, n["fail"], n["pass"], n.get("na", 0), n.get("error", 0), fail_rate])
    columns = ["gate", "fail", "pass", "not applicable", "error", "fail / (fail + pass)"]
    return "Published outcome of each gate in the drkernel audit (B200).", _frame(columns, rows)


def classes(f: Figures) -> Table:
    a = f["audit"]
    rows = [
        [name, size, percent(a["per_class_rate"][name]), percent(a["floor_rate_by_class"][name])]
        for name, size in a["class_sizes"].items()
    ]
    columns = ["operator class", "rows", "break a contract", "tolerance-free floor"]
    return "Published rates by operator class in the drkernel audit (B200).", _frame(columns, rows)


def floor(f: Figures) -> Table:
    a = f["audit"]
    rows = [
        ["floor: " + ", ".join(a["floor_channels"]), percent(a["tolerance_free_rate"])],
        ["and shape rejection", percent(a["floor_with_shape_rejection_rate"])],
        ["floor and EXC-02", percent(a["floor_with_exc02_rate"])],
        ["any gate", percent(a["any_violation_rate"])],
        ["any gate, matmul rows left out", percent(a["without_matmul_rate"])],
        ["any gate, every contested channel left out", percent(a["all_contested_stripped_rate"])],
    ]
    return "How the published headline moves with what is counted (B200).", _frame(["counted", "rate"], rows)


def calibration(f: Figures) -> Table:
    c = f["calibration"]
    rows = [
        [g, number(v["noise_floor"]), number(v["trip"]), number(v["onset"])] for g, v in c["gates"].items()
    ]
    columns = ["gate", "honest noise", "threshold", "onset of real error"]
    return f"Published calibration on {c['operator']}.", _frame(columns, rows)


def carry(f: Figures) -> Table:
    rows = [[int(n), number(e)] for n, e in f["calibration"]["prc02_fp16_carry_rel_err"].items()]
    return "Published relative error of a half-precision carry (PRC-02).", _frame(["length", "error"], rows)


def recurrence_speed(f: Figures) -> Table:
    rows = [
        [r["B"], r["L"], r["H"], r["ours"], r["fla"], f"{r['ratio']:.1f}×"]
        for r in f["gdn_backward"]["vs_fla_graph_ms"]
    ]
    columns = ["B", "L", "H", "paper's backward, ms", "fla, ms", "slower by"]
    return "Published backward times of the gated-delta-rule family (B200, graph time).", _frame(
        columns, rows
    )


def forward_speed(f: Figures) -> Table:
    rows = [
        [r["batch"], r["width"], f"{r['ratio']:.2f}×"]
        for r in f["mamba3_kernels"]["forward_vs_selective_scan_cuda"]
    ]
    columns = ["batch", "width", "speed relative to selective_scan"]
    return "Published forward speed of the Mamba-shaped scan (B200).", _frame(columns, rows)


LEVER_FACTS = {
    "kernel_only": "kernel alone faster by {}×",
    "gate": "required: {}×",
    "ceiling_ms": "could save at most {} ms",
    "ceiling_share": "{} of the step",
    "gain": "gain: {}",
}


def killed_levers(f: Figures) -> Table:
    rows = []
    for lever in f["mamba3_kernels"]["killed_levers"]:
        facts = {k: v for k, v in formatted(lever).items() if k != "lever" and v != "–"}
        outcome = ", ".join(LEVER_FACTS[k].format(v) for k, v in facts.items())
        rows.append([lever["lever"], outcome or "no figure given"])
    return "Published optimisation levers that were tried and dropped.", _frame(["lever", "outcome"], rows)


def ecg(f: Figures) -> Table:
    rows = [[int(s), f"{a:.4f}"] for s, a in f["ptbxl"]["val_macro_auc"].items()]
    caption = "Published validation macro AUC of the 1.1-billion-parameter PTB-XL run (8 B200)."
    return caption, _frame(["step", "validation macro AUC"], rows)


def edit_rewards(f: Figures) -> Table:
    e = f["rl"]["edit_rl"]
    names = {
        "not_applied": "edit did not apply",
        "correct_not_faster": "correct, not faster",
        "broke_correctness": "broke a contract",
        "exec_fail": "did not execute",
        "sandbox": "stopped by the sandbox",
    }
    rows = [[text, e[k], percent(e[k] / e["attempts"])] for k, text in names.items()]
    return "Published outcome of edit-based reinforcement learning.", _frame(
        ["outcome", "attempts", "share"], rows
    )


def ssd(f: Figures) -> Table:
    s = f["ssd_engine"]
    rows = [
        [name, *s[f"{key}_us"], f"{s[f'{key}_ratio']:.2f}×"]
        for name, key in (("ungated", "ungated"), ("gated", "gated"))
    ]
    columns = ["case", "engine, µs", f"mamba-ssm {s['baseline'].split()[-1]}, µs", "faster by"]
    return f"Published forward and backward of the SSD engine ({s['hardware']}, {s['shape']}).", _frame(
        columns, rows
    )


def second_corpora(f: Figures) -> Table:
    again, sakana = f["second_stack"], f["second_corpus"]
    residual = "AI CUDA Engineer archive, precision gates set aside"
    rows = [
        ["drkernel, again on " + again["stack"], again["accepted_denominator"], percent(again["rate"])],
        ["AI CUDA Engineer archive, every gate", sakana["kernels"], percent(sakana["raw_rate"])],
        [residual, sakana["kernels"], percent(sakana["residual_rate"])],
    ]
    columns = ["rows from", "judged", "break a contract"]
    return "Published repetitions of the audit (B200).", _frame(columns, rows)
