"""Loaders of corpora that are not at hand, on small files of the same fields that the tests write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lethe.audit.corpora import CorpusError, open_corpus
from lethe.audit.drkernel import code_blocks, last_kernel
from lethe.audit.operator_class import class_of
from lethe.verifier import formats

REFERENCE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return {body}


def get_inputs():
    return [torch.randn(4, 4)]


def get_init_inputs():
    return []
"""
KERNEL = "import triton\n\n\nclass ModelNew(torch.nn.Module):\n    pass  # {name}\n"


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    """Records as JSON lines, or as Parquet where the name says so."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def turn(*kernels: str, role: str = "assistant") -> dict[str, str]:
    blocks = [f"Text.\n```python\n{k}```\n" for k in kernels]
    return {"role": role, "content": "".join(blocks) + "More text."}


def trajectory(uuid: int, body: str = "torch.softmax(x, -1)", **changes: Any) -> dict[str, Any]:
    record = {
        "uuid": uuid,
        "original_python_code": REFERENCE.format(body=body),
        "messages": [
            turn("question", role="user"),
            turn(KERNEL.format(name="first")),
            turn(KERNEL.format(name=uuid)),
        ],
        "final_speedup": 1.5,
        "num_rounds": 2,
    }
    return {**record, **changes}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_drkernel_takes_the_last_kernel_of_each_trajectory(tmp_path: Path, suffix: str) -> None:
    path = write(
        tmp_path / f"rows.{suffix}",
        [
            trajectory(179),
            trajectory(518, final_speedup=0.0),
            trajectory(123, final_speedup=None),
            trajectory(7, body="torch.relu(x)"),
            trajectory(8, original_python_code="def f():\n    pass\n"),
            trajectory(9, messages=[turn("print('no kernel')\n")]),
        ],
    )
    corpus = open_corpus("drkernel", path=path)
    rows = {r.id: r for r in corpus.rows()}
    assert {i: r.accepted for i, r in rows.items()} == {"179": True, "518": False, "123": False}
    assert rows["179"].candidate.source == KERNEL.format(name=179)
    assert rows["179"].family == "softmax"
    assert rows["123"].extra == {"speedup": None, "rounds": 2, "position": 2}
    assert corpus.notes == (
        "1 trajectories whose reference is not in KernelBench's format are left out",
        "1 trajectories without a code block that defines ModelNew are left out",
        "1 trajectories of another operator class than matmul, attention, softmax, scan, norm, conv, "
        "reduction are left out",
    )
    assert [r.id for r in open_corpus("drkernel", path=path, every_class=True).rows()][-1] == "7"


def test_drkernel_keeps_exactly_the_published_rows_and_their_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [trajectory(1), trajectory(2, body="torch.relu(x)"), trajectory(3)])
    published = write(
        tmp_path / "published.jsonl",
        [{"id": str(i), "op_class": "scan", "status": "gated", "final_speedup": 1.0} for i in (2, 3, 4)],
    )
    corpus = open_corpus("drkernel", path=path, published=published)
    assert [(r.id, r.family) for r in corpus.rows()] == [("2", "scan"), ("3", "scan")]
    assert corpus.notes == (
        "1 trajectories that are not among the published rows are left out",
        f"1 published rows are not in {path}",
    )


def test_the_last_kernel_is_looked_for_from_the_end() -> None:
    a, b = KERNEL.format(name="a"), KERNEL.format(name="b")
    assert last_kernel([turn(a), turn(b, "x = 1\n")]) == b
    assert last_kernel([turn(a), turn("x = 1\n")]) == a
    assert last_kernel([turn(a), turn(b, role="user")]) == a
    assert last_kernel(json.dumps([turn(a)])) == a
    assert last_kernel([turn("# class ModelNew is missing\n")]) is None
    assert last_kernel([]) is None and last_kernel("no json") is None


def test_code_blocks_of_a_text_with_an_open_fence() -> None:
    assert list(code_blocks("a\n```py\nx\n```\nb\n```\ny\nz\n```\n```py\ncut off")) == ["x\n", "y\nz\n"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("torch.nn.functional.scaled_dot_product_attention(x, x, x)", "attention"),
        ("torch.softmax(torch.cumsum(x, 0), -1)", "scan"),
        ("torch.softmax(x @ x, -1)", "matmul"),
        ("torch.nn.Linear(4, 4)(x)", "matmul"),
        ("torch.nn.functional.conv_transpose2d(x, x)", "conv"),
        ("torch.nn.LayerNorm(4)(x)", "norm"),
        ("torch.nn.functional.log_softmax(x, -1)", "softmax"),
        ("x.mean()", "reduction"),
        ("torch.nn.functional.leaky_relu(x)", "elementwise"),
        ("x", "other"),
    ],
)
def test_the_first_operator_class_that_fits_wins(body: str, name: str) -> None:
    assert class_of(REFERENCE.format(body=body)) == name


def test_words_in_comments_make_no_class() -> None:
    assert class_of("# matmul and attention\n" + REFERENCE.format(body="x")) == "other"
    assert class_of("def broken(:") == "other"


FUNCTIONAL = """import torch


def module_fn(x, weight):
    return x * weight


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x, fn=module_fn):
        return fn(x, self.weight)
"""
CUDA = (
    '#include <torch/extension.h>\nconst char* s = "\\"quoted\\"";\n'
    "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n"
)


def sakana(**changes: Any) -> dict[str, Any]:
    record = {
        "Op_Name": "23_Softmax",
        "Level_ID": 1,
        "Task_ID": 23,
        "Kernel_Name": "softmax_warp",
        "CUDA_Code": CUDA,
        "PyTorch_Code_Module": REFERENCE.format(body="x"),
        "PyTorch_Code_Functional": FUNCTIONAL,
        "Correct": True,
        "Max_Diff": 0.001,
        "CUDA_Speedup_Native": 2.0,
        "__index_level_0__": 41,
    }
    return {**record, **changes}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_sakana_joins_the_functional_reference_and_the_extension(tmp_path: Path, suffix: str) -> None:
    write(
        tmp_path / f"level_1.{suffix}",
        [
            sakana(),
            sakana(Correct=False, __index_level_0__=42),
            sakana(CUDA_Code="", __index_level_0__=43),
            sakana(PyTorch_Code_Functional=FUNCTIONAL.replace(", fn=module_fn", ""), __index_level_0__=44),
            sakana(PyTorch_Code_Module="pass", __index_level_0__=45),
        ],
    )
    write(tmp_path / f"level_2.{suffix}", [sakana(Level_ID=2, Op_Name="1_Conv2D_ReLU", Task_ID=1)])
    corpus = open_corpus("sakana", path=tmp_path)
    rows = {r.id: r for r in corpus.rows()}
    assert {i: (r.accepted, r.family) for i, r in rows.items()} == {
        "sakana-L1_23-41": (True, "softmax"),
        "sakana-L1_23-42": (False, "softmax"),
        "sakana-L2_1-41": (True, "fused"),
    }
    source = rows["sakana-L1_23-41"].candidate.source
    assert repr(CUDA) in source
    defined = formats.definitions(formats.parse(source))
    assert defined["ModelNew"] == "class" and formats.language(formats.parse(source)) == "cpp"
    assert corpus.notes == (
        "1 rows without CUDA code are left out",
        "1 rows whose reference is not in KernelBench's format are left out",
        "1 rows whose functional reference takes no fn are left out",
    )
    assert [r.id for r in open_corpus("sakana", path=tmp_path, correct=True, level=1).rows()] == [
        "sakana-L1_23-41"
    ]


def test_the_adapted_candidate_passes_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the compiler: inputs and weights arrive in the functional reference's order."""
    import torch
    from torch.utils import cpp_extension

    class Extension:
        @staticmethod
        def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x + 10 * weight

    asked: dict[str, Any] = {}

    def compiled(**options: Any) -> type[Extension]:
        asked.update(options)
        return Extension

    monkeypatch.setattr(cpp_extension, "load_inline", compiled)
    (row,) = open_corpus("sakana", path=write(tmp_path / "a.jsonl", [sakana()])).rows()
    space: dict[str, Any] = {}
    exec(row.candidate.source, space)
    assert torch.equal(space["ModelNew"]()(torch.zeros(4)), torch.full((4,), 10.0))
    assert asked["cuda_sources"] == [CUDA] and asked["name"].isidentifier()


@pytest.mark.parametrize("name", ["drkernel", "sakana"])
def test_files_of_another_kind_are_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(CorpusError, match=f"get it with: lethe fetch {name} --to"):
        open_corpus(name, path=tmp_path / "gone.parquet")
    with pytest.raises(CorpusError, match=r"no \.parquet or \.jsonl file"):
        open_corpus(name, path=tmp_path)
    write(tmp_path / "rows.jsonl", [{"other": 1}])
    with pytest.raises(CorpusError, match=r"line 1 of .* has no "):
        open_corpus(name, path=tmp_path)
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    (tmp_path / "rows.jsonl").unlink()
    write(tmp_path / "rows.parquet", [{"other": 1}])
    with pytest.raises(CorpusError, match="has no column"):
        open_corpus(name, path=tmp_path)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(CorpusError, match="is not a readable Parquet file"):
        open_corpus(name, path=tmp_path)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CorpusError, match="pip install pyarrow"):
        open_corpus("sakana", path=tmp_path)
