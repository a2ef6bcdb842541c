"""Dr. Kernel cold start: the last Triton kernel of each multi-turn trajectory.

* Source: hkust-nlp/drkernel-coldstart-8k on Hugging Face (Liu et al., arXiv:2602.05885), one Parquet file:
  ``uuid``, ``original_python_code`` (the reference, KernelBench format), ``messages`` (the trajectory),
  ``final_speedup``, ``num_rounds``. 8,920 trajectories, as the paper counts them.
* Licence: the Parquet file names none, so rows say ``unstated``; read the data set's card before you
  pass sources on. Verdict lines hold no source.
* Candidate: the last fenced block that defines ``ModelNew``, looked for from the last assistant turn back.
* Accepted: ``final_speedup > 0``; the trajectory's own check gives no speed-up to a wrong kernel.
* Left out, each with its number in the notes: trajectories without a reference in that format, without a
  ``ModelNew``, and of an operator class outside `SSM_ADJACENT` (`every_class` keeps them). With `published`,
  the file of published verdicts, exactly its 3,134 rows are kept, and each has the class that it has there.
* Row id: ``uuid`` as text, which is a row number (the published examples are 179, 518 and 123).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lethe.audit.corpora import CorpusError, ListedCorpus, Row
from lethe.audit.operator_class import SSM_ADJACENT, class_of
from lethe.audit.tabular import rows_of
from lethe.audit.textio import unix
from lethe.verifier.problem import Candidate, Problem

NEEDED = ("uuid", "original_python_code", "messages", "final_speedup")
WANTED = ("num_rounds",)
REFERENCE = re.compile(r"^class Model\b", re.MULTILINE), re.compile(r"^def get_inputs\b", re.MULTILINE)
ENTRY = re.compile(r"^class ModelNew\b", re.MULTILINE)
REASONS = {
    "no_reference": "trajectories whose reference is not in KernelBench's format",
    "no_candidate": "trajectories without a code block that defines ModelNew",
    "other_class": "trajectories of another operator class than " + ", ".join(SSM_ADJACENT),
    "not_published": "trajectories that are not among the published rows",
}


def load(path: str | Path, published: str | Path | None = None, every_class: bool = False) -> ListedCorpus:
    """Rows of the Parquet file (or of JSON lines with the same fields), or of a folder of them.

    Raises CorpusError where a file is missing, is of another kind, or holds no usable trajectory.
    """
    classes = _published_classes(published) if published is not None else None
    left_out: Counter[str] = Counter()
    rows = list(_rows(path, classes, every_class, left_out))
    if not rows:
        raise CorpusError(f"corpus drkernel: {path} holds no usable trajectory")
    notes = [
        f"{left_out[reason]} {text} are left out" for reason, text in REASONS.items() if left_out[reason]
    ]
    if classes is not None and (missing := len(classes.keys() - {row.id for row in rows})):
        notes.append(f"{missing} published rows are not in {path}")
    return ListedCorpus("drkernel", rows, notes)


def _published_classes(path: str | Path) -> dict[str, str]:
    from lethe.audit.published_rows import read

    return {row["id"]: row["op_class"] for row in read(path)}


def _rows(
    path: str | Path, classes: Mapping[str, str] | None, every_class: bool, left_out: Counter[str]
) -> Iterator[Row]:
    for position, record in enumerate(rows_of(path, "drkernel", NEEDED, WANTED)):
        row_id = str(record["uuid"])
        reference = unix(record["original_python_code"] or "")
        if not all(pattern.search(reference) for pattern in REFERENCE):
            left_out["no_reference"] += 1
            continue
        source = last_kernel(record["messages"])
        if source is None:
            left_out["no_candidate"] += 1
            continue
        if classes is not None and row_id not in classes:
            left_out["not_published"] += 1
            continue
        family = classes[row_id] if classes is not None else class_of(reference)
        if classes is None and not every_class and family not in SSM_ADJACENT:
            left_out["other_class"] += 1
            continue
        speedup = record["final_speedup"]
        yield Row(
            id=row_id,
            corpus="drkernel",
            problem=Problem(name=f"drkernel/{row_id}", source=reference),
            candidate=Candidate(name=f"drkernel-{row_id}", source=source, language="triton"),
            family=family,
            language="triton",
            accepted=speedup is not None and speedup > 0,
            licence="unstated",
            extra={"speedup": speedup, "rounds": record.get("num_rounds"), "position": position},
        )


def last_kernel(messages: Any) -> str | None:
    """The last code block with ``class ModelNew`` of a trajectory, or None.

    `messages` is a list of ``{"role", "content"}`` in order, or its JSON text.
    """
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError:
            return None
    for message in reversed(messages or []):
        if message.get("role") != "assistant":
            continue
        for block in reversed(list(code_blocks(message.get("content") or ""))):
            if ENTRY.search(block):
                return block
    return None


def code_blocks(text: str) -> Iterator[str]:
    """Contents of fenced blocks (three backticks at the start of a line); one that never ends is none."""
    block: list[str] | None = None
    for line in unix(text).split("\n"):
        fence = line.strip().startswith("```")
        if block is None:
            block = [] if fence else None
        elif fence:
            yield "\n".join(block) + "\n"
            block = None
        else:
            block.append(line)
