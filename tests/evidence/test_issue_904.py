"""Issue 904: what counts as a trap, what the loader says, and that RES-02 is compared with it fairly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lethe.evidence import issue_904, issue_904_res02
from lethe.kernels.mamba3 import official
from lethe.provenance import ROOT, load

TRAP = """
.visible .entry k(.param .u64 .ptr .global .align 1 k_param_0)
.reqntid 128
{
$L__func_begin0:
    .loc 1 205 0
// %bb.0:
    trap;
    ret;
$L__func_end0:
}
"""


def row(**changed):
    r = {
        "triton": "3.7.1", "target": "sm_100", "num_warps": 4, "num_stages": 1, "maxnreg": None,
        "tmem_columns": 544, "shared_bytes": 0, "registers": 4, "stack_bytes": 0, "spill_bytes": 0,
        "load": "out of resource: tensor memory",
    }  # fmt: skip
    return r | changed


def test_a_kernel_that_is_one_trap():
    assert issue_904.is_trap(TRAP)
    assert not issue_904.is_trap(TRAP.replace("    trap;", "    mov.u32 %r1, %tid.x;\n    trap;"))


def test_agreement_counts_every_way_to_disagree():
    rows = [
        row(),
        row(load="loads", tmem_columns=512),
        row(tmem_columns=512),
        row(load="loads"),
        row(error="the compiler failed"),
    ]
    assert set(issue_904_res02.agreement(rows).values()) == {1}


def test_the_record_is_sorted_by_version_as_numbers(tmp_path):
    files = []
    for version in ("3.10.0", "3.9.0"):
        files.append(tmp_path / f"{version}.jsonl")
        files[-1].write_text(json.dumps(row(triton=version)) + "\n")
    written = load(issue_904.record(files, tmp_path))
    assert [r["triton"] for r in written.samples] == ["3.9.0", "3.10.0"]
    assert written.parameters["sha256"] == official.SHA256


def test_missing_sources_are_named(monkeypatch, tmp_path):
    monkeypatch.delenv(official.VARIABLE, raising=False)
    with pytest.raises(official.OfficialMissing, match=official.VARIABLE):
        official.locate()
    with pytest.raises(official.OfficialMissing, match="neither a source archive nor"):
        official.locate(tmp_path)
    wrong = tmp_path / official.ARCHIVE
    wrong.write_bytes(b"something else")
    with pytest.raises(official.OfficialMissing, match="sha256 differs"):
        official.unpack(official.locate(tmp_path), tmp_path / "unpacked")


LOADER = """
import sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
sys.path.insert(0, "@FOLDER@")
from kernel import copy
from lethe.evidence.issue_904 import activate, loading

activate(100)
source = ASTSource(copy, {"x": "*fp32", "y": "*fp32"}, {}, {})
kernel = triton.compile(source, target=GPUTarget("cuda", 100, 32))
print(loading(kernel))
kernel.module, kernel.metadata = None, kernel.metadata._replace(tmem_size=544)
print(loading(kernel))
"""
KERNEL = """
import triton, triton.language as tl
@triton.jit
def copy(x, y):
    tl.store(y, tl.load(x))
"""


@pytest.mark.compiles
def test_the_loader_is_tritons_own(tmp_path):
    """A kernel that fits loads; the same with 544 columns in its metadata is refused, in Triton's words."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    done = subprocess.run(
        [sys.executable, "-c", LOADER.replace("@FOLDER@", str(tmp_path))], capture_output=True, text=True,
        cwd=ROOT, check=True,
    )  # fmt: skip
    first, second = done.stdout.splitlines()[:2]
    assert first == "loads"
    assert "tensor memory" in second and "544" in second and "512" in second


def test_the_committed_record_says_what_the_chapter_says():
    """The record's own numbers: RES-02 and the loader never disagree, and what is refused exceeds a limit."""
    file = ROOT / "data" / "measured" / "cpu" / "issue_904.json"
    if not file.is_file():
        pytest.skip("issue 904 is not recorded in this checkout")
    rows = load(file).samples
    found = issue_904_res02.agreement(rows)
    assert found["only the loader refuses"] == found["only RES-02 refuses"] == 0 < found["both refuse"]
    for r in (r for r in rows if "load" in r):
        columns, shared = r["tmem_columns"] > issue_904.COLUMNS, r["shared_bytes"] > issue_904.SHARED_BYTES
        assert ("tensor memory" in r["load"], "shared memory" in r["load"]) == (columns, shared), r
        assert issue_904.refused(r) == (columns or shared)
    assert not any(r["tmem_columns"] for r in rows if r["target"] == "sm_90")


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.timeout(1200)
def test_the_official_launcher_builds_the_arguments(tmp_path):
    """RES-02's own compiler, in an interpreting process, finds the columns that the record has."""
    try:
        root = official.unpack(official.locate(), tmp_path)
    except official.OfficialMissing as missing:
        pytest.skip(str(missing))
    code = f"""
import importlib
from pathlib import Path
from lethe.verifier.executors import library, resources
library.use_interpreter()
from lethe.evidence import issue_904
from lethe.kernels.mamba3 import official
official.install(Path({str(root)!r}))
module = importlib.import_module("mamba_ssm.ops.triton.mamba3.mamba3_siso_bwd")
args, constants = issue_904.launch_arguments(module)
args = tuple(resources.Pointer(a.dtype, 0) if hasattr(a, "data_ptr") else a for a in args)
options = {{**constants, "num_warps": 4, "num_stages": 2}}
record = resources.LaunchRecord(getattr(module, issue_904.KERNEL).fn, args, options, (1,))
(row,) = resources.compile_only([record], "sm_100", seconds=900)
print(row.tmem_columns, bool(resources.exceeded(row)), row.error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(ROOT), check=True
    )
    columns, refused, error = done.stdout.split()
    assert error == "None" and int(columns) > issue_904.COLUMNS and refused == "True"
