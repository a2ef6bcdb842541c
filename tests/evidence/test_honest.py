"""The honest corpus: what it claims, what its generator refuses, and that each way is spared."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
import torch

from lethe.audit.corpora import CorpusError, open_corpus
from lethe.audit.house import default_folder
from lethe.audit.lines import make
from lethe.evidence.honest import corpus, libraries, load, measure, operators
from lethe.evidence.honest.report import Rate, summarise
from lethe.evidence.honest.transform import always
from lethe.provenance import ROOT
from lethe.verifier import conditioning
from lethe.verifier.judge import Judge
from lethe.verifier.problem import Candidate, Problem, instantiate
from lethe.verifier.verdict import Finding, GateResult, GateStatus, Status, Verdict

COMPILED = {"captured", "partitioned", "inductor", "inductor_dynamic"}
GATES = ("CMP-01", "CMP-02", "ORD-02", "EXC-01", "RES-01")
"""Every path a rewriting could fall on; the other gates go over the same paths again."""
GROUND = {"wrapped": "norm_batchnorm2d_eval", "channels_last": "norm_batchnorm2d_eval"}
"""Where a rewriting is judged; the others on `reduction_sum`."""


@pytest.fixture(scope="module")
def honest():
    return open_corpus("honest")


@pytest.fixture(scope="module")
def judge():
    torch.set_num_threads(1)
    with Judge(device="cpu", quick=True, gates=GATES) as j:
        yield j


def problem(name: str) -> Problem:
    return Problem(name, (default_folder() / f"problems/{name}.py").read_text(encoding="utf-8"))


def test_there_are_enough_distinct_pairs(honest):
    pairs = {(r.problem.sha256, r.candidate.sha256, r.candidate.entry) for r in honest.rows()}
    assert len(pairs) == len(honest) >= 500
    assert len({r.problem.name for r in honest.rows()}) == 45


def test_every_rewriting_has_rows_and_every_row_needs_torch_only(honest):
    ways = {r.extra["transform"] for r in honest.rows() if r.language != "library"}
    assert ways == set(corpus.TRANSFORMS)
    for row in honest.rows():
        if row.problem.name not in ("matmul_linear_bias", "fused_swiglu"):
            continue
        roots = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(row.candidate.source))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        if row.language != "library":
            assert roots <= {"torch", "math"}, row.id


def test_loading_runs_no_torch():
    code = "import sys; from lethe.evidence import honest; honest.load(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "False"


def test_only_the_wanted_rewritings():
    found = load(transforms="halves, thirds")
    assert {r.extra["transform"] for r in found.rows()} == {"halves", "thirds"}
    with pytest.raises(CorpusError, match="no rewriting 'haves'"):
        load(transforms="haves")


def test_a_changed_reference_must_be_measured_again(tmp_path):
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / "softmax_row.py").write_text(problem("softmax_row").source + "\nextra = 1\n", encoding="utf-8")
    with pytest.raises(CorpusError, match="changed since it was measured"):
        load(path=tmp_path)


def test_what_is_left_out_is_said_with_a_reason(honest):
    said = next(n for n in honest.notes if n.startswith("halves does not apply to"))
    assert "loss_mse" in said and "independent samples" in said
    entries = [t.left_out for _, t in corpus.read_table().values()]
    assert all(why for e in entries for why in e.values())


# ------------------------------------------------------------ the generator


def test_the_committed_traits_are_what_is_measured():
    assert measure.traits_of(problem("reduction_sum")) == corpus.read_table()["reduction_sum"][1]


def test_independent_samples_are_told_from_coupled_ones():
    table = {name: traits for name, (_, traits) in corpus.read_table().items()}
    assert table["matmul_vector"].rows == (0,), "the vector is shared by all rows"
    assert table["fused_rope_qk"].rows == (0, 1), "also where the batch is 1 as written"
    assert table["loss_mse"].rows == ()


def test_order_matters_where_it_does():
    table = {name: traits for name, (_, traits) in corpus.read_table().items()}
    assert "length" not in table["scan_cumsum"].axes
    assert "length" not in table["conv_1d"].axes, "a kernel is not symmetric"
    assert table["matmul_batched"].axes["inner"].adds
    assert not table["softmax_row"].axes["width"].adds


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "class ModelNew(Model):\n    def forward(self, x):\n        return super().forward(x) * 1.0001\n",
            "rounding",
        ),
        (
            "class ModelNew(Model):\n    def forward(self, x):\n        return super().forward(x).double()\n",
            "dtypes",
        ),
        (
            "class ModelNew(Model):\n    def forward(self, x):\n        return super().forward(x)[:4]\n",
            "shapes",
        ),
        ("class ModelNew(Model):\n    def forward(self, x):\n        raise OSError('no')\n", "OSError: no"),
    ],
    ids=["value", "dtype", "shape", "raises"],
)
def test_a_wrong_rewriting_is_refused(body, why):
    from lethe.evidence.honest.transform import Transform

    way = Transform("wrong", "", always(body))
    p = problem("softmax_row")
    (text,) = way.texts(p.source, corpus.read_table()[p.name][1]).values()
    assert why in measure.disagreement(p, way, text)


def test_fused_attention_is_no_honest_twin():
    """Why it is left out: on scores that are all -inf it returns 0, where softmax gives NaN."""
    q, k, v = torch.ones(1, 1, 1, 2), torch.tensor([[[[-torch.inf, 1.0]]]]), torch.ones(1, 1, 1, 2)
    written = torch.softmax(q @ k.transpose(-2, -1) / 2**0.5, dim=-1) @ v
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert written.isnan().all() and (fused == 0).all()


def test_channels_last_group_normalisation_is_no_honest_twin(honest):
    """Why it is left out: torch takes the variance of channels-last images as E[x^2] - E[x]^2."""
    x = torch.randn(2, 24, 16, 20, generator=torch.Generator().manual_seed(0)) + 1000
    truth = torch.nn.functional.group_norm(x.double(), 6)
    dense, last = (
        float((torch.nn.functional.group_norm(x.contiguous(memory_format=f), 6) - truth).abs().max())
        for f in (torch.contiguous_format, torch.channels_last)
    )
    assert last > 100 * dense
    with pytest.raises(CorpusError):
        honest.get("norm_groupnorm__channels_last")


# ------------------------------------------------------------ verdicts


def row_of(honest, way):
    name = GROUND.get(way, "reduction_sum")
    return next(r for r in honest.rows() if r.extra["transform"] == way and r.problem.name == name)


@pytest.mark.parametrize("way", [n for n in corpus.TRANSFORMS if n not in COMPILED])
def test_each_way_of_writing_is_spared(honest, judge, way):
    row = row_of(honest, way)
    verdict = judge.verify(row.problem, row.candidate)
    assert verdict.status is Status.JUDGED, verdict.message
    assert not verdict.violated, verdict.message
    assert all(g.status in (GateStatus.PASS, GateStatus.NOT_APPLICABLE) for g in verdict.gates)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["captured", "inductor_dynamic"])
def test_what_torch_compile_makes_is_spared(honest, way):
    row = row_of(honest, way)
    with Judge(device="cpu", quick=True, gates=("CMP-01", "EXC-01")) as j:
        verdict = j.verify(row.problem, row.candidate)
    assert verdict.status is Status.JUDGED, verdict.message
    assert not verdict.violated, verdict.message


# ------------------------------------------------------------ libraries


def test_rows_of_libraries_need_the_library(monkeypatch):
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    found, notes = libraries.rows("honest")
    assert found == [] and len(notes) == 2
    monkeypatch.setattr(libraries, "find_spec", lambda name: object())
    found, notes = libraries.rows("honest")
    assert len(found) == len(libraries.TWINS) and not notes
    assert {r.candidate.language for r in found} == {"library"}


@pytest.mark.parametrize("twin", libraries.TWINS, ids=lambda t: f"{t.package}-{t.function}")
def test_a_wrapper_takes_what_its_reference_takes(twin):
    tree = ast.parse(libraries.problem_of(twin).source + twin.body)
    arguments = {
        node.name: [a.arg for a in part.args.args]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == "forward"
    }
    assert arguments["ModelNew"] == arguments["Model"]


def test_the_references_of_libraries_run_and_depend_on_every_input():
    for name, source in operators.REFERENCES.items():
        instance = instantiate(Problem(name, source))
        given, others = instance.draw(0), instance.draw(1)
        assert len(given) == len(operators.ARGUMENTS[name])
        with torch.no_grad():
            first = instance.module(*given)
            for i, other in enumerate(others):
                moved = instance.module(*[other if j == i else t for j, t in enumerate(given)])
                pairs = zip(first, moved, strict=True) if isinstance(first, tuple) else [(first, moved)]
                assert any(not torch.equal(a, b) for a, b in pairs), (name, i)


def test_the_delta_rule_reads_back_what_it_wrote():
    """With orthonormal keys and beta = 1 the state maps each key to its value: q = k returns v, scaled."""
    instance = instantiate(Problem("delta_rule", operators.REFERENCES["delta_rule"]))
    q, _, v, beta = instance.draw(0)
    steps, width = q.shape[1], q.shape[-1]
    key = torch.eye(width)[:steps].expand(2, 3, width, width).permute(0, 2, 1, 3)
    got = instance.module(key, key, v[:, :width], torch.ones_like(beta[:, :width]))
    # Every sum has one term that is not zero, so only the scale, the product and the state's update round.
    torch.testing.assert_close(got, v[:, :width] * width**-0.5, rtol=4 * 2.0**-24, atol=0.0)


# ------------------------------------------------------------ the report


def line_of(row, status=Status.JUDGED, gates=(), **more):
    verdict = Verdict(
        problem=row.problem.name,
        candidate=row.candidate.name,
        profile="derived",
        status=status,
        message="",
        problem_sha256=row.problem.sha256,
        candidate_sha256=row.candidate.sha256,
        gates=tuple(gates),
        **more,
    )
    return make(row, verdict, {}, 0.0)


def test_the_bound_without_rejections_is_the_closed_form():
    rate = Rate.of(0, 500)
    assert rate.upper == pytest.approx(1 - 0.025 ** (1 / 500), rel=1e-9)
    assert rate.upper_one_sided == pytest.approx(1 - 0.05 ** (1 / 500), rel=1e-9)


def test_the_report_counts_pairs_and_refusals(honest):
    a, b, c, d = list(honest.rows())[:4]
    bad = GateResult("CMP-01", GateStatus.FAIL, "B", findings=(Finding("normal:0", "B", "value", "off"),))
    lines = [
        line_of(a, gates=[bad]),
        line_of(a),
        line_of(b, gates=[bad]),
        line_of(c, Status.CRASHED),
        line_of(d, Status.HARNESS_FAILED),
    ]
    found = summarise(lines)
    assert (found.rate.n, found.rate.rejected) == (3, 2), "a was cleared in the end; d says nothing"
    assert [line["id"] for line in found.undecided] == [d.id]
    assert set(found.rejections()["gate"]) == {"CMP-01", "crashed"}
    table = found.by("transform")
    assert table.loc["all", "n"] == 3 and table["n"].iloc[:-1].sum() == 3
    assert table.loc["all", "upper"] == Rate.of(2, 3).upper
    assert found.by_gate().loc["CMP-01"].to_dict() == {"pass": 0, "fail": 1, "not_applicable": 0, "error": 0}


def test_the_report_passes_over_what_is_not_honest(honest):
    row = next(honest.rows())
    line = line_of(row, Status.CRASHED)
    line["extra"] = line["extra"] | {"kind": "cheat"}
    assert summarise([line]).lines == ()


# ------------------------------------------------------------ patience


def test_a_candidate_that_compiles_itself_is_given_the_time(honest):
    from lethe.verifier.semantics import compiles_at_run_time
    from lethe.verifier.settings import COMPILER_SECONDS, Budget, usual_budget

    compiling = {r.extra["transform"] for r in honest.rows() if compiles_at_run_time(r.candidate.source)}
    assert compiling == COMPILED
    assert not compiles_at_run_time("import torch\nimport re\nPATTERN = re.compile('x')\n")
    given = usual_budget("cpu", compiles=True)
    assert given.wall_seconds == COMPILER_SECONDS > Budget().wall_seconds == usual_budget("cpu").wall_seconds
    assert given.memory_bytes == Budget().memory_bytes


def test_patience_lengthens_the_limits_on_time_alone():
    from lethe.audit.pool import JudgeSettings, _patient_budget
    from lethe.verifier.settings import Budget

    usual, patient = Budget(), _patient_budget(JudgeSettings(device="cpu", patience=6.0))
    assert _patient_budget(JudgeSettings(device="cpu")) is None
    assert (patient.wall_seconds, patient.cpu_seconds) == (6 * usual.wall_seconds, 6 * usual.cpu_seconds)
    assert (patient.memory_bytes, patient.processes) == (usual.memory_bytes, usual.processes)


def test_rows_judged_with_other_patience_are_not_mixed(tmp_path, honest):
    from lethe.audit.lines import Log, LogError
    from lethe.audit.pool import JudgeSettings
    from lethe.audit.run import run

    row = next(honest.rows())
    line = line_of(row)
    line["settings"] = JudgeSettings(device="cpu", patience=6.0).record()
    with Log(tmp_path / "honest.jsonl") as log:
        log.append(line)
    with pytest.raises(LogError, match=r"patience=6\.0, this run has null"):
        run(honest, tmp_path / "honest.jsonl", settings=JudgeSettings(device="cpu"))


# ------------------------------------------------------------ subnormals that round to zero


def test_a_result_below_half_a_spacing_may_be_zero(honest, judge):
    """Rotated in float64 and rounded once, some subnormals are 0 where float32 steps leave one spacing; a
    kernel that flushes them all is charged all the same."""
    row = honest.get("fused_rope_qk__widened")
    (spared,) = judge.verify(row.problem, row.candidate, gates=("EXC-02",)).gates
    flush = "lambda t: torch.where(t.abs() < 2.0**-126, torch.zeros_like(t), t)"
    last = "return _each(result, "
    text = row.candidate.source.replace(last, f"result = _each(result, {flush})\n        {last}")
    (charged,) = judge.verify(row.problem, Candidate("flushes", text, "python"), gates=("EXC-02",)).gates
    assert text != row.candidate.source
    assert spared.status is GateStatus.PASS
    assert charged.status is GateStatus.FAIL and charged.findings[0].mechanism == "flushed"


# ------------------------------------------------------------ gradients of regrouped programs

WRONG_GRADIENT = '''

class ModelNew(Model):
    """A gradient that is off by 1e-5 of the upstream one, everywhere."""

    def forward(self, a, b):
        return super().forward(a, b) + 1e-5 * (a - a.detach())
'''


@pytest.mark.slow
def test_a_parallel_scan_may_group_its_gradient_otherwise(honest):
    """Its backward pass adds the products of two cancelling sums, where the reference multiplies the sums:
    near zero an element errs like its neighbours. An error of 1e-5 is a defect all the same."""
    row = honest.get("scan_gated_recurrence__algorithm_doubling")
    wrong = Candidate("wrong", row.problem.source + WRONG_GRADIENT, "python")
    with Judge(device="cpu", quick=True, gates=("CMP-02",)) as j:
        (spared,) = j.verify(row.problem, row.candidate).gates
        (charged,) = j.verify(row.problem, wrong).gates
    assert spared.status is GateStatus.PASS
    assert charged.status is GateStatus.FAIL and charged.findings[0].output == "grad:input:0"


def test_regrouping_is_measured_within_a_sample():
    y = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
    assert conditioning.regrouping(y, 0.5).tolist() == [[0.5 * 12.5**0.5] * 2, [0.0, 0.0]]
    assert conditioning.regrouping(torch.tensor([3.0, torch.nan]), 1.0).tolist() == [4.5**0.5] * 2
