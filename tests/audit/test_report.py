"""Tables from lines, on a hand-made audit whose numbers can be counted by eye."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lethe.audit import lines, report
from lethe.audit.floor import VARIANTS, channels, in_floor
from lethe.audit.statistics import wilson
from lethe.verifier.verdict import Finding, GateResult, GateStatus, Status, Verdict
from tests.audit import fakes


def found(mechanism: str, channel: str = "T", **extra: Any) -> Finding:
    return Finding("case", channel, mechanism, f"{mechanism} was seen", extra=extra)


def fail(gate: str, *findings: Finding) -> GateResult:
    return fakes.gate(gate, GateStatus.FAIL, *findings, channel=findings[0].channel)


PASS = tuple(fakes.gate(g, GateStatus.PASS) for g in ("CMP-01", "EXC-01", "ORD-02"))

AUDIT: dict[str, tuple[dict[str, Any], tuple[GateResult, ...], dict[str, Any]]] = {
    "clean": ({}, PASS, {}),
    "swallows": ({}, (fail("EXC-01", found("swallowed")),), {}),
    "maxnum": ({}, (fail("EXC-01", found("swallowed", maxnum=True), found("swallowed", maxnum=True)),), {}),
    "both": ({}, (fail("EXC-01", found("swallowed", maxnum=True), found("minted")),), {}),
    "reassociates": ({}, (fail("EXC-01", found("nan_for_inf", reassociation=True)),), {}),
    "inaccurate": ({"family": "norm"}, (fail("CMP-01", found("value", "B")),), {}),
    "aliases": ({"family": "norm"}, (fail("ORD-02", found("aliasing")),), {}),
    "refuses": ({"family": "norm"}, (fail("CMP-03", found("rejects")),), {}),
    "flushes": ({"family": "norm"}, (fail("EXC-02", found("flushed")),), {}),
    "overruns": ({"family": "norm"}, PASS, {"integrity": (found("out_of_bounds_read"),)}),
    "crashes": ({}, (), {"status": Status.CRASHED}),
    "raises": ({}, (), {"status": Status.RUN_FAILED}),
    "no-kernel": ({}, (), {"status": Status.NO_CUSTOM_KERNEL}),
    "no-reference": ({}, (), {"status": Status.REFERENCE_FAILED}),
    "times-out": ({}, (), {"status": Status.TIMED_OUT}),
    "rejected-by-its-corpus": ({"accepted": False}, (fail("EXC-01", found("minted")),), {}),
}


def audit_lines(audit: dict[str, Any] = AUDIT) -> list[lines.Line]:
    made = []
    for name, (row_fields, gates, verdict_fields) in audit.items():
        row = fakes.row(name, **row_fields)
        verdict = Verdict(
            **{
                "problem": "p",
                "candidate": name,
                "profile": "derived",
                "status": Status.JUDGED,
                "message": f"{name} ended",
                "gates": gates,
                **verdict_fields,
            }
        )
        made.append(lines.make(row, verdict, {}, 1.5))
    return made


@pytest.fixture(scope="module")
def df():  # type: ignore[no-untyped-def]
    return report.frame(audit_lines())


def test_load_reads_files_and_gives_the_same_frame(tmp_path: Path, df) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "audit.jsonl"
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in audit_lines()))
    loaded = report.load(path)
    assert sorted(loaded["id"]) == sorted(df["id"])
    assert report.gate_table(loaded).equals(report.gate_table(df))


def test_funnel(df) -> None:  # type: ignore[no-untyped-def]
    funnel = report.funnel(df)
    assert list(funnel["rows"]) == [16, 15, 14, 13, 12, 11, 6]
    assert list(funnel["of"]) == [16, 16, 15, 14, 13, 12, 12]
    assert funnel["rate"].iloc[-1] == pytest.approx(0.5)


def test_gate_table(df) -> None:  # type: ignore[no-untyped-def]
    table = report.gate_table(df).set_index("gate")
    assert len(table) == 12
    exc = table.loc["EXC-01"]
    assert (exc["pass"], exc["fail"], exc["applicable"]) == (2, 4, 6)
    assert (exc["low"], exc["high"]) == pytest.approx(wilson(4, 6))
    assert not table.loc["ORD-03", "load_bearing"] and table.loc["CMP-01", "load_bearing"]
    assert math.isnan(table.loc["RES-02", "rate"])


def test_class_table(df) -> None:  # type: ignore[no-untyped-def]
    table = report.class_table(df).set_index("family")
    assert list(table.index) == ["norm", "softmax"]
    assert tuple(table.loc["norm", ["rows", "violated", "floor"]]) == (5, 5, 1)
    assert tuple(table.loc["softmax", ["rows", "violated", "floor"]]) == (7, 6, 5)


def test_exc01_mechanisms(df) -> None:  # type: ignore[no-untyped-def]
    table = report.exc01_mechanisms(df).set_index("mechanism")
    assert tuple(table.loc["swallowed", ["rows", "only"]]) == (1, 1)
    assert tuple(table.loc["swallowed (IEEE maxNum)", ["rows", "only"]]) == (2, 1)
    assert tuple(table.loc["minted", ["rows", "only"]]) == (1, 0)
    assert tuple(table.loc["reassociation", ["rows", "only"]]) == (1, 1)


@pytest.mark.parametrize(
    ("variant", "rows"),
    [
        ("strict", {"swallows", "maxnum", "both", "aliases", "crashes", "raises"}),
        ("+ shape rejection", {"swallows", "maxnum", "both", "aliases", "crashes", "raises", "refuses"}),
        ("+ subnormals (EXC-02)", {"swallows", "maxnum", "both", "aliases", "crashes", "raises", "flushes"}),
        ("- IEEE maxNum semantics", {"swallows", "both", "aliases", "crashes", "raises"}),
        ("+ integrity probes", {"swallows", "maxnum", "both", "aliases", "crashes", "raises", "overruns"}),
    ],
)
def test_floor_variant_holds_exactly_these_rows(df, variant: str, rows: set[str]) -> None:  # type: ignore[no-untyped-def]
    base = report.denominator(df)
    assert {r for r, c in zip(base["id"], base["channels"], strict=True) if in_floor(c, variant)} == rows


def test_floor_table_counts_against_strict(df) -> None:  # type: ignore[no-untyped-def]
    table = report.floor(df).set_index("variant")
    assert list(table.index) == list(VARIANTS)
    assert table["change"].to_dict() == {
        "strict": 0,
        "+ shape rejection": 1,
        "+ subnormals (EXC-02)": 1,
        "- IEEE maxNum semantics": -1,
        "+ missing gradients": 0,
        "+ missing gradients - detached launches": 0,
        "+ integrity probes": 1,
        "+ all of these, maxNum kept": 3,
    }
    with pytest.raises(KeyError):
        report.floor(df, ["+ everything"])


LABELLED: dict[str, Any] = {
    "distributes": ({}, (replace(PASS[1], measured={"inf_by_reassociation": 2.0}),), {}),
    "adds-up": ({}, (replace(PASS[1], measured={"inf_by_reassociation": 0.0}),), {}),
    "drops": ({}, (fail("EXC-01", found("inf_for_nan", maxnum=True)),), {}),
    "mints": ({}, (fail("EXC-01", found("minted", maxnum=True)),), {}),
    "loses": ({}, (fail("CMP-02", found("missing_gradient", detached=True), found("missing_gradient")),), {}),
    "detached": ({}, (fail("CMP-02", found("missing_gradient", detached=True)),), {}),
    "strided": ({}, (fail("RES-01", found("layout")),), {}),
}


def test_infinities_by_another_association_are_a_column_and_no_charge() -> None:
    labelled = report.frame(audit_lines(LABELLED))
    table = report.exc01_mechanisms(labelled).set_index("mechanism")
    assert tuple(table.loc["reassociation", ["rows", "only"]]) == (1, 1)
    assert set(labelled[labelled["reassociated"]]["id"]) == {"distributes"}
    assert not labelled.set_index("id").loc["distributes", "violated"]


def test_the_maxnum_label_is_told_of_every_mechanism() -> None:
    table = report.exc01_mechanisms(report.frame(audit_lines(LABELLED))).set_index("mechanism")
    for name in ("inf_for_nan (IEEE maxNum)", "minted (IEEE maxNum)"):
        assert tuple(table.loc[name, ["rows", "only"]]) == (1, 1)
        assert "maxima keep NaN" in table.loc[name, "meaning"]


@pytest.mark.parametrize(
    ("variant", "rows"),
    [
        ("strict", {"drops", "mints"}),
        ("- IEEE maxNum semantics", set()),
        ("+ missing gradients", {"drops", "mints", "loses", "detached"}),
        ("+ missing gradients - detached launches", {"drops", "mints", "loses"}),
    ],
)
@pytest.mark.parametrize("kept", [lambda line: line, lines.compact], ids=["whole", "compact"])
def test_gradients_that_do_not_arrive_join_the_floor_in_variants_only(variant, rows, kept) -> None:  # type: ignore[no-untyped-def]
    base = report.frame([kept(line) for line in audit_lines(LABELLED)])
    assert {r for r, c in zip(base["id"], base["channels"], strict=True) if in_floor(c, variant)} == rows


@pytest.mark.parametrize(
    ("gate", "mechanism", "channel"),
    [
        ("CMP-01", "shape", "pre_gate"),
        ("CMP-01", "crashed", "crash"),
        ("CMP-03", "structure", "shape"),
        ("CMP-03", "out_of_bounds_write", "integrity"),
        ("ORD-02", "input_overwritten", "ORD-02"),
        ("EXC-01", "raises", None),
        ("ORD-02", "raises", None),
        ("RES-01", "dtype", None),
        ("RES-01", "layout", None),
        ("CMP-02", "missing_gradient", "gradient"),
        ("CMP-02", "shape", None),
    ],
)
def test_channel_of_a_finding(gate: str, mechanism: str, channel: str | None) -> None:
    spoken = channels("judged", [{"gate": gate, "mechanism": mechanism, "channel": "T"}], [])
    assert set(spoken) == ({channel} if channel else set())


def test_no_row_is_pre_gate_at_sizes_that_are_not_its_problems() -> None:
    found = [
        {"gate": "CMP-01", "mechanism": "shape", "channel": "T"},
        {"gate": "EXC-01", "mechanism": "minted", "channel": "T"},
    ]
    assert set(channels("judged", found, [])) == {"pre_gate", "EXC-01"}
    assert set(channels("judged", found, [], substituted=True)) == {"EXC-01"}
    assert channels("run_failed", [], []) == {"pre_gate": ""}
    assert channels("run_failed", [], [], substituted=True) == {}


@pytest.mark.parametrize(("sizes", "floor"), [({}, {"pre_gate"}), ({"width": 17}, set())])
def test_a_row_is_read_with_the_sizes_it_was_judged_at(sizes: dict[str, int], floor: set[str]) -> None:
    gates = (fail("CMP-01", found("shape")),)
    verdict = Verdict("p", "k", "derived", Status.JUDGED, "", gates, sizes=sizes)
    row = report.frame([lines.make(fakes.row("k"), verdict, {}, 1.5)]).iloc[0]
    assert set(row["channels"]) == floor


def test_a_band_finding_is_never_in_the_floor() -> None:
    for gate in ("CMP-01", "EXC-01", "ORD-02", "CMP-03"):
        assert channels("judged", [{"gate": gate, "mechanism": "value", "channel": "B"}], []) == {}


def test_spot_check_rows_are_text(df) -> None:  # type: ignore[no-untyped-def]
    rows = report.spot_check_rows(df).set_index("id")
    assert rows.loc["swallows", "failed"] == "EXC-01"
    assert rows.loc["swallows", "finding"] == "swallowed was seen"
    assert rows.loc["crashes", "finding"] == "crashes ended"
    assert all(isinstance(v, str) for v in rows.to_numpy().ravel())


def test_a_program_without_a_kernel_of_its_own_is_outside_every_rate() -> None:
    convicted = fakes.row("r", "# fail EXC-01")
    verdict = fakes.FakeJudge(fakes.SETTINGS).verify(convicted.problem, convicted.candidate)
    made = lines.make(convicted, verdict, {}, 1.0)
    (counted, torch_only) = report.frame(
        [{**made, "language": language} for language in ("cuda_inline", "torch_only")]
    ).to_dict("records")
    assert counted["status"] == "judged" and counted["violated"] and counted["in_denominator"]
    assert torch_only["status"] == "no_custom_kernel"
    assert not torch_only["violated"] and not torch_only["in_denominator"]


def test_tables_of_nothing_are_empty_not_errors() -> None:
    empty = report.frame([])
    for table in (
        report.funnel,
        report.gate_table,
        report.class_table,
        report.exc01_mechanisms,
        report.floor,
    ):
        table(empty)
    assert report.spot_check_rows(empty).empty and report.status_table(empty).empty


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (1043, 2638, 0.3769, 0.4142)],
)
def test_wilson_interval(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_wilson_of_nothing_and_of_nonsense() -> None:
    assert all(math.isnan(v) for v in wilson(0, 0))
    with pytest.raises(ValueError):
        wilson(3, 2)


def test_published_figures_are_at_hand() -> None:
    assert report.published()["audit"]["accepted_denominator"] == 2638
