"""One row alone of a public corpus: `lethe show ID` and `lethe audit --row ID`, with the real judge."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lethe import cli

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
CUDA_L1 = SHARED / "corpora" / "cuda_l1.jsonl.gz"
DLBLAS = SHARED / "corpora" / "dlblas_openevolve.jsonl.gz"
PUBLISHED = SHARED / "published" / "published_audit_rows.jsonl.gz"
PROBLEMS = os.environ.get("LETHE_KERNELBENCH_48642C5C")

needs_corpora = pytest.mark.skipif(
    not CUDA_L1.is_file(), reason="needs the corpora that are not part of this repository"
)
needs_problems = pytest.mark.skipif(
    PROBLEMS is None, reason="needs a KernelBench checkout, named by LETHE_KERNELBENCH_48642C5C"
)
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_file(), reason="needs the published rows, which are not part of this repository"
)


def run(capsys, *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in arguments])
    return int(ended.value.code or 0), capsys.readouterr().out


@needs_corpora
@pytest.mark.slow
def test_a_torch_program_of_cuda_l1_that_overwrites_its_input(capsys, tmp_path):
    given = ("--corpus", "cuda_l1", "--path", CUDA_L1, "--out", tmp_path)
    row = "cudal1-h100-L1_21"
    code, shown = run(capsys, "show", row, *given)
    assert code == 0 and "MIT" in shown and "torch_only" in shown
    code, told = run(capsys, "audit", "--row", row, *given, "--device", "cpu", "--quick")
    assert code == 1 and "breaks ORD-02" in told


@needs_corpora
@needs_problems
@pytest.mark.slow
def test_an_accepted_row_of_dlblas_is_judged_alone_with_a_counterexample(capsys, tmp_path):
    given = ("--corpus", "dlblas", "--path", DLBLAS, "--problems", PROBLEMS, "--out", tmp_path)
    row = "dlblas-oe-L1_100-558b1fe3"
    assert "BSD-3-Clause" in run(capsys, "show", row, *given)[1]
    folder = tmp_path / "read"
    code, told = run(
        capsys, "audit", "--row", row, *given, "--device", "cpu", "--quick", "--gate", "EXC-01",
        "--counterexamples", folder,
    )  # fmt: skip
    assert code == 1 and "EXC-01" in told
    assert list(folder.rglob("*.py"))


@needs_published
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("179", "scan, gated, counted as a violation"),
        ("123", "softmax, gated, counted as a violation"),
        ("518", "reduction, not_auditable, outside the published denominator"),
    ],
)
def test_the_papers_own_examples(capsys, tmp_path, row, said):
    code, shown = run(capsys, "show", row, "--corpus", "house", "--published", PUBLISHED, "--out", tmp_path)
    assert code == 0 and said in shown
