"""RES-02 on issue 904: does it refuse exactly the configurations that Triton's own loader refuses?"""

from __future__ import annotations

from collections.abc import Iterable

from lethe.evidence.issue_904 import KERNEL, Row, refused
from lethe.verifier.executors.resources import KernelResource, exceeded


def objections(row: Row) -> list[str]:
    """The limits that a compiled configuration breaks, in the words of RES-02; empty when it accepts."""
    return exceeded(
        KernelResource(
            KERNEL, row["target"], row["num_warps"], row["num_stages"], row["registers"], row["spill_bytes"],
            row["stack_bytes"], row["shared_bytes"], row["tmem_columns"],
        )
    )  # fmt: skip


def agreement(rows: Iterable[Row]) -> dict[str, int]:
    """How RES-02 and the loader agree: configurations that both refuse, both accept, or only one refuses."""
    counts = {"both refuse": 0, "both accept": 0, "only the loader refuses": 0, "only RES-02 refuses": 0}
    for row in rows:
        if row.get("error"):
            continue
        name = {
            (True, True): "both refuse", (False, False): "both accept",
            (False, True): "only the loader refuses", (True, False): "only RES-02 refuses",
        }[bool(objections(row)), refused(row)]  # fmt: skip
        counts[name] += 1
    return counts
