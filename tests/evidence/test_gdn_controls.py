"""The controls of the recurrence's native kernels: complete, the operator by its oracle, in the envelope."""

from __future__ import annotations

import json

import pytest
import torch

from lethe.audit.pool import JudgeSettings
from lethe.evidence import elsewhere, gdn_controls, gdn_gpu
from lethe.evidence.gdn_ladder import MEMBERS
from lethe.kernels.gdn import native
from lethe.kernels.gdn.chunks import CHUNK
from lethe.paper import gdn_control_tables
from lethe.provenance import load
from lethe.references.gdn import gated_delta_rule_backward, gated_delta_rule_forward
from lethe.verifier.modes import widened
from lethe.verifier.problem import ProblemError, instantiate, sizes_as_written
from lethe.verifier.verdict import GateStatus, Status
from tests.evidence.test_controls import line

DEVICE = {"name": "NVIDIA H200", "kind": "cuda", "sm_count": 132, "capability": "9.0", "driver": "580"}


def here(member: str):
    return next(row for row in gdn_controls.rows(native=False) if row.id == member)


def test_the_seven_members_are_there_and_as_the_kernels_take_them():
    corpus = gdn_controls.load()
    assert [row.id for row in corpus.rows()] == list(MEMBERS)
    assert {kind.dk for kind in gdn_controls.native_kinds()} == {native.DK}
    assert {kind.dv for kind in gdn_controls.native_kinds()} == set(native.DV)
    assert len(gdn_controls.native_kinds()) == len(MEMBERS) * len(native.DV)
    for row in corpus.rows():
        assert row.candidate.language == "native" and "BACKEND = 'cute_sm90'" in row.candidate.source
        twin = here(row.id).candidate.source
        assert twin.replace("BACKEND = 'torch'", "BACKEND = 'cute_sm90'") == row.candidate.source


@pytest.mark.parametrize("is_native", [True, False])
def test_three_chunks_of_which_the_last_is_cut_short(is_native):
    keys, values = gdn_controls.DECLARED if is_native else gdn_controls.REDUCED
    for row in gdn_controls.rows(native=is_native):
        sizes = sizes_as_written(row.problem)
        assert sizes["length"] > 2 * CHUNK and sizes["length"] % CHUNK
        assert (sizes["keys"], sizes["values"]) == (keys[0], values[0])


def test_the_reference_says_what_it_is_declared_for():
    instance = instantiate(here("kda").problem, {"values": 12})
    with pytest.raises((ProblemError, ValueError), match="declared for 16 keys and 16 or 8 values a head"):
        instance.module(*instance.draw(0))


def on_the_grid(t: torch.Tensor) -> torch.Tensor:
    return t.bfloat16().double()


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-11 * b.abs().max())


@pytest.mark.parametrize("member", MEMBERS)
def test_the_reference_is_the_operator(member):
    """By the token-serial oracle; gradients are taken through what stands around the operator."""
    instance = instantiate(here(member).problem)
    q, k, v, S0, do, dfinal, *gates = (on_the_grid(t) for t in instance.draw(0))
    with widened():
        o, final, *gradients = instance.module.double()(q, k, v, S0, do, dfinal, *gates)
    leaves = [t.requires_grad_() for t in (q, k, v, S0, *gates)]
    inner, scale = general(member, instance, leaves)
    detached = [t.detach() for t in inner]
    state, options = detached.pop(3), {"scale": scale}
    expected, last = gated_delta_rule_forward(*detached, initial_state=state, **options)
    assert close(o, expected) and close(final, last)
    exact = gated_delta_rule_backward(do, *detached, initial_state=state, dfinal=dfinal, **options)
    upstream = [exact[name] for name in ("q", "k", "v", "initial_state", "g", "b", "w")]
    pairs = zip(inner, upstream, strict=True)
    through, arriving = zip(*((t, g) for t, g in pairs if t.requires_grad), strict=True)
    chained = torch.autograd.grad(through, leaves, arriving)
    for got, want in zip(gradients, chained, strict=False):
        assert close(got, want)


def general(member: str, instance, leaves):
    """Operands q, k, v, S0, g, b, w of the general recurrence, and its scale, from the definitions."""
    q, k, v, S0, *gates = leaves
    q, k = (t / t.norm(dim=-1, keepdim=True) for t in (q, k))
    zero, one = torch.zeros_like(q), torch.ones_like(v)
    if member == "ssd":
        dt, rates = (gates[0] - 3.0).sigmoid()[..., None], instance.module.A_log.detach().double().exp()
        return [q, k, v, S0, -rates[:, None] * dt + zero, zero, dt * one], 1.0
    named = dict(
        zip(gdn_controls.GATES[member], (t if t.dim() == 4 else t[..., None] for t in gates), strict=True)
    )
    g = -5.0 * (named["g"] - 5.0).sigmoid() + zero if "g" in named else zero
    b = named.get("beta", named.get("b"))
    w = named.get("beta", named.get("w"))
    b, w = (zero if b is None else b.sigmoid() + zero), (one if w is None else w.sigmoid() * one)
    return [q, k, v, S0, g, b, w], q.shape[-1] ** -0.5


def test_a_member_before_the_judge():
    row = here("linear_attention")
    settings = JudgeSettings(device="cpu", quick=True)
    with gdn_controls.judge_as_written(settings) as judge:
        found = judge.verify(row.problem, row.candidate, gates=["ORD-02", "RES-01", "RES-02"])
    assert found.status is Status.JUDGED and found.sizes == {}
    status = {g.gate: g.status for g in found.gates}
    assert status["ORD-02"] is GateStatus.PASS and status["RES-01"] is GateStatus.PASS
    assert status["RES-02"] is GateStatus.NOT_APPLICABLE


def judged_line(member: str, native: bool = True, **changed: GateStatus) -> dict:
    return {**line(member, **changed), "language": "native" if native else "python"}


def test_seven_of_seven_and_a_shortfall():
    full = [judged_line(member) for member in MEMBERS]
    assert gdn_controls.shortfalls(full) == [] and gdn_controls.passed(full) == 7
    short = [judged_line("gla", RES_02=GateStatus.NOT_APPLICABLE), *full[2:]]
    assert gdn_controls.shortfalls(short) == [
        "linear_attention was not judged",
        "gla: RES-02 is not_applicable ()",
    ]
    assert gdn_controls.passed(short) == 5
    away = [judged_line("gla", native=False, RES_02=GateStatus.NOT_APPLICABLE), *full[2:]]
    assert gdn_controls.passed(away) == 6
    failing = [judged_line("gla", native=False, RES_02=GateStatus.FAIL), *full[2:]]
    assert gdn_controls.passed(failing) == 5


def test_what_is_judged_is_recorded_with_its_device_and_not_judged_again(tmp_path, monkeypatch):
    (tmp_path / elsewhere.MACHINE).write_text(json.dumps({"device": DEVICE, "versions": {"torch": "2.11"}}))
    corpus = gdn_controls.load()
    kept = [judged_line(member) for member in MEMBERS]
    for one in kept:
        one["verdict"]["candidate_sha256"] = corpus.get(one["id"]).candidate.sha256
    lost = json.loads(json.dumps(kept[-1]))
    lost["verdict"]["status"] = str(Status.HARNESS_FAILED)
    (tmp_path / gdn_controls.FILE).write_text("".join(json.dumps(x) + "\n" for x in [*kept[:-1], lost]))
    asked = []
    monkeypatch.setattr(
        "lethe.audit.pool.judged", lambda todo, *_, **__: asked.extend(r.id for r in todo) or ()
    )
    monkeypatch.setattr(gdn_controls, "place", lambda: None)
    monkeypatch.setattr(elsewhere, "note", lambda *_: None)
    assert gdn_controls.run(tmp_path, "cuda", 7) == ["gdn2 was not judged"] and asked == ["gdn2"]
    (written,) = gdn_gpu.record(tmp_path, tmp_path / "measured")
    assert written.relative_to(tmp_path / "measured").as_posix() == "h200/gdn_controls.json"
    found = load(written)
    assert [s["id"] for s in found.samples] == list(MEMBERS[:-1])
    assert {"data/corpus/gdn_controls/problem.py", "lethe/kernels/gdn/native.py"} <= set(found.sources)
    assert gdn_control_tables.score(found) == "6 of 7"
    table = gdn_control_tables.gates(found, None).set_index("gate")
    assert table.loc["CMP-02", "gla"] == "pass / not measured yet"


def test_without_libraries_the_run_says_what_to_do(tmp_path, monkeypatch, capsys):
    from lethe.kernels.gdn.architecture import Architecture

    monkeypatch.setattr(Architecture, "folders", lambda self: iter([tmp_path / "none"]))
    monkeypatch.setattr(Architecture, "libraries", lambda self: tmp_path / "home")
    assert gdn_controls.main(["run", "--out", str(tmp_path)]) == 2
    assert "libraries are missing" in capsys.readouterr().err


def test_the_gpu_run_judges_them_only_where_it_is_asked_to(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(gdn_gpu, "_claimed", lambda out: None)
    monkeypatch.setattr(gdn_gpu.subprocess, "Popen", lambda command, **_: asked.append(command) or Finished())
    monkeypatch.setattr(gdn_gpu.processes, "watched", lambda *_: None)
    monkeypatch.setattr(gdn_gpu, "_warming", list)
    gdn_gpu.main(["run", "--out", str(tmp_path)])
    assert asked == []
    gdn_gpu.main(["run", "--out", str(tmp_path), "--only", "controls"])
    assert [command[2] for command in asked] == ["lethe.evidence.gdn_controls"]


class Finished:
    """A process that has ended."""

    def wait(self, timeout=None):
        return 0

    def terminate(self):
        pass
