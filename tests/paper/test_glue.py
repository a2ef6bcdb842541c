"""What notebooks hand to the prose."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from lethe.paper.glue import Glue, cell, table_directive


@pytest.fixture
def glue(tmp_path):
    return Glue("demo", results=tmp_path / "r", pages=tmp_path / "p", figures=tmp_path / "f")


def test_numbers_reach_their_file(glue):
    glue.number("rate", "62.1%")
    assert json.loads(glue.close().read_text()) == {"rate": "62.1%"}


def test_an_unformatted_number_is_refused(glue):
    with pytest.raises(TypeError, match="format 'rate' before gluing it"):
        glue.number("rate", 0.621)


def test_a_name_is_used_once(glue):
    glue.number("rate", "1")
    with pytest.raises(ValueError, match="glued before"):
        glue.number("rate", "2")


@pytest.mark.parametrize("name", ["Rate", "a b", "1st", "a-b", ""])
def test_names_fit_into_a_substitution(glue, name):
    with pytest.raises(ValueError, match="is not a name"):
        glue.number(name, "1")


def test_a_table_is_numbered_and_labelled(glue, tmp_path):
    glue.table("by_gate", pd.DataFrame({"gate": ["EXC-01"], "rows": [1234]}), caption="Gates.")
    text = (tmp_path / "p" / "demo_by_gate.md").read_text()
    assert text.splitlines() == [
        "::::{table} Gates.",
        ":name: tbl-demo-by-gate",
        "",
        "| gate | rows |",
        "| :--- | ---: |",
        "| [EXC-01]{.nowrap} | 1,234 |",
        "::::",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (True, "yes"),
        (12345, "12,345"),
        (0.12345, "0.123"),
        ("a|b\nc", "a\\|b c"),
    ],
    ids=["none", "nan", "true", "integer", "float", "pipe-and-newline"],
)
def test_cells(value, text):
    assert cell(value) == text


def test_an_empty_table_still_renders():
    text = table_directive(pd.DataFrame(columns=["a", "b"]), caption="None.", label="tbl-x")
    assert "| a | b |" in text


def test_equal_figures_are_equal_files(glue, tmp_path):
    from lethe import plotting

    def draw():
        return plotting.counts(["swallowed", "minted"], [3, 0], xlabel="kernels", tolerance_free=True)

    glue.figure("one", draw())
    glue.figure("two", draw())
    for suffix in ("svg", "png"):
        one, two = ((tmp_path / "f" / f"demo_{n}.{suffix}").read_bytes() for n in ("one", "two"))
        assert one == two


def test_a_table_without_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="has no columns"):
        table_directive(pd.DataFrame([]), caption="c", label="l")
