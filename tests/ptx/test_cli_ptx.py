"""``lethe ptx``: what it prints, its exit codes, and one sentence for every mistake."""

import gzip

import numpy as np
import pytest

from lethe.ptx.cli import AT_FAULT, OK, USAGE, main
from lethe.ptx.examples import load

ADD = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry add(.param .u64 x, .param .u64 y, .param .u32 n) {
 .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<5>; .reg .f32 %f<3>;
 ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [n];
 mov.u32 %r2, %tid.x;
 setp.ge.u32 %p1, %r2, %r1;
 @%p1 bra END;
 mul.wide.u32 %rd3, %r2, 4;
 add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
 ld.global.f32 %f1, [%rd1]; add.f32 %f2, %f1, %f1; st.global.f32 [%rd2], %f2;
END: ret;
}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "add.ptx"
    path.write_text(ADD)
    return str(path)


def run(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_run_a_file_with_parameters(file, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(32, dtype=np.float32))
    out = tmp_path / "y.npy"
    parameters = [
        "--param",
        f"npy:{tmp_path / 'x.npy'}",
        "--param",
        "y=zeros:float32:32",
        "--param",
        "u32:20",
    ]
    code, text, _ = run(capsys, "run", file, "--block", "32", *parameters, "--save", f"y={out}")
    assert code == OK and "warp instructions" in text
    np.testing.assert_array_equal(np.load(out), np.where(np.arange(32) < 20, 2 * np.arange(32), 0))


def test_run_a_compressed_file(tmp_path, capsys):
    path = tmp_path / "add.ptx.gz"
    path.write_bytes(gzip.compress(ADD.encode()))
    arguments = [
        "--block",
        "32",
        "--param",
        "normal:float32:32",
        "--param",
        "zeros:float32:32",
        "--param",
        "u32:32",
    ]
    assert run(capsys, "run", str(path), *arguments)[0] == OK


def test_a_fault_is_named_with_its_line(file, capsys):
    arguments = [
        "--block",
        "32",
        "--param",
        "zeros:float32:8",
        "--param",
        "zeros:float32:32",
        "--param",
        "u32:32",
    ]
    code, _, err = run(capsys, "run", file, *arguments)
    assert code == AT_FAULT and "bounds" in err and "line" in err and "Traceback" not in err


def test_run_and_count_an_example(capsys):
    assert run(capsys, "run", "triton_softmax_sm90", "--schedule", "late")[0] == OK
    code, text, _ = run(capsys, "count", "triton_softmax_sm90")
    rows = {line.split()[2]: line.split()[:2] for line in text.splitlines()[1:-1]}
    assert code == OK and rows["ex2.approx.f32"] == ["4", "128"]


def test_count_of_a_file_without_parameters_is_static(file, capsys):
    code, text, _ = run(capsys, "count", file)
    assert code == OK and "add.s64" in text and "-  ret" in text


def test_disasm_shows_labels_and_targets(file, capsys):
    code, text, _ = run(capsys, "disasm", file)
    assert code == OK and "END:" in text and "@%p1 bra" in text and "-> 12" in text


def test_lint_names_the_published_defect(capsys):
    code, text, _ = run(capsys, "lint", "lifecycle_once_per_gemm")
    assert code == AT_FAULT and "once-per-gemm" in text and "1 violation" in text
    assert run(capsys, "lint", "lifecycle_once_per_kernel")[0] == OK


def test_list_names_every_example(capsys):
    code, text, _ = run(capsys, "list")
    assert code == OK and load("gemm_sm100").about in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nothing.ptx"], "no file and no recorded example"),
        (["run", "FILE"], "3 parameters, 0 given"),
        (
            ["run", "FILE", "--param", "u32:1", "--param", "u32:1", "--param", "u32:1", "--block", "32"],
            "has 8",
        ),
        (
            ["run", "FILE", "--param", "what:1", *["--param", "u64:1"] * 2, "--block", "1"],
            "unknown kind 'what'",
        ),
        (["run", "FILE", "--param", "u64:x", *["--param", "u64:1"] * 2, "--block", "1"], "invalid literal"),
        (["run", "FILE", *["--param", "u64:1"] * 3], "give --block"),
        (
            ["run", "FILE", "--schedule", "soon", *["--param", "u64:1"] * 3],
            "a schedule is early, late, reverse or a seed",
        ),
        (["disasm", "FILE", "--kernel", "mul"], "0 kernels match 'mul'"),
        (["run", "triton_softmax_sm90", "--save", "z=z.npy"], "NAME among x, y"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence, file, capsys):
    code, _, err = run(capsys, *[file if a == "FILE" else a for a in arguments])
    assert code == USAGE and sentence in err and len(err.splitlines()) == 1


def test_what_is_not_ptx_is_one_fault(tmp_path, capsys):
    path = tmp_path / "x.ptx"
    path.write_text("hello {")
    code, _, err = run(capsys, "lint", str(path))
    assert code == AT_FAULT and "Traceback" not in err


def test_lethe_forwards_to_it(capsys):
    from lethe.cli import main as lethe

    with pytest.raises(SystemExit) as ended:
        lethe(["ptx", "lint", "lifecycle_once_per_gemm"])
    assert ended.value.code == AT_FAULT and "once-per-gemm" in capsys.readouterr().out
