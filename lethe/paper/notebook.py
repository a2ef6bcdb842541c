"""Execute one jupytext notebook: ``python -m lethe.paper.notebook IN.py OUT.ipynb -p NAME VALUE``.

A failing notebook ends with a three-line error; the executed notebook, traceback included, stays
at ``--log``. OUT appears only if every cell ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class NotebookError(RuntimeError):
    """A cell raised; the message has three lines."""


def execute(source: Path, output: Path, parameters: dict[str, Any], log: Path) -> None:
    """Run `source` (py:percent) with `parameters` in the current directory and write `output`.

    Raises NotebookError if a cell raises or a parameter does not exist in the notebook.
    """
    import jupytext
    import nbformat
    import papermill

    notebook = jupytext.read(source)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    unknown = set(parameters) - _declared(notebook)
    if unknown:
        raise NotebookError(
            f"{source}: no parameter {sorted(unknown)[0]!r}\n"
            f"its parameters cell declares {', '.join(sorted(_declared(notebook)))}\n"
            "nothing was run"
        )
    log.parent.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    prepared = log.with_suffix(".prepared.ipynb")
    nbformat.write(notebook, prepared)
    try:
        papermill.execute_notebook(
            str(prepared),
            str(log),
            parameters=parameters,
            kernel_name="python3",
            progress_bar=False,
            kernel_manager_class=_kernel_manager(),
        )
    except papermill.exceptions.PapermillExecutionError as e:
        raise NotebookError(
            f"{source}: cell [{e.exec_count}] failed\n{e.ename}: {_first_line(e.evalue)}\n"
            f"executed notebook with the traceback: {log}"
        ) from e
    finally:
        prepared.unlink(missing_ok=True)
    executed = nbformat.read(log, as_version=4)
    _forget_the_machine(executed)
    nbformat.write(executed, output)


def _kernel_manager() -> type:
    """A kernel manager that keeps the kernel's own chatter off the terminal; what cells print is kept."""
    import subprocess

    from jupyter_client.manager import AsyncKernelManager

    class QuietKernelManager(AsyncKernelManager):
        async def _async_start_kernel(self, **options: Any) -> Any:
            await super()._async_start_kernel(**{"stderr": subprocess.DEVNULL, **options})

        start_kernel = _async_start_kernel

    return QuietKernelManager


def _declared(notebook: Any) -> set[str]:
    """Names that the cell tagged ``parameters`` assigns."""
    import ast

    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            assigned = [n for n in ast.parse(cell.source).body if isinstance(n, (ast.Assign, ast.AnnAssign))]
            targets = [t for n in assigned for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
            return {t.id for t in targets if isinstance(t, ast.Name)}
    return set()


def _first_line(text: str) -> str:
    lines = [line for line in str(text).splitlines() if line.strip()]
    return lines[0] if lines else ""


def _forget_the_machine(notebook: Any) -> None:
    """Drop times, hosts and absolute paths, so that the same run writes the same notebook."""
    notebook.metadata.pop("papermill", None)
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i}"
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.paper.notebook", description=__doc__)
    parser.add_argument("source", type=Path, help="a py:percent notebook")
    parser.add_argument("output", type=Path, help="where the executed notebook goes")
    parser.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="set a parameter (VALUE is JSON, or else a string)",
    )  # fmt: skip
    parser.add_argument("--log", type=Path, help="where a failed notebook stays (default: OUT.failed.ipynb)")
    arguments = parser.parse_args(argv)
    log = arguments.log or arguments.output.with_suffix(".failed.ipynb")
    try:
        execute(arguments.source, arguments.output, {k: _value(v) for k, v in arguments.parameter}, log)
    except (NotebookError, OSError) as e:
        print(e, file=sys.stderr)
        return 1
    if arguments.log is None:
        log.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
