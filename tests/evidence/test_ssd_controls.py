"""The controls of the SSD engine: references that are the operator, realistic sizes, an honest record."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lethe.audit.corpora import CorpusError
from lethe.evidence import elsewhere, ssd_controls
from lethe.references.ssd import ssd_backward, ssd_reference
from lethe.verifier.executors import libraries
from lethe.verifier.modes import widened
from lethe.verifier.problem import ProblemError, instantiate, sizes_as_written
from tests.evidence.test_controls import line

STANDS_FOR_THE_ENGINE = "lethe/kernels/mamba3/checks.py"
DEVICE = {"name": "NVIDIA H200", "kind": "cuda", "sm_count": 132, "capability": "9.0", "driver": "580"}


@pytest.fixture
def corpus(monkeypatch):
    """The corpus, whether or not the engine is there: rows hold a digest of its sources."""
    monkeypatch.setattr(ssd_controls, "SOURCE", STANDS_FOR_THE_ENGINE)
    return ssd_controls.load()


def on_the_grid(instance, seed: int) -> list[torch.Tensor]:
    """Inputs that bfloat16 holds, in float64, so that the reference's own rounding is none."""
    return [t.bfloat16().double() for t in instance.draw(seed)]


def parameters(module) -> dict[str, torch.Tensor]:
    p = {name: t.detach().double() for name, t in module.named_parameters()}
    return {"A": -torch.exp(p["A_log"]), "D": p["D"], "dt_bias": p["dt_bias"], "dt_softplus": True}


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-12 * b.abs().max())


def test_the_forward_reference_is_the_operator(corpus):
    instance = instantiate(corpus.get("S1").problem)
    x, dt, B, C, z = on_the_grid(instance, 0)
    with widened():
        y = instance.module.double()(x, dt, B, C, z)
    assert close(y, ssd_reference(x, dt, B=B, C=C, z=z, **parameters(instance.module)))


def test_the_backward_reference_is_the_operator(corpus):
    instance = instantiate(corpus.get("S2").problem)
    x, dt, B, C, z, initial, dy, dfinal = on_the_grid(instance, 0)
    with widened():
        y, final, *gradients = instance.module.double()(x, dt, B, C, z, initial, dy, dfinal)
    given = {"B": B, "C": C, "z": z, "initial_states": initial, **parameters(instance.module)}
    expected, last = ssd_reference(x, dt, **given, return_final_states=True)
    assert close(y, expected) and close(final, last)
    exact = ssd_backward(dy, x, dt, **given, dfinal=dfinal)
    names = ("x", "dt", "B", "C", "z", "initial_states", "A", "D", "dt_bias")
    for name, got in zip(names, gradients, strict=True):
        assert close(got, exact[name]), name


@pytest.mark.parametrize("name", list(ssd_controls.NAMES))
def test_sizes_are_realistic(corpus, name):
    """Three chunks or more, the last cut short; an odd number of heads in a group."""
    row = corpus.get(name)
    sizes = sizes_as_written(row.problem)
    chunk = next(int(s.split("=")[1]) for s in row.candidate.source.splitlines() if s.startswith("CHUNK ="))
    assert sizes["length"] > 2 * chunk and sizes["length"] % chunk
    assert sizes["groups"] > 1 and sizes["heads"] // sizes["groups"] % 2 == 1
    assert instantiate(row.problem).module.chunk % chunk == 0


@pytest.mark.parametrize("name", list(ssd_controls.NAMES))
def test_the_reference_says_what_it_is_declared_for(corpus, name):
    problem = corpus.get(name).problem
    for sizes in ({"width": 32}, {"states": 96}):
        instance = instantiate(problem, sizes)
        with pytest.raises((ProblemError, ValueError), match="64 channels and 64 or 128 states"):
            instance.module(*instance.draw(0))


def test_on_a_gpu_a_trace_is_asked_what_the_kernels_need(corpus):
    """The same text at either place; only a library's kernels are looked for in a trace."""
    here = ssd_controls.load(native=False)
    for row in corpus.rows():
        other = here.get(row.id)
        assert (row.language, row.candidate.language) == ("native", "native")
        assert (other.language, other.candidate.language) == ("triton", "triton")
        assert row.candidate.source == other.candidate.source


@pytest.mark.parametrize("name", list(ssd_controls.NAMES))
def test_a_trace_knows_the_engine_s_kernels(corpus, name):
    """A compiled kernel lies in a file that the candidate maps, and no other kernel's code does."""
    from lethe.kernels.ssd import cases, engine
    from lethe.kernels.ssd.plan import layout

    text: dict = {}
    exec(corpus.get(name).candidate.source, text)
    case = next(case for case in cases.speed() if case.gated)
    launch = layout(cases.graphs(case)[1].nodes[0], "", 90).launches[0]
    before = libraries.mapped()
    engine.forget()
    engine.prepare_cuda(launch, 90)
    text["shown"]()
    (file,) = libraries.own_files(libraries.mapped() - before)
    code = [Path(file).read_bytes()]
    assert libraries.holds(code, "gate") and not libraries.holds(code, "gradient")
    text["shown"]()
    (kept,) = text["MAPPED"].values()
    kept.close()


def test_without_the_engine_the_corpus_says_so(monkeypatch):
    monkeypatch.setattr(ssd_controls, "SOURCE", "lethe/kernels/absent")
    with pytest.raises(CorpusError, match=r"lethe/kernels/absent is missing"):
        ssd_controls.load()


def test_a_full_score_and_a_shortfall():
    from lethe.verifier.verdict import GateStatus

    both = [line("S1"), line("S2")]
    assert ssd_controls.shortfalls(both) == []
    assert ssd_controls.shortfalls([line("S1", CMP_02=GateStatus.FAIL)]) == [
        "S2 was not judged",
        "S1 is rejected by CMP-02",
        "S1: CMP-02 is fail ()",
    ]


def test_the_record_names_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(ssd_controls, "SOURCE", STANDS_FOR_THE_ENGINE)
    (tmp_path / elsewhere.MACHINE).write_text(json.dumps({"device": DEVICE, "versions": {"torch": "2.11"}}))
    (tmp_path / ssd_controls.FILE).write_text(json.dumps(line("S1")) + "\n")
    written = ssd_controls.record(tmp_path, tmp_path / "measured")
    assert written.relative_to(tmp_path / "measured").as_posix() == "h200/ssd_controls.json"
    found = json.loads(written.read_text())
    assert found["versions"] == {"torch": "2.11"} and [s["id"] for s in found["samples"]] == ["S1"]
    assert "data/corpus/ssd_controls/problems/S1.py" in found["sources"]


def test_the_candidates_differ_from_each_other(corpus):
    texts = [row.candidate.source for row in corpus.rows()]
    assert all(a != b for a, b in pairwise(texts))
