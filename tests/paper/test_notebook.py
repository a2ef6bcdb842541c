"""The notebook runner: parameters in, executed notebook out, three lines when a cell fails."""

from __future__ import annotations

import nbformat
import pytest

from lethe.paper import notebook

GOOD = """\
# %% tags=["parameters"]
n = 1

# %%
print("n is", n)
"""
BAD = (
    GOOD
    + """
# %%
raise ValueError("first line\\nsecond line")
"""
)


@pytest.fixture
def source(tmp_path):
    def write(text):
        path = tmp_path / "demo.py"
        path.write_text(text)
        return path

    return write


@pytest.mark.slow
def test_a_parameter_reaches_the_notebook_and_the_machine_leaves_no_trace(source, tmp_path):
    out, log = tmp_path / "out" / "demo.ipynb", tmp_path / "log" / "demo.ipynb"
    assert notebook.main([str(source(GOOD)), str(out), "-p", "n", "7", "--log", str(log)]) == 0
    executed = nbformat.read(out, as_version=4)
    assert any("n is 7" in o.get("text", "") for c in executed.cells for o in c.get("outputs", []))
    assert "papermill" not in executed.metadata
    assert str(tmp_path) not in out.read_text()
    assert not list(tmp_path.rglob("*.prepared.ipynb"))


@pytest.mark.slow
def test_a_failing_cell_is_three_lines_and_the_notebook_is_kept(source, tmp_path, capsys):
    out, log = tmp_path / "demo.ipynb", tmp_path / "log" / "demo.ipynb"
    assert notebook.main([str(source(BAD)), str(out), "--log", str(log)]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3
    assert "cell [3] failed" in lines[0] or "cell [2] failed" in lines[0]
    assert lines[1] == "ValueError: first line"
    assert str(log) in lines[2]
    assert "second line" in log.read_text()
    assert not out.exists()


def test_an_unknown_parameter_is_refused_before_anything_runs(source, tmp_path, capsys):
    out = tmp_path / "demo.ipynb"
    assert notebook.main([str(source(GOOD)), str(out), "-p", "m", "7"]) == 1
    assert "no parameter 'm'" in capsys.readouterr().err
    assert not out.exists()


def test_a_missing_notebook_is_one_sentence(tmp_path, capsys):
    assert notebook.main([str(tmp_path / "gone.py"), str(tmp_path / "out.ipynb")]) == 1
    assert "gone.py" in capsys.readouterr().err
