"""The published rows: definitions, recomputation, and rows beside ours."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lethe.audit import published_check, report
from lethe.audit.corpora import CorpusError
from lethe.audit.published_rows import (
    ROWS,
    channels,
    denominator,
    in_floor,
    read,
    spot_check_rows,
    status_of,
    violated,
)

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "published" / "published_audit_rows.jsonl.gz"
needs_rows = pytest.mark.skipif(
    not SHARED.is_file(), reason="needs the published rows, which are not part of this repository"
)


def row(
    row_id: str = "1", status: str = "gated", speedup: float | None = 1.5, **gates: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {"id": row_id, "op_class": "norm", "status": status, "final_speedup": speedup}
    if status == "gated":
        made["gates"] = {
            g.replace("_", "-"): {"status": s[0], "reason": s[1], "skipped": 0} for g, s in gates.items()
        }
        made["output_aliasing"] = False
    else:
        made["error"] = str(gates.get("error", ""))
    return made


PASS = ("pass", "")
CASES = {
    "clean": (row(CMP_01=PASS), set(), False),
    "swallows": (row(EXC_01=("fail", "nan")), {"EXC-01"}, True),
    "value": (row(CMP_01=("fail", "off")), set(), True),
    "flushes": (row(EXC_02=("fail", "0")), {"EXC-02"}, True),
    "shape": (row(CMP_03=("fail", "shape=(3,): exception ValueError")), {"shape"}, True),
    "shape value": (row(CMP_03=("fail", "shape=(3,): max_err=1")), set(), True),
    "crash without a fail": (row(CMP_01=("error", "CUDA error: an illegal memory access")), {"crash"}, True),
    "aliases": ({**row(CMP_01=PASS), "output_aliasing": True}, {"aliasing"}, False),
    "raises": (row(status="cand_native_fail", error="ValueError: no"), {"pre_gate"}, True),
}


@pytest.mark.parametrize("name", CASES)
def test_channels_and_violations(name: str) -> None:
    case, spoken, violates = CASES[name]
    assert channels(case) == spoken
    assert violated(case) is violates
    assert in_floor(case) is bool(spoken & {"EXC-01", "crash", "aliasing", "pre_gate"})
    assert in_floor(case, ["shape", "EXC-02"]) is bool(spoken)


def test_the_denominator_leaves_out_what_speaks_of_no_kernel() -> None:
    rows = [
        row("kept", CMP_01=PASS),
        row("timed out", "sandbox_timeout"),
        row("rejected by its corpus", CMP_01=PASS, speedup=0.0),
        row("rejected too", CMP_01=PASS, speedup=None),
        row("no reference", "ref_broken"),
        row("no float", "not_auditable"),
        row("tool chain", "cand_native_fail", error="CompilationError: at 3:4"),
    ]
    assert [r["id"] for r in denominator(rows)] == ["kept", "timed out"]
    assert [status_of(r) for r in rows[1:2] + rows[4:]] == [
        "timed_out",
        "reference_failed",
        "not_auditable",
        "compile_failed",
    ]


def test_rows_take_the_form_of_our_own_spot_check_table() -> None:
    rows = [CASES["value"][0], CASES["raises"][0], CASES["clean"][0]]
    made = list(spot_check_rows(rows))
    ours = report.spot_check_rows(report.frame([]))
    assert all(list(r) == list(ours.columns) for r in made)
    assert all(isinstance(v, str) for r in made for v in r.values())
    assert [(r["status"], r["failed"], r["finding"]) for r in made] == [
        ("judged", "CMP-01", "off"),
        ("run_failed", "", "ValueError: no"),
        ("judged", "", ""),
    ]


def test_reading(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    with pytest.raises(CorpusError, match="get them with: lethe fetch published"):
        read(path)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({**row(CMP_01=PASS), "id": i}) + "\n" for i in (7, 8))
    assert [r["id"] for r in read(path)] == ["7", "8"]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row(CMP_01=PASS)) + "\n" for _ in range(2))
    with pytest.raises(CorpusError, match="the row id '1' twice"):
        read(path)


@pytest.mark.parametrize(
    ("printed", "recomputed", "follows"),
    [
        (0.6213, 0.62130, True),
        (0.6213, 0.62136, False),
        (0.606, 0.6064, True),
        (608, 608, True),
        (608, 609, False),
        (1, None, None),
    ],
)
def test_a_number_follows_to_the_digits_printed(printed: Any, recomputed: Any, follows: bool | None) -> None:
    assert published_check.Check("k", printed, recomputed).follows is follows


@needs_rows
def test_every_published_audit_number_but_one_follows_from_its_rows() -> None:
    rows = read(SHARED)
    assert len(rows) == ROWS
    found = published_check.checks(rows, report.published())
    assert [c.key for c in published_check.broken(found)] == ["audit.spot_check_ids.518"]
    (example,) = published_check.broken(found)
    assert "not_auditable: no floating-point tensor input" in example.note
    assert sum(c.follows is True for c in found) == 97
    kept = Path(published_check.__file__).parents[2] / "data" / "published" / "recomputed.json"
    assert kept.read_text() == published_check.as_json(rows, found)
    assert {c.key for c in found if c.follows is None} >= {"audit.trajectories", "second_stack.rate"}


@needs_rows
def test_a_changed_row_is_noticed() -> None:
    rows = copy.deepcopy(read(SHARED))
    victim = next(r for r in denominator(rows) if not channels(r) and not violated(r))
    victim["gates"]["EXC-01"] = {"status": "fail", "reason": "", "skipped": 0}
    keys = {c.key for c in published_check.broken(published_check.checks(rows, report.published()))}
    assert {"audit.any_violation", "audit.tolerance_free", "audit.gates.EXC-01.fail"} <= keys


@needs_rows
def test_the_command_lists_what_does_not_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert published_check.main([str(SHARED)]) == 0
    text = capsys.readouterr().out
    assert "DOES NOT FOLLOW  audit.spot_check_ids.518: printed True, rows give False" in text
    assert "97 follow, 1 do not, 16 cannot be told from the rows" in text
