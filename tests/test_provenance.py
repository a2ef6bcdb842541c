"""Provenance: which sources a file depends on, and when a measurement is stale."""

from __future__ import annotations

import json

import pytest

from lethe import provenance
from lethe.provenance import Device, ProvenanceError, closure, digest, imported_modules, load, record, stale

H200 = Device("NVIDIA H200", "cuda", 132, "9.0", "580.0")


@pytest.fixture
def tree(tmp_path):
    """A small checkout: a script that imports lethe.kernels.scan, which imports lethe.kernels.tile."""
    files = {
        "lethe/__init__.py": "from lethe.verifier import judge\n",
        "lethe/verifier/__init__.py": "",
        "lethe/verifier/judge.py": "",
        "lethe/verifier/suspect.py": "# started by name\n",
        "lethe/kernels/__init__.py": "",
        "lethe/kernels/scan.py": "def run():\n    from .tile import TILE\n    return TILE\n",
        "lethe/kernels/tile.py": "TILE = 64\n",
        "lethe/kernels/other.py": "",
        "bench.py": "import torch\nfrom lethe.kernels import scan\n",
        "judged.py": "import lethe.verifier.judge\n",
        "data/corpus/k.py": "from lethe.kernels import other\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def names(paths, root):
    return [p.relative_to(root).as_posix() for p in paths]


def test_closure_follows_imports_inside_functions_and_relative_ones(tree):
    assert names(closure(["bench.py"], root=tree), tree) == [
        "bench.py",
        "lethe/kernels/__init__.py",
        "lethe/kernels/scan.py",
        "lethe/kernels/tile.py",
    ]


def test_the_verifier_counts_as_a_whole(tree):
    assert "lethe/verifier/suspect.py" in names(closure(["judged.py"], root=tree), tree)


def test_a_folder_stands_for_its_files_and_data_is_not_followed(tree):
    (tree / "data/corpus/.hidden").write_text("")
    (tree / "data/corpus/__pycache__").mkdir()
    (tree / "data/corpus/__pycache__/k.pyc").write_text("")
    assert names(closure(["data/corpus"], root=tree), tree) == ["data/corpus/k.py"]


def test_imports_for_type_checking_do_not_count(tree):
    file = tree / "typed.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lethe.kernels import scan\n"
    )
    assert imported_modules(file, root=tree) == set()


def test_digest_changes_with_a_source_far_away_only(tree):
    before = digest(["bench.py"], root=tree)
    (tree / "lethe/kernels/other.py").write_text("X = 1\n")
    assert digest(["bench.py"], root=tree) == before
    (tree / "lethe/kernels/tile.py").write_text("TILE = 128\n")
    assert digest(["bench.py"], root=tree) != before


def test_a_missing_source_is_an_error(tree):
    with pytest.raises(FileNotFoundError, match=r"no source file .*gone\.py"):
        closure(["gone.py"], root=tree)


@pytest.fixture
def measured(tree):
    path = tree / "data/measured/h200/scan.json"
    record(
        path, experiment="scan", samples={"us": [1.0, 2.0]}, parameters={"L": 512}, script="bench.py",
        on=H200, root=tree, units={"us": "µs"}, command="python bench.py",
    )  # fmt: skip
    return path


def test_record_and_load_agree_and_name_the_script(measured):
    m = load(measured)
    assert (m.experiment, m.device, m.script) == ("scan", H200, "bench.py")
    assert m.samples == {"us": [1.0, 2.0]} and m.parameters == {"L": 512}
    assert {"bench.py", "lethe/kernels/tile.py"} <= set(m.sources)
    assert {"python", "torch"} <= set(m.versions)


def test_a_fresh_measurement_is_current(measured, tree):
    assert stale(measured, root=tree) == []


@pytest.mark.parametrize("source", ["bench.py", "lethe/kernels/tile.py"])
def test_a_changed_source_makes_it_stale(measured, tree, source):
    (tree / source).write_text("# changed\n")
    assert stale(measured, root=tree) == [source]


def test_a_vanished_source_makes_it_stale(measured, tree):
    (tree / "lethe/kernels/tile.py").unlink()
    assert stale(measured, root=tree) == ["lethe/kernels/tile.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "holds schema None"),
        (json.dumps({"schema": "lethe.measured/0"}), "holds schema 'lethe.measured/0'"),
        (json.dumps({"schema": provenance.SCHEMA}), "is not a complete measured file"),
    ],
    ids=["not-json", "a-list", "old-schema", "incomplete"],
)
def test_what_is_no_measured_file_is_one_sentence(tmp_path, text, message):
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(ProvenanceError, match=message) as error:
        load(path)
    assert "\n" not in str(error.value)


def test_a_failed_write_leaves_the_old_file_and_no_litter(measured, tree):
    before = measured.read_bytes()
    with pytest.raises(TypeError):
        record(
            measured,
            experiment="scan",
            samples=object(),
            parameters={},
            script="bench.py",
            on=H200,
            root=tree,
        )
    assert measured.read_bytes() == before
    assert [p.name for p in measured.parent.iterdir()] == ["scan.json"]


@pytest.mark.parametrize(
    ("name", "kind", "slug"),
    [
        ("NVIDIA H200", "cuda", "h200"),
        ("NVIDIA GeForce RTX 4090", "cuda", "rtx-4090"),
        ("AMD EPYC 7B13", "cpu", "cpu"),
        ("", "cuda", "cuda"),
    ],
    ids=["h200", "rtx", "epyc", "unnamed"],
)
def test_device_folder_names(name, kind, slug):
    assert Device(name, kind).slug == slug


def test_asking_for_cuda_without_a_device_is_a_clear_error(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="torch sees no CUDA device"):
        provenance.device("cuda")


def test_no_committed_file_names_a_folder_of_the_machine_that_wrote_it():
    files = sorted((provenance.ROOT / "data" / "measured").rglob("*.json"))
    commands = {file.name: load(file).command.split() for file in files}
    assert files and not {name: c for name, c in commands.items() if any(word.startswith("/") for word in c)}
