"""Mutation operators, the sample, the recogniser of equivalents, the usual check and the report."""

from __future__ import annotations

import ast
import json
from collections import Counter

import pytest

from lethe.audit.corpora import CorpusError, Row
from lethe.audit.lines import make
from lethe.evidence import common_check, mutants
from lethe.evidence.mutants import bases, equivalents, generate, record, report, samples
from lethe.evidence.mutants.catalog import OPERATORS
from lethe.evidence.mutants.cpp import CppText
from lethe.verifier.judge import Judge
from lethe.verifier.problem import Candidate, load_candidate, load_problem
from lethe.verifier.server import SuspectServer
from lethe.verifier.verdict import GateResult, GateStatus, Status, Verdict
from tests.evidence import mutant_sources as sources


def base_of(source: str, language: str, shapes=None) -> bases.Base:
    row = Row(
        id=f"small_{language}",
        corpus="house",
        problem=load_problem(sources.SOFTMAX, "softmax"),
        candidate=Candidate("small", source, language),
        family="softmax",
        language=language,
        accepted=True,
        licence="MIT",
    )
    return bases.Base(row, shapes or [[6, 33]])


@pytest.fixture(scope="module")
def small() -> list[generate.Mutant]:
    pairs = [(sources.TRITON, "triton"), (sources.TWO_KERNEL_GRID, "triton"), (sources.CPP, "cpp")]
    return [m for source, language in pairs for m in generate.mutants(base_of(source, language))]


@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_makes_a_valid_distinct_mutant(small, name):
    made = [m for m in small if m.edit.operator == name]
    assert made, f"{name} has no site in the sources of this test"
    for m in made:
        original = m.base.row.candidate.source
        ast.parse(m.candidate.source)
        assert m.candidate.source != original
        changed = [
            n
            for n, (a, b) in enumerate(
                zip(original.splitlines(), m.candidate.source.splitlines(), strict=True), 1
            )
            if a != b
        ]
        assert m.edit.line in changed


def test_ids_are_unique_and_no_two_mutants_of_a_base_are_the_same_text(small):
    by_base: dict[str, list[generate.Mutant]] = {}
    for m in small:
        by_base.setdefault(m.base.row.candidate.sha256, []).append(m)
    for some in by_base.values():
        assert len({m.id for m in some}) == len({m.candidate.source for m in some}) == len(some)


@pytest.mark.parametrize(
    ("operator", "line"),
    [
        ("drop_mask_term", "mask = row_mask[:, None]"),
        ("other_zero_for_inf", "mask=mask, other=0.0)"),
        ("narrow_accumulator", "acc = (acc + (x * w[None, :])).to(tl.float16).to(tl.float32)"),
        ("forgotten_tail", "for start in range(0, N // BLOCK_N * BLOCK_N, BLOCK_N):"),
        ("epsilon_outside_root", "rstd = (1.0 / (tl.sqrt(mean) + eps))"),
        ("swapped_operands", "mean = N / tl.sum(kept, axis=1)"),
        ("drop_nan_propagation", "best = tl.maximum(best, x)"),
        ("atomic_to_store", "tl.store(out_ptr + rows, tl.sum(run, axis=1), mask=row_mask)"),
        ("hard_coded_block", "BLOCK_N=64, ROWS=4"),
        ("cpp_stale_accumulator", "static float s = 0.f;"),
        ("cpp_init_for_max", "float m = 0.f;"),
        ("cpp_loop_long", "for (int64_t i = 1; i <= n; ++i)"),
        ("cpp_drop_epsilon", "std::sqrt(s);"),
    ],
)
def test_an_operator_writes_what_its_name_says(small, operator, line):
    assert any(line in m.candidate.source for m in small if m.edit.operator == operator)


def test_fillers_that_reach_no_other_lane_are_left_alone():
    made = list(generate.mutants(base_of(sources.TWO_KERNEL_GRID, "triton")))
    assert not any(m.edit.operator == "other_garbage" for m in made)
    assert any(m.edit.operator == "drop_load_mask" for m in made)


def test_loop_headers_and_pointers_are_no_arithmetic():
    text = CppText(sources.CPP)
    signs = {text.source[m.start() - 8 : m.end() + 4] for m in _pluses(text)}
    assert all("i +" not in s and "r * n" not in s for s in signs)
    assert any("rstd + s" in s for s in signs)


def _pluses(text: CppText):
    import re

    return [m for m in re.finditer(r" \+ ", text.code) if text.computes(m.start() + 1)]


# ---------------------------------------------------------------- the corpus


@pytest.fixture(scope="module")
def corpus():
    return mutants.load()


def test_the_corpus_is_large_and_balanced(corpus):
    rows = list(corpus.rows())
    assert len(rows) == mutants.MUTANTS >= 400
    assert corpus.name == "mutants"
    sources_seen = {r.candidate.sha256 for r in rows}
    assert len(sources_seen) == len(rows)
    for row in rows:
        ast.parse(row.candidate.source)
        assert row.extra["kind"] == "mutant"
        assert row.id == f"{row.extra['base']}/{row.extra['operator']}/L{row.extra['line']}" or "." in row.id
    operators = Counter(r.extra["operator"] for r in rows)
    assert max(operators.values()) <= len(rows) / 40
    assert len(operators) >= 60
    assert {"triton", "cpp"} == {r.language for r in rows}
    assert len({r.extra["base"] for r in rows}) >= 30


def test_a_smaller_corpus_is_a_prefix_and_the_seed_decides(corpus):
    ids = [r.id for r in corpus.rows()]
    assert [r.id for r in mutants.load(limit=40).rows()] == ids[:40]
    assert [r.id for r in mutants.load(limit=40, seed=1).rows()] != ids[:40]


def test_a_base_that_changed_is_refused(tmp_path):
    text = json.loads((bases.data_folder() / "bases.json").read_text(encoding="utf-8"))
    text["bases"][0]["sha256"]["kernel"] = "0" * 64
    (tmp_path / "bases.json").write_text(json.dumps(text), encoding="utf-8")
    with pytest.raises(CorpusError, match="changed since"):
        bases.load(data=tmp_path)
    with pytest.raises(CorpusError, match="make it with"):
        bases.load(data=tmp_path / "nowhere")


def test_every_cpp_base_is_built_without_fast_math():
    found, _ = bases.load()
    assert all("-ffast-math" not in b.row.candidate.source for b in found)


def test_recorded_equivalents_speak_of_this_corpus_and_stay_below_a_tenth():
    recorded = record.recorded()
    if not recorded:
        pytest.skip("no record yet: python -m lethe.evidence.mutants equivalents")
    by_id = {m.id: m for m in generate.corpus()}
    for name, entry in recorded.items():
        if name in by_id:
            assert entry["sha256"] == by_id[name].candidate.sha256, f"{name} was compared as another text"
    same = [n for n, e in recorded.items() if e["equivalent"]]
    assert len(same) <= len(recorded) / 10
    assert all(recorded[n]["reason"] for n in same)


# ---------------------------------------------------------------- equivalents


@pytest.fixture(scope="module")
def server():
    with SuspectServer() as s:
        yield s


@pytest.fixture(scope="module")
def comparison(server):
    """On fewer random sizes than a campaign uses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "SIZES", 1)
        patch.setattr(samples, "CORNERS", ((17, 241), (65, 1025)))
        patch.setattr(samples, "ADJACENT", range(127, 130))
        yield from _comparison(server)


def _comparison(server):
    problem = load_problem(sources.SOFTMAX, "softmax")
    with equivalents.Comparison(server, problem, torch_softmax()) as c:
        yield c


def torch_softmax(old: str = "", new: str = "") -> Candidate:
    assert old in sources.SOFTMAX_TORCH
    return Candidate("softmax", sources.SOFTMAX_TORCH.replace(old, new), "python")


def test_a_true_equivalent_is_recognised(comparison):
    outcome = comparison.examine(torch_softmax("dim=-1", "dim=1"))
    assert (outcome.equivalent, outcome.how) == (True, "identical")
    assert outcome.samples >= 40


def test_another_order_of_the_same_sum_is_recognised_as_rounding(comparison):
    outcome = comparison.examine(
        torch_softmax("e.sum(dim=-1, keepdim=True)", "e.flip(-1).cumsum(-1)[..., -1:]")
    )
    assert (outcome.equivalent, outcome.how) == (True, "rounding"), outcome


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x.amax(dim=-1, keepdim=True)", "x.amax(dim=-1, keepdim=True).clamp(min=-1e4)"),
        ("return e", "e[..., 1000:] = e[..., 1000:] * 1.000001\n        return e"),
        (
            "return e",
            "x = x.nan_to_num(1.0)\n        e = torch.exp(x - x.amax(-1, keepdim=True))\n        return e",
        ),
        ("e = torch.exp(x", "x.mul_(1.0 if x.shape[0] < 60 else -1.0)\n        e = torch.exp(x"),
        ("e.sum(dim=-1, keepdim=True)", "e.half().sum(dim=-1, keepdim=True).float()"),
    ],
    ids=[
        "all below -1e4",
        "last columns of wide rows",
        "NaN replaced",
        "other sign from 60 rows",
        "half sum",
    ],
)
def test_a_subtle_difference_is_no_equivalence(comparison, old, new):
    outcome = comparison.examine(torch_softmax(old, new))
    assert not outcome.equivalent, outcome


def test_a_result_that_a_later_call_changes_is_no_equivalence(comparison):
    source = torch_softmax(
        "return e / e.sum(dim=-1, keepdim=True)",
        "y = e / e.sum(dim=-1, keepdim=True)\n"
        '        kept = self.__dict__.setdefault(f"b{tuple(y.shape)}", y)\n'
        "        return kept.copy_(y)",
    )
    outcome = comparison.examine(source)
    assert (outcome.equivalent, outcome.how) == (False, "changes an earlier result")


# ---------------------------------------------------------------- the verifier kills them


@pytest.fixture(scope="module")
def judge(server):
    with Judge(device="cpu", quick=True, gates=("CMP-01", "CMP-03", "ORD-02", "EXC-01", "RES-01")) as j:
        yield j


KILLED_BY = {
    "drop_store_mask": None,
    "other_zero_for_inf": None,
    "finite_minus_infinity": None,
    "max_not_subtracted": "CMP-01",
    "wrong_reduction": None,
    "swapped_operands": "CMP-01",
    "wrong_function": "CMP-01",
    "drop_factor": "CMP-01",
    "alias_output": "ORD-02",
    "reused_output": "ORD-02",
    "memoized_output": "CMP-01",
    "wrong_output_dtype": "RES-01",
    "short_block": "CMP-01",
}


@pytest.mark.slow
def test_a_dozen_mutants_are_killed_and_their_base_is_not(judge):
    problem = load_problem(sources.SOFTMAX, "softmax")
    honest = judge.verify(problem, load_candidate(sources.SOFTMAX_TRITON, name="softmax"))
    assert honest.clean, honest.message
    made: dict[str, generate.Mutant] = {}
    for m in generate.mutants(base_of(sources.SOFTMAX_TRITON, "triton")):
        made.setdefault(m.edit.operator, m)
    for operator, gate in KILLED_BY.items():
        verdict = judge.verify(problem, made[operator].candidate)
        assert verdict.violated, f"{made[operator].id} survives"
        assert gate is None or gate in verdict.failed, f"{made[operator].id}: {verdict.message}"


# ---------------------------------------------------------------- the usual check, the report


def test_the_usual_check_accepts_what_it_cannot_see_and_resumes(tmp_path):
    wrong = torch_softmax("x.amax(dim=-1, keepdim=True)", "0.0")  # overflows for large inputs only
    coarse = torch_softmax("return e /", "return 1.003 * e /")
    rows = [_row(c, i) for i, c in enumerate((wrong, coarse))]
    lines = list(common_check.check(rows))
    assert [line["accepted"] for line in lines] == [
        {"0.01": True, "0.0001": True},
        {"0.01": True, "0.0001": False},
    ]
    file = tmp_path / "check.jsonl"
    file.write_text("".join(json.dumps(x) + "\n" for x in lines) + '{"torn', encoding="utf-8")
    assert common_check.run(rows, file) == 0
    assert len(common_check.read(file)) == 2


def _row(candidate: Candidate, number: int) -> Row:
    base = base_of(sources.SOFTMAX_TORCH, "python").row
    return Row(**{**base.__dict__, "id": f"row{number}", "candidate": candidate})


def test_the_report_counts_equivalents_both_ways():
    killed = [("CMP-01",), ("EXC-01", "CMP-01"), (), ()]
    rows, lines = [], []
    for i, gates in enumerate(killed):
        m = generate.Mutant(
            f"b/sign_flip/L{i}",
            base_of(sources.SOFTMAX_TORCH, "python"),
            generate.Edit("sign_flip", i, ()),
            torch_softmax("return", f"return  # {i}\n        return"),
        )
        rows.append(m.row())
        verdict = Verdict(
            problem="p",
            candidate=m.id,
            profile="derived",
            status=Status.JUDGED,
            message="",
            candidate_sha256=m.candidate.sha256,
            gates=tuple(
                GateResult(g, GateStatus.FAIL if g in gates else GateStatus.PASS, "B")
                for g in ("CMP-01", "EXC-01")
            ),
        )
        lines.append(make(m.row(), verdict, {}, 1.0))
    same = {"b/sign_flip/L3": {"sha256": rows[3].candidate.sha256, "equivalent": True, "reason": "x"}}
    df = report.frame(lines, same, [])
    rates = report.rates(df)
    assert str(rates["verifier, equivalents left out"]).startswith("2/3")
    assert str(rates["verifier, equivalents counted as survivors"]).startswith("2/4")
    matrix = report.matrix(df).set_index("operator").loc["sign_flip"]
    assert (matrix["CMP-01"], matrix["EXC-01"], matrix["survivors"], matrix["equivalent"]) == (2, 1, 1, 1)
    assert list(report.survivors(df)["id"]) == ["b/sign_flip/L2"]
    assert "2/3" in report.text(df)
    stale = {"b/sign_flip/L3": {**same["b/sign_flip/L3"], "sha256": "0"}}
    assert list(report.survivors(report.frame(lines, stale, []))["id"]) == [
        "b/sign_flip/L2",
        "b/sign_flip/L3",
    ]


# ---------------------------------------------------------------- what survivors taught the verifier


def spread_of(kind: str) -> list:
    from lethe.verifier.inputs import draw
    from lethe.verifier.problem import instantiate

    return draw(instantiate(load_problem(sources.SOFTMAX, "softmax")), kind, 3)


def test_deep_draws_lie_below_any_finite_stand_in_for_minus_infinity():
    (x,) = spread_of("deep")
    assert bool((x < -1e4).all())


def test_spikes_stand_at_both_ends_and_differ_in_height():
    (x,) = spread_of("spike")
    peaks = x.argmax(-1)
    assert peaks[[0, 1, -2, -1]].tolist() == [0, 1, x.shape[1] - 2, x.shape[1] - 1]
    heights = x.amax(-1)
    assert float(heights.min()) > 65_504 and len(set(heights.tolist())) == len(heights)


def test_one_shape_ends_one_element_after_a_tile():
    from lethe.verifier.shapes import shape_cases, size_model

    source = sources.SOFTMAX.replace("(6, width)", "(rows, width)").replace(
        "width = 33", "width = 33\nrows = 32"
    )
    problem = load_problem(source, "softmax")
    cases = shape_cases(problem, size_model(problem))
    (past,) = [c for c in cases if c.also == "spike"]
    assert past.sizes == {"rows": 17, "width": 241}
    assert any(c.sizes["width"] == 4097 for c in cases if c.also == "sorted")
    assert any(c.sizes.get("rows", 0) > 1024 for c in cases), "a batch above a tile of 1024"


STALE = """import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, 3)
        self.kept = {}

    def forward(self, x):
        weight = WEIGHT
        return x @ weight.t() + self.proj.bias
"""

LINEAR = """import torch
import torch.nn as nn

width = 8


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, 3)

    def forward(self, x):
        return self.proj(x)


def get_inputs():
    return [torch.randn(4, width)]


def get_init_inputs():
    return [width]
"""


def test_weights_that_go_stale_after_the_first_call_are_found():
    kept = 'self.kept.setdefault("w", self.proj.weight.detach().clone())'
    problem = load_problem(LINEAR, "linear")
    with Judge(device="cpu", quick=True, gates=("ORD-02",)) as judge:
        honest = judge.verify(problem, load_candidate(STALE.replace("WEIGHT", "self.proj.weight")))
        stale = judge.verify(problem, load_candidate(STALE.replace("WEIGHT", kept)))
    assert honest.clean, honest.message
    assert [f.mechanism for f in stale.integrity] == ["stale_weights"]


OVERRUN = """import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape)
        longer = torch.as_strided(x, (x.numel() + 4,), (1,), x.storage_offset())
        torch.as_strided(out, (x.numel() + 4,), (1,), out.storage_offset()).copy_(longer * 1.0)
        return out
"""


def test_a_nan_read_beyond_an_input_does_not_hide_where_it_is_stored(server):
    """Both guards held the same NaN, whose bits survive arithmetic: the overrun left no trace."""
    import torch

    from lethe.verifier.custody import Limits

    with server.spawn(Candidate("overrun", OVERRUN, "python"), executor="cpu", limits=Limits()) as suspect:
        suspect.load()
        suspect.build([], 0)
        (report,) = suspect.run([torch.randn(4, 8)])
    assert not report.guards_intact and any(note.startswith("out: 16 bytes after") for note in report.overrun)
