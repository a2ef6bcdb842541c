"""The AI CUDA Engineer archive: CUDA kernels evolved for KernelBench problems.

* Source: SakanaAI/AI-CUDA-Engineer-Archive on Hugging Face (Lange et al., 2025), a Parquet file for each of
  the levels 1 to 3: ``Op_Name``, ``Level_ID``, ``Task_ID``, ``Kernel_Name``, ``CUDA_Code``,
  ``PyTorch_Code_Module`` (the reference, KernelBench format), ``PyTorch_Code_Functional``, ``Correct``,
  ``Max_Diff``, ``CUDA_Speedup_Native``, ...
* Licence: CC BY 4.0, as the data set's card says. KernelBench references: MIT.
* Accepted: ``Correct``, the archive's own allclose.
* Candidate: ``CUDA_Code`` is an extension with its own binding ``forward``, which takes the arguments of the
  functional reference (inputs and weights). The candidate is that functional text, whose
  ``Model.forward(..., fn=module_fn)`` says which weights those are, with ``fn`` bound to the extension.
* Left out, each with its number in the notes: rows without CUDA code, without a reference in that format,
  and rows whose functional text takes no ``fn``, so that nobody knows what to pass.
* Row id: ``sakana-L<level>_<task>-<the archive's index, or the position in its file>``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lethe.audit.corpora import CorpusError, ListedCorpus, Row
from lethe.audit.kernelbench import family_of
from lethe.audit.tabular import rows_of
from lethe.audit.textio import unix
from lethe.verifier.problem import Candidate, Problem

NEEDED = ("Op_Name", "Level_ID", "Task_ID", "CUDA_Code", "PyTorch_Code_Module", "Correct")
WANTED = ("PyTorch_Code_Functional", "Kernel_Name", "Max_Diff", "CUDA_Speedup_Native", "__index_level_0__")
REASONS = {
    "no_code": "rows without CUDA code",
    "no_reference": "rows whose reference is not in KernelBench's format",
    "no_fn": "rows whose functional reference takes no fn",
}
ADAPTER = """

from torch.utils.cpp_extension import load_inline as _load_inline

_extension = _load_inline(name={name!r}, cpp_sources=[], cuda_sources=[{code!r}], with_cuda=True)


class ModelNew(Model):
    def forward(self, *inputs):
        return super().forward(*inputs, fn=_extension.forward)
"""
"""Appended to the functional reference; the extension brings its own PYBIND11_MODULE."""


def load(path: str | Path, correct: bool = False, level: int | None = None) -> ListedCorpus:
    """Rows of a Parquet file (or JSON lines with the same fields), or of a folder of them.

    `correct` keeps the accepted rows alone, `level` one level. Raises CorpusError where a file is
    missing, is of another kind, or holds no usable row.
    """
    left_out: Counter[str] = Counter()
    rows = list(_rows(path, correct, level, left_out))
    if not rows:
        raise CorpusError(f"corpus sakana: {path} holds no usable row")
    notes = [
        f"{left_out[reason]} {text} are left out" for reason, text in REASONS.items() if left_out[reason]
    ]
    return ListedCorpus("sakana", rows, notes)


def _rows(path: str | Path, correct: bool, level: int | None, left_out: Counter[str]) -> Iterator[Row]:
    for position, record in enumerate(rows_of(path, "sakana", NEEDED, WANTED)):
        accepted = bool(record["Correct"])
        if (correct and not accepted) or (level is not None and int(record["Level_ID"]) != level):
            continue
        code, reference = record["CUDA_Code"] or "", unix(record["PyTorch_Code_Module"] or "")
        functional = unix(record.get("PyTorch_Code_Functional") or "")
        reason = _unusable(code, reference, functional)
        if reason:
            left_out[reason] += 1
            continue
        index = record.get("__index_level_0__")
        row_id = f"sakana-L{record['Level_ID']}_{record['Task_ID']}-{position if index is None else index}"
        name = f"level{record['Level_ID']}/{record['Op_Name']}"
        yield Row(
            id=row_id,
            corpus="sakana",
            problem=Problem(name=name, source=reference),
            candidate=Candidate(name=row_id, source=adapted(functional, code, row_id), language="cuda"),
            family=family_of(name),
            language="cuda_inline",
            accepted=accepted,
            licence="CC-BY-4.0",
            extra=_facts(record),
        )


def _unusable(code: str, reference: str, functional: str) -> str:
    """The reason to leave a row out, or ``""``."""
    if not code.strip():
        return "no_code"
    if "class Model" not in reference or "def get_inputs" not in reference:
        return "no_reference"
    return "" if takes_fn(functional) else "no_fn"


def takes_fn(functional: str) -> bool:
    """Whether ``Model.forward`` of the functional text has a parameter ``fn``."""
    try:
        tree = ast.parse(functional)
    except (SyntaxError, ValueError):
        return False
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            for f in node.body:
                if isinstance(f, ast.FunctionDef) and f.name == "forward":
                    return "fn" in [a.arg for a in (*f.args.args, *f.args.kwonlyargs)]
    return False


def adapted(functional: str, code: str, row_id: str) -> str:
    """The candidate's source: functional reference, extension, and ``ModelNew`` that joins them."""
    return functional + ADAPTER.format(name=re.sub(r"\W", "_", row_id), code=code)


def _facts(record: dict[str, Any]) -> dict[str, Any]:
    names = {"Kernel_Name": "kernel", "Max_Diff": "max_diff", "CUDA_Speedup_Native": "speedup"}
    return {"level": record["Level_ID"], **{short: record.get(name) for name, short in names.items()}}
