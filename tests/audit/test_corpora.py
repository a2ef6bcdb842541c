"""Loaders: what they read, what they leave out, and one sentence for each way to misconfigure them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lethe.audit import kernelbench
from lethe.audit.corpora import CorpusError, ListedCorpus, configured, open_corpus
from lethe.audit.house import default_folder
from lethe.audit.kernelbench import KernelBench, family_of
from tests.audit import fakes

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
needs_shared = pytest.mark.skipif(
    not (SHARED / "corpora").is_dir(), reason="needs the corpora that are not part of this repository"
)

REFERENCE = "class Model:\n    pass\n\n\ndef get_inputs():\n    return []\n"
KERNEL = "import triton\n\n\n@triton.jit\ndef k():\n    pass\n\n\nclass ModelNew:\n    pass\n"


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """A KernelBench checkout of three problems (of no known revision)."""
    root = tmp_path / "bench"
    for name in ("level1/19_ReLU.py", "level1/23_Softmax.py", "level2/1_Conv2D_ReLU_BiasAdd.py"):
        file = root / "KernelBench" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}\n{REFERENCE}")
    return root


def write_lines(path: Path, *records: dict[str, Any]) -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    return path


def dlblas_record(**changes: Any) -> dict[str, Any]:
    record = {
        "id": "dlblas-oe-L1_19-aa",
        "op_class": "activation",
        "level": 1,
        "problem": "KernelBench/level1/19_ReLU.py",
        "candidate_source": KERNEL.replace("\n", "\r\n"),
        "language": "triton",
        "accepted": True,
        "source_stage": "success",
        "licence": "BSD-3-Clause",
    }
    return {**record, **changes}


def cuda_l1_record(**changes: Any) -> dict[str, Any]:
    record = {
        "id": "cudal1-h100-L1_19",
        "op_name": "19_ReLU",
        "op_class": "activation",
        "level": 1,
        "reference_source": REFERENCE,
        "candidate_source": KERNEL,
        "language": "cuda_inline",
        "gpu": "h100",
        "accepted": True,
        "licence": "MIT",
    }
    return {**record, **changes}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_dlblas_rows_take_their_reference_from_the_checkout(tmp_path: Path, bench: Path, suffix: str) -> None:
    path = write_lines(
        tmp_path / f"rows{suffix}",
        dlblas_record(),
        dlblas_record(id="b", accepted=False, source_stage="wrong_answer"),
    )
    corpus = open_corpus("dlblas", path=path, problems=bench, any_revision=True)
    first, second = corpus.rows()
    assert first.problem.name == "level1/19_ReLU"
    assert first.problem.source == "# level1/19_ReLU.py\n" + REFERENCE
    assert first.candidate.source == KERNEL, "line ends are LF, as the verifier reads files"
    assert (first.accepted, second.accepted, second.extra["stage"]) == (True, False, "wrong_answer")
    assert (first.order, second.order) == (0, 1)
    assert corpus.get("b") == second


def test_dlblas_refuses_another_revision_of_the_references(tmp_path: Path, bench: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", dlblas_record())
    with pytest.raises(CorpusError, match="not those of revision 48642c5c"):
        open_corpus("dlblas", path=path, problems=bench)


def test_cuda_l1_leaves_out_programs_that_do_not_exist_and_says_so(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "rows.jsonl",
        cuda_l1_record(),
        cuda_l1_record(id="x", candidate_source="None"),
        cuda_l1_record(id="y", gpu="l40", language="torch_only"),
        cuda_l1_record(id="z", language="torch_only", candidate_source="k = cp.RawKernel(text, 'k')\n"),
    )
    corpus = open_corpus("cuda_l1", path=path)
    assert [(r.id, r.language, r.candidate.language) for r in corpus.rows()] == [
        ("cudal1-h100-L1_19", "cuda_inline", "cuda"),
        ("y", "torch_only", "python"),
        ("z", "cuda_cupy", "python"),
    ]
    assert corpus.notes == ("1 rows whose program is empty or the text None are left out",)
    assert [r.id for r in open_corpus("cuda_l1", path=path, gpu="l40").rows()] == ["y"]
    with pytest.raises(CorpusError, match="no set for gpu 'b200'; it has h100, l40"):
        open_corpus("cuda_l1", path=path, gpu="b200")


def test_cuda_l1_checks_its_references_against_a_checkout(tmp_path: Path, bench: Path) -> None:
    same = cuda_l1_record(reference_source=f"# level1/19_ReLU.py\n{REFERENCE}\n")
    path = write_lines(tmp_path / "rows.jsonl", same)
    assert len(list(open_corpus("cuda_l1", path=path, problems=bench, any_revision=True).rows())) == 1
    write_lines(path, cuda_l1_record())
    with pytest.raises(CorpusError, match="cudal1-h100-L1_19 is not level1/19_ReLU"):
        open_corpus("cuda_l1", path=path, problems=bench, any_revision=True)


def test_directory_matches_kernels_to_references_by_name(tmp_path: Path, bench: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    for name in (
        "level_1_problem_23_sample_0_kernel",
        "19_ReLU__mine",
        "1_Conv2D_ReLU_BiasAdd-v2",
        "19_ReLUx",
        "helpers",
    ):
        (runs / f"{name}.py").write_text(KERNEL)
    (runs / "19_ReLU__broken.py").write_bytes(b"\xff\xfe\x00")
    corpus = open_corpus("directory", path=runs, problems=bench)
    assert {r.id: r.problem.name for r in corpus.rows()} == {
        "level_1_problem_23_sample_0_kernel": "level1/23_Softmax",
        "19_ReLU__mine": "level1/19_ReLU",
        "19_ReLU__broken": "level1/19_ReLU",
        "1_Conv2D_ReLU_BiasAdd-v2": "level2/1_Conv2D_ReLU_BiasAdd",
    }
    assert corpus.get("19_ReLU__mine").accepted is None
    assert corpus.get("19_ReLU__mine").language == "triton"
    assert "UTF-8" in corpus.get("19_ReLU__broken").extra["unreadable"]
    assert corpus.notes == ("2 files that match no reference are left out (19_ReLUx, helpers)",)


def test_directory_charges_nobody_with_a_file_that_cannot_be_read(tmp_path: Path, bench: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "19_ReLU__folder.py").mkdir(parents=True)
    with pytest.raises(
        CorpusError, match=r"no kernel under .* can be read \(19_ReLU__folder: Is a directory"
    ):
        open_corpus("directory", path=runs, problems=bench)
    (runs / "19_ReLU__gone.py").symlink_to("nowhere")
    (runs / "19_ReLU__mine.py").write_text("def ModelNew(x):\n    return x\n")
    corpus = open_corpus("directory", path=runs, problems=bench)
    assert [(r.id, r.candidate.kind) for r in corpus.rows()] == [("19_ReLU__mine", "function")]
    assert corpus.notes == (
        "2 files that cannot be read are left out (19_ReLU__folder: Is a directory, "
        "19_ReLU__gone: No such file or directory)",
    )


def test_directory_with_its_own_problems_folder(tmp_path: Path) -> None:
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "softmax_row.py").write_text(REFERENCE)
    (tmp_path / "problems" / "softmax.py").write_text(REFERENCE)
    (tmp_path / "softmax_row__a.py").write_text(KERNEL)
    (tmp_path / "softmax_row.py").write_text("class ModelNew:\n    pass\n")
    corpus = open_corpus("directory", path=tmp_path)
    assert [(r.id, r.problem.name, r.language) for r in corpus.rows()] == [
        ("softmax_row", "softmax_row", "python"),
        ("softmax_row__a", "softmax_row", "triton"),
    ]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nothing", {}, "no corpus 'nothing'; the corpora are house, dlblas, cuda_l1, directory"),
        ("cuda_l1", {}, "needs path"),
        ("dlblas", {"path": "x.jsonl"}, "needs problems"),
        ("cuda_l1", {"path": "gone.jsonl"}, "no file gone.jsonl"),
        ("cuda_l1", {"path": "x", "colour": "red"}, "no setting 'colour'"),
        ("house", {"path": "gone"}, "no manifest.json in gone"),
        ("directory", {"path": "gone"}, "no folder gone"),
        ("dlblas", {"path": "x", "problems": "gone"}, "no KernelBench problems"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_a_misconfigured_corpus_is_one_sentence(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message) as e:
        open_corpus(name, **settings)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json\n", "not a readable JSON-lines"),
        (b"[1]\n", "not a JSON object"),
        (b'{"id": 1}\n', "has no op_name"),
    ],
)
def test_a_file_of_another_kind_is_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        open_corpus("cuda_l1", path=path)


def test_a_truncated_gzip_is_one_sentence(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl.gz", cuda_l1_record())
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(CorpusError, match="not a readable JSON-lines"):
        open_corpus("cuda_l1", path=path)


def test_config_skips_null_entries_with_a_note(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", cuda_l1_record())
    corpora, notes = configured(
        {"cuda_l1": str(path), "dlblas": None, "kernelbench": None, "directory": {"path": None}}
    )
    assert [c.name for c in corpora] == ["cuda_l1"]
    assert notes == [
        "corpus dlblas is skipped: the config gives no path and no problems",
        "corpus directory is skipped: the config gives no path",
    ]
    with pytest.raises(CorpusError, match="no corpus 'hous'"):
        configured({"hous": "x"})


def test_config_gives_kernelbench_to_the_loaders_that_need_it(
    tmp_path: Path, bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernelbench, "CONTENT", kernelbench.content_digest(bench / "KernelBench"))
    path = write_lines(tmp_path / "rows.jsonl", dlblas_record())
    corpora, notes = configured({"dlblas": str(path), "kernelbench": str(bench)})
    assert [r.problem.name for r in corpora[0].rows()] == ["level1/19_ReLU"]
    assert notes == []


def test_row_ids_must_be_unique() -> None:
    with pytest.raises(CorpusError, match="the row id 'a' twice"):
        ListedCorpus("fake", [fakes.row("a"), fakes.row("a")])


def test_kernelbench_by_number(bench: Path) -> None:
    problems = KernelBench(bench, any_revision=True)
    assert problems.numbered(1, 23).name == "level1/23_Softmax"
    assert KernelBench(bench / "KernelBench", any_revision=True).root == problems.root
    with pytest.raises(CorpusError, match="no problem 9 in level 1"):
        problems.numbered(1, 9)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("level1/23_Softmax", "softmax"),
        ("level1/89_cumsum", "scan"),
        ("level1/97_ScaledDotProductAttention", "attention"),
        ("level1/36_RMSNorm_", "norm"),
        ("level1/94_MSELoss", "loss"),
        ("level2/1_Conv2D_ReLU_BiasAdd", "fused"),
        ("level1/1_Square_matrix_multiplication_", "matmul"),
        ("level1/19_ReLU", "activation"),
        ("something", "other"),
    ],
)
def test_family_of_a_problem_name(name: str, family: str) -> None:
    assert family_of(name) == family


def test_house_corpus_is_what_the_paper_says_it_is() -> None:
    corpus = open_corpus("house", path=default_folder())
    rows = list(corpus.rows())
    families = {r.family for r in rows}
    assert sum(r.language == "triton" for r in rows) >= 60
    assert sum(r.language == "cpp" for r in rows) >= 10
    assert len({r.problem.name for r in rows}) >= 30
    expected = "matmul attention softmax scan norm conv reduction activation pooling loss fused"
    assert " ".join(sorted(families)) == " ".join(sorted(expected.split(" ")))
    assert [r.id for r in rows] == sorted(r.id for r in rows)
    assert all(isinstance(r.accepted, bool) for r in rows)
    for r in rows:
        assert "class Model(" in r.problem.source and "ModelNew" in r.candidate.source
        if r.language == "cpp":
            assert 'extern "C"' in r.candidate.source and "ctypes" in r.candidate.source


def test_house_refuses_a_kernel_that_changed_after_its_check(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "house"
    shutil.copytree(default_folder(), folder)
    kernel = folder / "kernels" / "softmax_row__a.py"
    kernel.write_text(kernel.read_text() + "\n# edited\n")
    with pytest.raises(CorpusError, match=r"softmax_row__a\.py has changed since the manifest was made"):
        open_corpus("house", path=folder)


@needs_shared
def test_the_cuda_l1_corpus_at_hand() -> None:
    corpus = open_corpus("cuda_l1", path=SHARED / "corpora" / "cuda_l1.jsonl.gz")
    rows = list(corpus.rows())
    assert len(rows) == 1144 - 80
    languages = Counter(r.language for r in rows if r.extra["gpu"] == "h100")
    assert languages == {"cuda_inline": 78, "cuda_cupy": 3, "torch_only": 129}
    builds = ("load_inline", "cpp_extension", "RawKernel", "RawModule", "triton.jit", "cuda.jit")
    assert not any(word in r.candidate.source for r in rows if r.language == "torch_only" for word in builds)


@needs_shared
def test_the_dlblas_corpus_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    def reference(self: KernelBench, path: str):  # type: ignore[no-untyped-def]
        return fakes.row("x").problem

    monkeypatch.setattr(KernelBench, "__init__", lambda self, *a, **k: None)
    monkeypatch.setattr(KernelBench, "problem", reference)
    path = SHARED / "corpora" / "dlblas_openevolve.jsonl.gz"
    rows = list(open_corpus("dlblas", path=path, problems="unused").rows())
    assert len(rows) == 6360
    assert sum(r.accepted is True for r in rows) == 2443
