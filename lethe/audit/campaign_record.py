"""From a campaign's folder to ``data/measured/<device>``: verdicts, checks and costs, never a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lethe.audit import cost, ledger, lines, machine
from lethe.audit.campaign import STEPS
from lethe.audit.differential import key_of
from lethe.audit.differential import read as read_checks
from lethe.audit.run import merge

COST = "audit_cost"


def record(out: Path, device: str, measured: Path) -> list[Path]:
    """Write what `out` holds; returns the files. Shards are merged.

    ``<file>_audit.json`` holds compact verdict lines (``house``, ``dlblas_accepted``, ``dlblas_rejected``,
    ``cuda_l1``, ``dlblas_paper``, ``dlblas_stack``), ``<corpus>_differential.json`` the checks, and
    ``audit_cost.json`` what rows and steps took.
    The device is the one that the campaign noted there. Raises RuntimeError where it noted none, `device` is
    cuda and torch sees none, LogError for a foreign file.
    """
    on = machine.device(out, device)
    written = []
    for name, samples, parameters in _found(out):
        path = measured / on.slug / f"{name}.json"
        machine.record(
            path,
            out,
            on,
            experiment=name,
            samples=samples,
            parameters={"device": device, "order": "stratified", **parameters},
            script="lethe/audit/campaign.py",
            command=f"python -m lethe.audit.campaign run --device {device}",
            units={"wall": "s", "seconds": "s", "cpu": "core-s", "gates": "s"},
        )
        written.append(path)
    return written


def _found(out: Path) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    costs: list[dict[str, Any]] = []
    for name in dict.fromkeys(step.file for step in STEPS):
        files = shards(out, name)
        if not files:
            continue
        if name.endswith("_differential"):
            checks = {key_of(line): line for file in files for line in read_checks(file)}
            if checks:
                yield name, list(checks.values()), {}
            continue
        merged = merge(files)
        if not merged:
            continue
        costs += cost.samples(merged, name)
        yield f"{name}_audit", [lines.compact(line) for line in merged], merged[0]["settings"]
    steps = [entry for file in shards(out, "steps") for entry in ledger.read(file)]
    if costs:
        yield COST, costs, {"steps": [asdict(entry) for entry in steps]}


def shards(out: Path, name: str) -> list[Path]:
    """The file of a step, or its shards."""
    whole = out / f"{name}.jsonl"
    return [*sorted(out.glob(f"{name}.*-of-*.jsonl")), *([whole] if whole.is_file() else [])]
