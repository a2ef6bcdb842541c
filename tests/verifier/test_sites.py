"""Size sites: which literals have names, and putting other values in their place."""

from __future__ import annotations

import ast

import pytest

from lethe.verifier.formats import FormatError
from lethe.verifier.sites import MAX_VALUE, find_sites, hard_coded_sizes, substitute, written_sizes

SOURCE = """
import torch
batch = 8 * 2      # half of 32
height = width = 128
shape = (16, 4 * 5, [7])
M, K = 256, -3
dim: int = 1
columns = 3 * batch + 2
mean = 0.5
flag = True
class Model:
    depth = 9
def get_inputs():
    x = torch.rand(batch, 64)[..., 5]
    return [x]
def get_init_inputs():
    return [12]
"""


def test_sites_are_named_as_the_source_reads() -> None:
    assert written_sizes(SOURCE) == {
        "batch": 16,
        "height=width": 128,
        "shape[0]": 16,
        "shape[1]": 20,
        "shape[2]#0": 7,
        "M": 256,
        "dim": 1,
        "columns#0": 3,
        "columns#1": 2,
        "get_inputs#0": 64,
        "get_init_inputs#0": 12,
    }


def test_every_site_can_be_substituted_alone_and_together() -> None:
    names = [s.name for s in find_sites(SOURCE)]
    for name in names:
        changed = substitute(SOURCE, {name: 77})
        assert written_sizes(changed) == {**written_sizes(SOURCE), name: 77}
        assert changed.count("\n") == SOURCE.count("\n")
    assert set(written_sizes(substitute(SOURCE, dict.fromkeys(names, 77))).values()) == {77}
    assert "# half of 32" in substitute(SOURCE, {"batch": 3})


def test_line_numbers_and_wide_characters_survive() -> None:
    source = "label = 'größe'; rows = (2 *\n  3)\ndef after(): pass\n"
    changed = substitute(source, {"rows": 11})
    assert written_sizes(changed) == {"rows": 11}
    assert ast.parse(changed).body[-1].lineno == 3


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no size named 'depth'; the source has batch, height=width"):
        substitute(SOURCE, {"depth": 3})
    assert substitute(SOURCE, {}) == SOURCE


@pytest.mark.parametrize("text", ["10 ** 400", "2 ** 2 ** 62", "1 << 4000", "3 // 0", "9" * 30], ids=str)
def test_hostile_arithmetic_is_not_computed(text: str) -> None:
    sites = written_sizes(f"n = {text}\n")
    assert "n" not in sites and all(v <= MAX_VALUE for v in sites.values())


def test_deep_expressions_are_refused() -> None:
    with pytest.raises(FormatError, match="is not valid Python"):
        find_sites("n = " + "1 + a + " * 2000 + "1\n")


def test_text_that_does_not_parse_is_refused() -> None:
    with pytest.raises(FormatError, match="line 1"):
        find_sites("n = (\n")


CANDIDATE = """
batch = 16
height, width = 128, 64
N = 32
class ModelNew: pass
def get_inputs():
    return [16]
"""


def test_a_candidate_s_own_constants_follow_the_problem() -> None:
    sizes = {"batch": 3, "height=width": 67, "N": 5, "get_inputs#0": 9}
    assert hard_coded_sizes(CANDIDATE, sizes) == {"batch": 3, "height": 67, "width": 67, "N": 5}


def test_a_constant_of_another_value_is_not_the_problem_s_size() -> None:
    sizes = {"batch": 3, "height=width": 67, "N": 5}
    written = {"batch": 16, "height=width": 128, "N": 1024}
    assert hard_coded_sizes(CANDIDATE, sizes, written) == {"batch": 3, "height": 67}
    changed = substitute(CANDIDATE, hard_coded_sizes(CANDIDATE, sizes, written))
    assert "height, width = 67, 64" in changed and "N = 32" in changed
