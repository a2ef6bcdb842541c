"""What bounds the kernels, as far as no GPU is needed: which probes, in place of what, and that they end."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from lethe.evidence import gdn_gpu, gdn_gpu_bounds, gdn_probes
from lethe.kernels.gdn.architecture import SM90
from lethe.kernels.gdn.declare import Variant, from_json
from lethe.provenance import ROOT


def test_every_probe_is_a_module_and_changes_when_its_kernel_does():
    names = [v.name for v in gdn_gpu_bounds.libraries()]
    assert len(set(names)) == len(names) == 10
    assert set(names) <= {v.name for v in gdn_gpu.wanted()}
    for stage in gdn_probes.STAGES:
        assert (ROOT / (gdn_probes.PROBES.module(stage).replace(".", "/") + ".py")).is_file()
        assert gdn_probes.PROBES.source_hash(stage) != SM90.source_hash(stage.split("_")[0])


def test_no_shipped_library_depends_on_a_probe():
    assert not [p for p in (ROOT / "lethe" / "kernels").rglob("*.py") if "gdn_probes" in p.read_text()]


def test_each_way_has_a_plan_of_its_own_and_takes_the_kernels_place(monkeypatch):
    launched, shape = [], gdn_gpu_bounds.Shape()

    def plan(call):
        made = []
        for stage in ("prep", "scan", "out"):
            step = SimpleNamespace(stage=stage, options={"dk": 128}, arguments={"plan": object()})
            step.launch = lambda name=stage: launched.append(name)
            made.append(step)
        return made

    probes = {}

    def kernel(architecture, name, **options):
        assert architecture is gdn_probes.PROBES and options == {"dk": 128}
        return lambda **arguments: probes.setdefault(name, arguments["plan"])

    monkeypatch.setattr(gdn_gpu_bounds.Shape, "call", lambda self: None)
    monkeypatch.setattr(gdn_gpu_bounds, "backward_plan", plan)
    monkeypatch.setattr(gdn_gpu_bounds.launch, "kernel", kernel)
    steps = gdn_gpu_bounds.steps(shape)
    assert launched == ["prep", "scan", "out"] * 3
    for step in steps.values():
        step()
    assert sorted(probes) == sorted(gdn_probes.STAGES) and len(set(map(id, probes.values()))) == 5
    assert launched[9:] == ["prep", "scan", "out"]
    assert set(steps) == {f"{p.split('_')[0]}.{p.split('_')[1]}" for p in gdn_probes.STAGES} | {
        f"{stage}.measured" for stage in ("prep", "scan", "out")
    }


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """A probe of `out`, compiled."""
    pytest.importorskip("cutlass", reason="compiling the kernel needs nvidia-cutlass-dsl")
    from lethe.kernels.gdn.emulate import Emulated

    folder = tmp_path_factory.mktemp("probes")

    def made(stage: str, options: dict) -> Emulated:
        variant = Variant(stage, options)
        gdn_probes.build(variant, folder)
        return Emulated(from_json(json.loads((folder / f"{variant.name}.json").read_text())), folder)

    return made


def test_probes_end_and_the_near_one_computes_what_stands_at_its_addresses(probe):
    from lethe.evidence.gdn_precision import Case
    from tests.kernels.gdn import sm90_out_case as cases
    from tests.kernels.gdn.test_sm90_out import check

    whole = cases.make(Case("linear", "none", io="bf16", length=320, heads=1))
    expected = check(whole, programs=2)
    near = probe("out_near", whole.options)
    arrays = whole.arrays(near, 2)
    near.run(arrays)
    for name in whole.gradients:
        found, right = (x[f"d{name}"].view(np.uint8) for x in (arrays, expected))
        # the fifth slot is the first one again, with a power and a diagonal of its own
        assert np.array_equal(found[:, 64:256], right[:, 64:256]), name
        assert not (found[:, :64] == 0xFF).all() and (found[:, 256:] == 0xFF).all(), name
    nothing = probe("out_bytes", whole.options)
    arrays = whole.arrays(nothing, 2)
    for schedule in ("early", "late"):
        nothing.run(arrays, schedule)
