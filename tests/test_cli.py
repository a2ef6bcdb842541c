"""The command line: exit codes, one sentence for each mistake, output that other programs can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lethe import cli, display
from lethe.audit.house import default_folder
from lethe.verifier.verdict import Finding, GateStatus, Status, Verdict
from tests.audit import fakes

REFERENCE = (
    "import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n\n\ndef get_inputs():\n    return []\n"
)
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def lethe(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command line in this process."""

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as e:
            cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(int(e.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reference file, with the fake judge in the judge's place."""
    fakes.stand_in(monkeypatch)
    path = tmp_path / "reference.py"
    path.write_text(REFERENCE)
    return path


def kernel(reference: Path, *says: str) -> Path:
    path = reference.with_name("kernel.py")
    path.write_text("\n".join(f"# {s}" for s in says) + "\nclass ModelNew:\n    pass\n")
    return path


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ((), 0),
        (("fail EXC-01",), 1),
        (("status run_failed",), 1),
        (("status crashed",), 1),
        (("status not_auditable",), 3),
        (("status executor_failed",), 3),
        (("status no_custom_kernel",), 3),
        (("status reference_failed",), 3),
    ],
    ids=lambda v: v[0].replace(" ", "-") if isinstance(v, tuple) and v else "clean" if v == () else str(v),
)
def test_verify_exit_code(lethe, reference: Path, says: tuple[str, ...], code: int) -> None:  # type: ignore[no-untyped-def]
    outcome = lethe("verify", kernel(reference, *says), "--reference", reference)
    assert outcome.code == code
    assert outcome.err == ""
    assert (
        outcome.out.strip()
        .splitlines()[-1]
        .startswith({0: "kernel keeps its contract", 1: "Contract violated", 3: "Could not be judged"}[code])
    )


def test_verify_prints_a_table_within_80_columns(lethe, reference: Path) -> None:  # type: ignore[no-untyped-def]
    outcome = lethe("verify", kernel(reference, "fail EXC-01"), "-r", reference)
    table = outcome.out.splitlines()
    assert max(len(line.rstrip()) for line in table[:-1]) <= 80
    (row,) = [line for line in table if line.strip().startswith("EXC-01")]
    assert row.split()[:4] == ["EXC-01", "FAIL", "1", "swallowed"]
    assert any(line.split()[:2] == ["CMP-01", "pass"] for line in table)


def test_verify_json_alone_on_stdout(lethe, reference: Path) -> None:  # type: ignore[no-untyped-def]
    candidate = kernel(reference, "fail EXC-01")
    outcome = lethe("verify", candidate, "-r", reference, "--json", "-", "--seed", 7)
    record = json.loads(outcome.out)
    verdict = Verdict.from_dict(record)
    assert verdict.failed == ("EXC-01",)
    assert verdict.options["seed"] == 7
    assert verdict.options["candidate_path"] == str(candidate)
    assert outcome.code == 1


def test_verify_runs_only_the_gates_asked_for(lethe, reference: Path) -> None:  # type: ignore[no-untyped-def]
    outcome = lethe(
        "verify", kernel(reference), "-r", reference, "--gate", "ord-02", "--gate", "CMP-01", "--json", "-"
    )
    assert [g["gate"] for g in json.loads(outcome.out)["gates"]] == ["CMP-01", "ORD-02"]


def test_verify_json_file_beside_the_table(lethe, reference: Path) -> None:  # type: ignore[no-untyped-def]
    target = reference.with_name("verdict.json")
    outcome = lethe("verify", kernel(reference), "-r", reference, "--json", target)
    assert "CMP-01" in outcome.out
    assert Verdict.from_dict(json.loads(target.read_text())).clean


@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        (b"class ModelNew(:\n", 1, "not valid Python"),
        (b"x = 1\n", 1, "defines no 'ModelNew'"),
        (b"", 1, "is empty"),
        (b"\x7fELF\x00\xff\xfe", 1, "UTF-8"),
        (b"class ModelNew:\r\n    pass\r\n", 0, "keeps its contract"),
    ],
    ids=["syntax-error", "no-entry", "empty", "binary", "windows-newlines"],
)
def test_a_malformed_candidate_is_a_verdict(  # type: ignore[no-untyped-def]
    lethe, reference: Path, content: bytes, code: int, sentence: str
) -> None:
    candidate = reference.with_name("kernel.py")
    candidate.write_bytes(content)
    outcome = lethe("verify", candidate, "-r", reference)
    assert (outcome.code, outcome.err) == (code, "")
    assert sentence in outcome.out.splitlines()[-1]


@pytest.mark.parametrize(
    "content", [b"x = 1\n", b"def f(:\n", b""], ids=["no-model", "syntax-error", "empty"]
)
def test_a_malformed_reference_cannot_be_judged(lethe, reference: Path, content: bytes) -> None:  # type: ignore[no-untyped-def]
    candidate = kernel(reference)
    reference.write_bytes(content)
    outcome = lethe("verify", candidate, "-r", reference)
    assert outcome.code == 3
    assert "reference_failed" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["verify"], "candidate"),
        (["verify", "KERNEL"], "--reference"),
        (["verify", "gone.py", "-r", "REFERENCE"], "no file gone.py"),
        (["verify", "KERNEL", "-r", "gone.py"], "no file gone.py"),
        (
            ["verify", "KERNEL", "-r", "REFERENCE", "--gate", "CMP-99"],
            "no gate 'CMP-99'; the gates are CMP-01",
        ),
        (["verify", "KERNEL", "-r", "REFERENCE", "--profile", "lax"], "unknown profile 'lax'"),
        (["verify", "KERNEL", "-r", "REFERENCE", "--device", "tpu"], "unknown device 'tpu'"),
        (["verify", "KERNEL", "-r", "REFERENCE", "--seed", "x"], "--seed"),
        (["verify", "KERNEL", "-r", "REFERENCE", "--json", "gone/out.json"], "cannot write gone/out.json"),
        (["frobnicate"], "frobnicate"),
        (["gates", "XYZ-01"], "no gate 'XYZ-01'"),
        (["replay", "gone.json"], "cannot read gone.json"),
        (["replay", "KERNEL"], "is not JSON"),
        (["audit", "--corpus", "drkern"], "no corpus 'drkern'"),
        (["audit", "--corpus", "dlblas"], "corpus dlblas needs path and problems"),
        (["audit", "--path", "x"], "need --corpus"),
        (["audit", "--config", "gone.yaml"], "cannot read gone.yaml"),
        (["audit", "--config", "KERNEL"], "has no corpora section"),
        (["audit", "--config", "KERNEL", "--corpus", "house"], "either --config"),
        (["audit", "--shard", "0/4"], "--shard '0/4' is not of the form i/n"),
        (["audit", "--shard", "5/4"], "--shard '5/4'"),
        (["audit", "--limit", "0"], "--limit"),
        (["audit", "--row", "softmax_row__z"], "did you mean softmax_row__"),
        (["audit", "--order", "random"], "unknown order 'random'"),
        (["audit", "--out", "KERNEL"], "is a file; give the folder for the JSON lines"),
        (["audit", "--seed", "-1"], "--seed"),
        (["verify", "KERNEL", "-r", "REFERENCE", "--seed", str(2**32)], "--seed"),
        (["show", "softmax_rov__a", "--corpus", "house"], "did you mean softmax_row__a"),
        (["merge", "gone.jsonl", "--out", "x.jsonl"], "cannot read gone.jsonl"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, list) else "",
)
def test_a_mistake_is_one_sentence_and_code_2(  # type: ignore[no-untyped-def]
    lethe, reference: Path, arguments: list[str], sentence: str
) -> None:
    known = {"KERNEL": kernel(reference), "REFERENCE": reference}
    outcome = lethe(*[known.get(a, a) for a in arguments])
    assert outcome.code == 2
    assert outcome.out == ""
    assert sentence in outcome.err and outcome.err.startswith("lethe: ")
    assert len(outcome.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"corpora": {"house": 5}}, "corpora.house is 5; give a path, a mapping or null"),
        ({"audit": 5}, "audit is 5; give a mapping"),
        ({"audit": {"limit": "five"}}, "audit.limit is 'five'; give a whole number from 1"),
        ({"audit": {"limit": True}}, "audit.limit is True"),
        ({"audit": {"gates": "EXC-01"}}, "audit.gates is 'EXC-01'; give a list"),
        ({"seed": "abc"}, "seed is 'abc'; give a whole number from 0"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_a_config_that_cannot_be_used_is_a_mistake_before_anything_is_judged(  # type: ignore[no-untyped-def]
    lethe, reference: Path, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    config = audit_config(tmp_path, **changes)
    outcome = lethe("audit", "--config", config, "--out", tmp_path / "audit")
    assert outcome.code == 2 and f"lethe: {config}: {sentence}" in outcome.err
    assert not (tmp_path / "audit").exists()


def test_a_verdict_that_cannot_be_kept_is_not_reached(  # type: ignore[no-untyped-def]
    lethe, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.os, "access", lambda path, mode: mode != os.W_OK)
    for target in (tmp_path / "new.json", reference):
        outcome = lethe("verify", kernel(reference), "-r", reference, "--json", target)
        assert outcome.code == 2 and f"cannot write {target}: Permission denied" in outcome.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_fault_of_lethe() -> None:
    command = f"{sys.executable} -m lethe gates > /dev/full"
    done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr == "lethe: No space left on device; what was not written is lost\n"


def test_an_interruption_is_said(lethe, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(display, "show_gates", interrupt)
    outcome = lethe("gates")
    assert (outcome.code, outcome.err) == (130, "lethe: interrupted\n")


def test_a_finding_that_the_table_cuts_is_repeated_in_full(  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = Finding("one_hot", "B", "value", "out[0, 3] is 1, expected 2: " + "x" * 90, metric=1.0, bound=0.5)
    short = Finding("nan", "T", "swallowed", "out is 0")
    gates = (
        fakes.gate("CMP-01", GateStatus.FAIL, long),
        fakes.gate("EXC-01", GateStatus.FAIL, short),
        fakes.gate("ORD-02", GateStatus.PASS),
    )
    display.show_verdict(Verdict("p", "k", "derived", Status.JUDGED, "", gates=gates), cli.console_for())
    shown = capsys.readouterr().out.splitlines()
    assert f"In full, CMP-01: one_hot: {long.message}" in shown
    assert sum("EXC-01" in text for text in shown) == 2  # the table and the sentence


def test_a_device_that_is_not_there_is_a_mistake(lethe, reference: Path) -> None:  # type: ignore[no-untyped-def]
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    outcome = lethe("verify", kernel(reference), "-r", reference, "--device", "cuda")
    assert outcome.code == 2 and "no CUDA device" in outcome.err


def test_a_fault_of_lethe_itself_is_not_a_violation(  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "show_gates", lambda *a: 1 / 0)
    with pytest.raises(SystemExit) as e:
        cli.main(["gates"])
    assert e.value.code == 3
    assert "a fault of lethe itself" in capsys.readouterr().err


def test_gates_lists_the_twelve(lethe) -> None:  # type: ignore[no-untyped-def]
    from lethe.verifier.catalog import IDS

    outcome = lethe("gates")
    assert [
        line.split()[0] for line in outcome.out.splitlines() if line.strip()[:3] in {i[:3] for i in IDS}
    ] == list(IDS)
    assert max(len(line.rstrip()) for line in outcome.out.splitlines()) <= 80
    contracts = json.loads(lethe("gates", "--json").out)
    assert [c["identifier"] for c in contracts] == list(IDS)
    assert "crosswalk" in lethe("gates", "prc-02").out


def test_replay_says_same_and_names_the_first_difference(lethe, reference: Path) -> None:  # type: ignore[no-untyped-def]
    record = reference.with_name("verdict.json")
    lethe("verify", kernel(reference, "fail EXC-01"), "-r", reference, "--json", record)
    outcome = lethe("replay", record)
    assert outcome.code == 0 and outcome.out.startswith("Same verdict")
    changed = json.loads(record.read_text())
    changed["gates"][1]["findings"][0]["metric"] = 4.0
    record.write_text(json.dumps(changed))
    outcome = lethe("replay", record)
    assert outcome.code == 1
    assert "gates[EXC-01].findings[0].metric: recorded 4.0, now 3.0" in outcome.out


def test_replay_refuses_a_changed_source(lethe, reference: Path) -> None:  # type: ignore[no-untyped-def]
    record = reference.with_name("verdict.json")
    candidate = kernel(reference)
    lethe("verify", candidate, "-r", reference, "--json", record)
    candidate.write_text(candidate.read_text() + "# edited\n")
    outcome = lethe("replay", record)
    assert outcome.code == 2
    assert "has changed since the verdict was recorded" in outcome.err


def test_replay_finds_moved_sources_by_option(lethe, reference: Path) -> None:  # type: ignore[no-untyped-def]
    record = reference.with_name("verdict.json")
    candidate = kernel(reference)
    lethe("verify", candidate, "-r", reference, "--json", record)
    moved = candidate.rename(candidate.with_name("moved.py"))
    outcome = lethe("replay", record)
    assert outcome.code == 2 and "give it with --candidate" in outcome.err
    assert lethe("replay", record, "--candidate", moved).code == 0


def audit_config(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "config.yaml"
    config = {
        "device": "cpu",
        "profile": "quick",
        "seed": 3,
        "corpora": {"house": str(default_folder()), "dlblas": None},
    }
    path.write_text(json.dumps({**config, **changes}))
    return path


def test_audit_resumes_merges_and_shows(lethe, reference: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config, out = audit_config(tmp_path, audit={"limit": 6, "gates": None}), tmp_path / "audit"
    for shard in ("1/2", "2/2"):
        outcome = lethe("audit", "--config", config, "--out", out, "--shard", shard, "--workers", 0)
        assert outcome.code == 0
        assert "note: corpus dlblas is skipped" in outcome.err
    outcome = lethe("audit", "--config", config, "--out", out, "--shard", "2/2", "--workers", 0)
    assert "(0 now)" in outcome.out
    shards = sorted(out.glob("house.*-of-2.jsonl"))
    assert len(shards) == 2
    merged = tmp_path / "house.jsonl"
    assert lethe("merge", *shards, "--out", merged).out == f"{merged}: 6 rows of 2 files\n"
    lines = [json.loads(text) for text in merged.read_text().splitlines()]
    assert [line["order"] for line in lines] == list(range(6))
    assert lines[0]["settings"] == {
        "profile": "derived",
        "device": "cpu",
        "seed": 3,
        "gates": None,
        "quick": True,
    }
    shown = lethe("show", lines[0]["id"], "--config", config, "--out", out)
    assert "keeps its contract" in shown.out and "MIT" in shown.out
    as_json = json.loads(
        lethe("show", lines[0]["id"], "--config", config, "--out", out, "--json", "--source").out
    )
    assert as_json["line"] == lines[0] and "ModelNew" in as_json["candidate"]


def test_audit_of_one_row_exits_like_verify_and_compares_with_the_record(  # type: ignore[no-untyped-def]
    lethe, reference: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "problems").mkdir(parents=True)
    (tmp_path / "runs" / "problems" / "softmax.py").write_text(REFERENCE)
    (tmp_path / "runs" / "softmax__bad.py").write_text("# fail EXC-01\nclass ModelNew:\n    pass\n")
    given = ["--corpus", "directory", "--path", tmp_path / "runs", "--out", tmp_path / "audit"]
    outcome = lethe("audit", *given, "--row", "softmax__bad")
    assert outcome.code == 1 and "recorded" not in outcome.err
    judged = lethe("audit", *given, "--workers", 0)
    assert judged.code == 0
    assert "directory: 0 keep their contract, 1 break it, 0 undecided" in judged.out
    none = lethe("audit", *given, "--accepted")
    assert "the options leave no row" in none.out and "0 keep" not in none.out
    assert "Same as recorded" in lethe("audit", *given, "--row", "softmax__bad").err
    outcome = lethe("audit", *given, "--row", "softmax__bad", "--seed", 1)
    assert "Not as recorded" in outcome.err and "settings.seed: recorded 0, now 1" in outcome.err


def test_show_of_a_row_that_was_not_judged(lethe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    outcome = lethe("show", "softmax_row__a", "--corpus", "house", "--out", tmp_path)
    assert outcome.code == 0
    command = f"lethe audit --row softmax_row__a --corpus house --out {tmp_path}"
    assert "Not judged yet" in outcome.out and command in outcome.out.replace("\n", "")


def test_the_command_that_show_prints_can_be_typed(lethe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "sum.py").write_text(REFERENCE)
    (tmp_path / "sum__try é 2.py").write_text("class ModelNew:\n    pass\n")
    shown = lethe("show", "sum__try é 2", "--corpus", "directory", "--path", tmp_path)
    assert "lethe audit --row 'sum__try é 2' --corpus directory" in shown.out


def test_a_row_of_a_public_corpus_says_which_options_find_it(lethe) -> None:  # type: ignore[no-untyped-def]
    outcome = lethe("audit", "--row", "dlblas-oe-L1_1-00000000")
    assert outcome.code == 2 and "such a row needs --corpus dlblas --path ROWS" in outcome.err


PUBLISHED = (
    {"id": "179", "status": "gated", "op_class": "scan", "final_speedup": 2.0, "output_aliasing": False,
     "gates": {"CMP-01": {"status": "fail", "reason": "max_err=1.1e+22 > atol=6.1e+21", "skipped": 0}}},
    {"id": "518", "status": "not_auditable", "op_class": "reduction", "final_speedup": 1.5,
     "error": "no floating-point tensor input"},
)  # fmt: skip


def test_show_knows_the_published_rows_without_their_corpus(lethe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in PUBLISHED))
    given = ["--corpus", "house", "--published", rows, "--out", tmp_path]
    found = lethe("show", "179", *given)
    assert found.code == 0
    assert "scan, gated, counted as a violation" in found.out and "CMP-01 fail" in found.out
    assert "outside the published denominator" in lethe("show", "518", *given).out
    assert json.loads(lethe("show", "179", *given, "--json").out)["published"] == PUBLISHED[0]
    unknown = lethe("show", "1", *given)
    assert unknown.code == 2 and "corpus house has no row '1'" in unknown.err
    assert "need --published FILE" in lethe("show", "179", "--corpus", "house", "--out", tmp_path).err


def test_show_knows_a_recorded_verdict_without_its_corpus(  # type: ignore[no-untyped-def]
    lethe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lethe import provenance
    from lethe.audit import measured
    from tests.paper.lines import line

    row = {**line(3), "id": "dlblas-oe-L1_1-0", "corpus": "dlblas"}
    file = tmp_path / "h200" / "dlblas_accepted_audit.json"
    on = provenance.Device("NVIDIA H200", "cuda")
    provenance.record(
        file, experiment="dlblas_accepted_audit", samples=[row], parameters={}, script=__file__, on=on
    )
    paths = measured.recorded_audits(tmp_path)
    monkeypatch.setattr(measured, "recorded_audits", lambda: paths)
    found = lethe("show", "dlblas-oe-L1_1-0", "--corpus", "house", "--out", tmp_path)
    assert found.code == 0
    assert "of dlblas, recorded" in found.out and "NVIDIA H200" in found.out
    assert "The sources are not at hand: corpus house has no row" in found.out


def test_the_command_line_starts_without_torch() -> None:
    code = (
        "import sys\n"
        "from lethe import cli\n"
        "try:\n    cli.main(['gates', '--json'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'triton', 'pandas', 'numpy', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY, capture_output=True)


def test_python_m_lethe_and_a_closed_pipe() -> None:
    command = f"{sys.executable} -m lethe gates | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_report_names_gate_case_metric_and_bound() -> None:
    breach = Finding("large", "B", "value", "out[3] is 1, expected 2", metric=1.0, bound=0.25)
    verdict = Verdict(
        "p", "k", "derived", Status.JUDGED, "", gates=(fakes.gate("CMP-01", GateStatus.FAIL, *[breach] * 5),)
    )
    report = display.report(verdict)
    assert "CMP-01 5 findings in 1 case" in report
    assert "large: out[3] is 1, expected 2 [1 > 0.25, 4 times]" in report
    assert "and 2 more" in report


MAXIMUM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.max(dim=1).values


rows = 8
width = 33


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
"""
HONEST = MAXIMUM.split("rows = 8")[0].replace("Model(", "ModelNew(")
DROPS_NAN = HONEST.replace("x.max(", "torch.nan_to_num(x, nan=-1e30).max(")


@pytest.mark.parametrize(
    ("source", "code", "gate"),
    [
        pytest.param(HONEST, 0, "pass", marks=pytest.mark.slow, id="honest"),
        pytest.param(DROPS_NAN, 1, "FAIL", id="drops-nan"),
    ],
)
def test_the_real_judge_and_its_replay(  # type: ignore[no-untyped-def]
    lethe, tmp_path: Path, source: str, code: int, gate: str
) -> None:
    (tmp_path / "reference.py").write_text(MAXIMUM)
    (tmp_path / "kernel.py").write_text(source)
    given = ["--device", "cpu", "--quick", "--gate", "EXC-01", "--gate", "RES-01"]
    files = [tmp_path / "kernel.py", "-r", tmp_path / "reference.py", "--json", tmp_path / "v.json"]
    outcome = lethe("verify", *files, *given)
    assert outcome.code == code, outcome.out
    (row,) = [line for line in outcome.out.splitlines() if line.strip().startswith("EXC-01")]
    assert row.split()[1] == gate
    outcome = lethe("replay", tmp_path / "v.json")
    assert outcome.code == 0, outcome.out
