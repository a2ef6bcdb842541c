"""The direction of imports, and that importing lethe stays cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lethe.provenance import ROOT, imported_modules

TOP = {"cli", "cli_audit", "cli_corpora", "cli_show", "display", "pytest_plugin", "__main__"}
"""Modules that people enter by; nothing below may import them."""

MAY_IMPORT: dict[str, set[str]] = {
    "verifier": set(),
    "kernels": {"ptx"},
    "references": set(),
    "ptx": set(),
    "provenance": set(),
    "plotting": set(),
    "audit": {"verifier", "provenance"},
    "evidence": {"verifier", "kernels", "references", "audit", "ecg", "provenance"},
    "rl": {"verifier", "kernels", "references", "audit", "evidence", "provenance"},
    "ecg": {"verifier", "kernels", "references", "provenance", "plotting"},
    "paper": {"verifier", "audit", "evidence", "ecg", "rl", "provenance", "plotting", "ptx"},
}
"""Room -> rooms that it may import besides itself. The entry points and notebooks may import every room."""

FILES = sorted((ROOT / "lethe").rglob("*.py"))


def room(module: str) -> str:
    """``"lethe.audit.run"`` -> ``"audit"``; the package itself is ``""``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_imports_go_one_way(file):
    here = room(module_name(file))
    if here in TOP or here == "":
        return
    assert here in MAY_IMPORT, f"{here} is a new room: say in MAY_IMPORT which rooms it may import"
    # `import lethe` alone forwards lazily to the verifier, so it counts as the verifier
    reached = {room(m) or "verifier" for m in imported_modules(file)} - {here}
    if here == "paper":
        reached.discard("")
    assert reached <= MAY_IMPORT[here], f"{here} must not import {sorted(reached - MAY_IMPORT[here])}"


def test_notebooks_use_no_entry_point():
    for notebook in sorted((ROOT / "notebooks").glob("*.py")):
        assert not {room(m) for m in imported_modules(notebook)} & TOP, notebook.name


def test_plots_live_in_plotting_and_notebooks_only():
    for file in FILES:
        if file.name == "plotting.py" or file.parent.name == "plotting":
            continue
        text = file.read_text(encoding="utf-8")
        assert "matplotlib.pyplot" not in text and "import seaborn" not in text, file


def test_importing_lethe_is_cheap_and_loads_nothing_heavy():
    code = (
        "import sys, time; start = time.perf_counter(); import lethe; spent = time.perf_counter() - start;"
        "heavy = sorted({'torch', 'triton', 'numpy', 'pandas', 'typer', 'rich'} & set(sys.modules));"
        "print(spent, heavy)"
    )
    best = float("inf")
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
        )
        spent, heavy = done.stdout.split(maxsplit=1)
        assert heavy.strip() == "[]"
        best = min(best, float(spent))
    assert best < 0.3
