"""Counterexamples of real kernels, how small they become, and replay of the verdicts they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pytest

from lethe.audit import house
from lethe.verifier.judge import Judge
from lethe.verifier.minimise import Budget, Exhausted, fewest, lower_sizes
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.replay import ReplayError, judge_files, read_verdict, replay
from lethe.verifier.verdict import Verdict
from tests.meta.scripts import Ran, run, with_candidate

CALL_SECONDS = 0.08
"""Rows of which the corpus's own check took longer for one call are left to the audit."""
FACTOR = 4
"""How far from the smallest possible input a counterexample may be."""


# ---------------------------------------------------------------- the house corpus

FAILING = (
    "activation_gelu__cpp",
    "attention_causal__cpp",
    "attention_single_head__b",
    "fused_swiglu__cpp",
    "loss_kl_divergence__a",
    "norm_l2_rows__a",
    "pooling_max_2d__cpp",
    "reduction_max__a",
    "reduction_max__b",
    "reduction_max__cpp",
    "scan_reverse_exclusive_cumsum__b",
    "softmax_logsumexp__a",
)
"""Rows within `CALL_SECONDS` that an audit in quick mode on a CPU finds violated; each must be."""
FEW = ("reduction_max__a",)
"""Judged in every run of the tests; the others are slow."""


@dataclass(frozen=True)
class Row:
    verdict: Verdict
    folder: Path
    scripts: dict[str, Ran]
    """By gate."""
    acquitted: dict[str, Ran]
    """The same scripts with the reference's source in the candidate's place."""


def judged(rows: tuple[str, ...], folder: Path) -> dict[str, Row]:
    """Judge rows from files below `folder` and run their counterexamples."""
    corpus = house.load()
    verdicts = {}
    with Judge(device="cpu", quick=True, counterexamples=folder / "counterexamples") as judge:
        for id in rows:
            row, place = corpus.get(id), folder / id
            place.mkdir()
            (place / "candidate.py").write_text(row.candidate.source)
            (place / "reference.py").write_text(row.problem.source)
            problem, candidate = load_problem(place / "reference.py"), load_candidate(place / "candidate.py")
            verdicts[id] = judge.verify(problem, candidate)
            (place / "verdict.json").write_text(verdicts[id].to_json())
    scripts = {
        (id, gate): Path(told["path"])
        for id, v in verdicts.items()
        for gate, told in v.counterexamples.items()
        if "path" in told
    }
    honest = []
    for (id, gate), script in scripts.items():
        source = corpus.get(id).problem.source + "\n\nModelNew = Model\n"
        honest.append(with_candidate(script, source, folder / id / "honest" / f"{gate}.py"))
    ran = run([[s] for s in [*scripts.values(), *honest]])
    shown = dict(zip(scripts, ran[: len(scripts)], strict=True))
    spared = dict(zip(scripts, ran[len(scripts) :], strict=True))
    return {
        id: Row(
            v,
            folder / id,
            {g: r for (i, g), r in shown.items() if i == id},
            {g: r for (i, g), r in spared.items() if i == id},
        )
        for id, v in verdicts.items()
    }


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> dict[str, Row]:
    return judged(FEW, tmp_path_factory.mktemp("few"))


@pytest.fixture(scope="module")
def all_rows(tmp_path_factory, few) -> dict[str, Row]:
    rest = tuple(id for id in FAILING if id not in few)
    return few | judged(rest, tmp_path_factory.mktemp("rest"))


def holds(row: Row) -> None:
    v = row.verdict
    assert v.violated
    failing = {*v.failed, *(["INTEGRITY"] if v.integrity else [])}
    assert set(row.scripts) == failing == set(v.counterexamples)
    assert {g: r.status for g, r in row.scripts.items()} == dict.fromkeys(failing, 1), row.scripts
    assert {g: r.status for g, r in row.acquitted.items()} == dict.fromkeys(failing, 0), row.acquitted
    assert Path(v.counterexample).is_file()


def repeats(row: Row) -> None:
    again = replay(row.folder / "verdict.json")
    assert again.same, again.difference
    assert again.now.canonical().encode() == again.recorded.canonical().encode()


def test_a_house_row_is_shown_and_its_reference_acquitted(few):
    holds(few[FEW[0]])


def test_a_house_verdict_replays_byte_for_byte(few):
    repeats(few[FEW[0]])


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("id", [id for id in FAILING if id not in FEW])
def test_every_failing_house_row_is_shown_and_its_reference_acquitted(all_rows, id):
    holds(all_rows[id])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("id", [id for id in FAILING if id != FEW[0]])
def test_every_failing_house_verdict_replays_byte_for_byte(all_rows, id):
    repeats(all_rows[id])


def test_the_failing_rows_are_within_the_limit():
    corpus = house.load()
    assert all((corpus.get(id).extra.get("call_seconds") or 0.0) <= CALL_SECONDS for id in FAILING)


# ---------------------------------------------------------------- how small


MODULE = """
import torch
import torch.nn as nn


class {name}(nn.Module):
    def forward(self, x):
        {body}
"""
DRAWS = """

rows = {rows}
width = {width}


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Defect:
    """A defect that no smaller input shows."""

    id: str
    gate: str
    reference: str
    candidate: str
    rows: int
    width: int
    least: dict[str, int]
    """Smallest sizes at which the defect shows, in units of `tile`."""
    elements: int
    """Elements that differ from the rest in the smallest input, 0 if it is constant."""
    tile: int = 1


DEFECTS = (
    Defect(
        "one-nan",
        "EXC-01",
        "return torch.relu(x)",
        "return torch.relu(torch.nan_to_num(x, nan=0.0, posinf=float('inf'), neginf=float('-inf')))",
        24,
        96,
        {"rows": 1, "width": 1},
        1,
    ),
    Defect(
        "one-element",
        "CMP-01",
        "return x * 2",
        "return torch.where(x > 40, x * 3, x * 2)",
        24,
        96,
        {"rows": 1, "width": 1},
        1,
    ),
    Defect(
        "one-row",
        "CMP-01",
        "return x - x.mean(1, keepdim=True)",
        "m = x.mean(1, keepdim=True); return x - m * ((x.amax(1, keepdim=True) < 3) | (x.shape[1] < 10))",
        40,
        50,
        {"rows": 1, "width": 10},
        1,
    ),
    Defect(
        "two-tiles",
        "CMP-01",
        "return x.sum(1)",
        "return x[:, :64].sum(1)",
        12,
        1000,
        {"rows": 1, "width": 2},
        1,
        tile=64,
    ),
    Defect(
        "carry-2048",
        "CMP-01",
        "return x.sum(1)",
        "return x[:, :2048].sum(1)",
        4,
        20_000,
        {"rows": 1, "width": 2049},
        1,
    ),
)

LONG_SEARCH = {"one-nan", "one-row", "carry-2048"}


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with Judge(device="cpu", quick=True, counterexamples=tmp_path_factory.mktemp("defects")) as j:
        yield j


@pytest.mark.parametrize(
    "defect",
    [pytest.param(d, id=d.id, marks=[pytest.mark.slow] if d.id in LONG_SEARCH else []) for d in DEFECTS],
)
def test_a_defect_of_known_size_ends_near_its_minimum(judge, defect: Defect):
    problem = MODULE.format(name="Model", body=defect.reference)
    problem += DRAWS.format(rows=defect.rows, width=defect.width)
    candidate = load_candidate(MODULE.format(name="ModelNew", body=defect.candidate), name=defect.id)
    v = judge.verify(load_problem(problem), candidate, gates=[defect.gate])
    told = v.counterexamples[defect.gate]
    reached = {n: told["sizes"].get(n, getattr(defect, n)) for n in ("rows", "width")}
    units = {"rows": reached["rows"], "width": ceil(reached["width"] / defect.tile)}
    assert all(units[n] <= FACTOR * least for n, least in defect.least.items()), told
    assert all(units[n] >= least for n, least in defect.least.items()), "the script cannot show the defect"
    assert told["elements"] <= FACTOR * defect.elements
    (ran,) = run([[told["path"]]])
    assert ran.status == 1, ran.printed


def counted(test):
    calls = []

    def asked(what):
        calls.append(what)
        return test(what)

    return asked, calls


@pytest.mark.parametrize(
    ("test", "least"),
    [
        (lambda s: True, {"a": 1, "b": 1}),
        (lambda s: s["b"] > 64, {"a": 1, "b": 65}),
        (lambda s: s["b"] > 64 and s["b"] % 64, {"a": 1, "b": 65}),
        (lambda s: s["a"] > 16 and s["b"] > 2048, {"a": 17, "b": 2049}),
        (lambda s: s == {"a": 33, "b": 65_536}, {"a": 33, "b": 65_536}),
    ],
    ids=["always", "above-a-tile", "off-the-tile", "both", "only-there"],
)
def test_sizes_go_down_to_the_smallest_that_fail(test, least):
    asked, calls = counted(test)
    found = lower_sizes({"a": 33, "b": 65_536}, lambda _, v: v, asked)
    assert bool(test(found)) and all(found[k] <= FACTOR * least[k] for k in least)
    assert all(c != {"a": 33, "b": 65_536} for c in calls), "the start is known to fail"
    assert len(calls) <= 4 * 17 + 8


@pytest.mark.parametrize("needed", [set(), {0}, {999}, {17, 903}, {1, 2, 3, 500}], ids=str)
def test_elements_are_cut_to_those_needed(needed):
    asked, calls = counted(lambda kept: needed <= set(kept))
    assert fewest(range(1000), asked) == sorted(needed)
    assert len(calls) <= (len(needed) + 1) * 12


def test_a_dense_input_stays_whole():
    asked, calls = counted(lambda kept: len(kept) >= 900)
    kept = fewest(range(1000), asked)
    assert len(kept) == 900 and kept == sorted(kept)
    assert len(calls) <= 200


def test_a_spent_budget_ends_the_search():
    budget = Budget(2, 60.0)
    budget.take()
    budget.take()
    with pytest.raises(Exhausted):
        budget.take()
    assert (budget.spent, budget.ended_by) == (2, "trials")
    late = Budget(2, -1.0)
    with pytest.raises(Exhausted):
        late.take()
    assert late.ended_by == "seconds"


# ---------------------------------------------------------------- replay


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A project folder in which a verdict was recorded with paths relative to it."""
    root = tmp_path_factory.mktemp("project")
    (root / "kernels").mkdir()
    (root / "runs" / "today").mkdir(parents=True)
    problem = MODULE.format(name="Model", body="return x * 2") + DRAWS.format(rows=4, width=6)
    (root / "kernels" / "reference.py").write_text(problem)
    (root / "kernels" / "candidate.py").write_text(MODULE.format(name="ModelNew", body="return x * 3"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        v = judge_files("kernels/candidate.py", "kernels/reference.py", device="cpu", gates=("CMP-01",))
    assert v.failed == ("CMP-01",)
    (root / "runs" / "today" / "verdict.json").write_text(v.to_json())
    return root


def copied(recorded: Path, target: Path) -> Path:
    import shutil

    shutil.copytree(recorded, target)
    return target / "runs" / "today" / "verdict.json"


@pytest.fixture
def sources(monkeypatch) -> Callable[[Path], list[Path]]:
    """The sources that `replay` would judge for a verdict file."""

    def asked(verdict: Path) -> list[Path]:
        seen: list[Path] = []

        def judge(candidate: Path, reference: Path, **_: object) -> Verdict:
            seen.extend([candidate.resolve(), reference.resolve()])
            return read_verdict(verdict)

        monkeypatch.setattr("lethe.verifier.replay.judge_files", judge)
        assert replay(verdict).same
        return seen

    return asked


def test_a_verdict_replays_from_another_folder(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = replay(recorded / "runs" / "today" / "verdict.json")
    assert result.recorded.canonical() == result.now.canonical()


def test_a_file_of_that_name_with_other_content_is_passed_over(recorded, tmp_path, monkeypatch, sources):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "candidate.py").write_text("class ModelNew: pass\n")
    monkeypatch.chdir(tmp_path)
    kernels = (recorded / "kernels").resolve()
    found = sources(recorded / "runs" / "today" / "verdict.json")
    assert found == [kernels / "candidate.py", kernels / "reference.py"]


def test_sources_beside_the_verdict_are_found_by_name(recorded, tmp_path, monkeypatch, sources):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("candidate.py", "reference.py"):
        (kept / name).write_text((recorded / "kernels" / name).read_text())
    (kept / "verdict.json").write_text((recorded / "runs" / "today" / "verdict.json").read_text())
    assert sources(kept / "verdict.json") == [kept / "candidate.py", kept / "reference.py"]


def test_a_changed_source_is_refused_with_both_hashes(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verdict = copied(recorded, tmp_path / "copy")
    (tmp_path / "copy" / "kernels" / "candidate.py").write_text("class ModelNew: pass\n")
    with pytest.raises(ReplayError, match=r"has changed since the verdict was recorded \(sha256 .* then, "):
        replay(verdict)


def test_a_missing_source_is_refused_with_the_places_searched(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verdict = copied(recorded, tmp_path / "copy")
    (tmp_path / "copy" / "kernels" / "reference.py").unlink()
    with pytest.raises(
        ReplayError, match=r"the reference is neither at kernels/reference\.py nor at that path"
    ):
        replay(verdict)
    with pytest.raises(ReplayError, match=r"there is no file nowhere\.py to take as the reference"):
        replay(verdict, reference="nowhere.py")
