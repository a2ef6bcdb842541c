"""The backend `cute_sm90` without a GPU: its plans executed in `lethe.ptx`, its libraries, what it lacks.

The plan is the very one that a GPU runs, on tensors of the CPU. Errors are max|x - x64| / max|x64| against
the torch backend in float64, and bounded by the pins of `precision` plus the rounding of the stored value.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from lethe.evidence.gdn_precision import Case, draw
from lethe.kernels.gdn import cute_sm90, native, torch_path
from lethe.kernels.gdn.architecture import SM90, STAGES, Architecture
from lethe.kernels.gdn.checks import Arguments
from lethe.kernels.gdn.declare import KINDS
from lethe.kernels.gdn.precision import PINS, ROUNDOFF

WITH_DSL = pytest.mark.skipif(find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = ("q", "k", "v", "g", "b", "w", "initial_state")
PROCESSORS = 2


def arguments(case: Case, cuts=None) -> tuple[Arguments, torch.Tensor, torch.Tensor]:
    """The call, dO and the adjoint of the final states."""
    x, io = draw(case), DTYPES[case.io]
    for name in ("q", "k", "v", "b", "w", "do"):
        x[name] = None if x[name] is None else x[name].to(io)
    cu = None if cuts is None else torch.tensor(cuts, dtype=torch.int32)
    if cu is not None:
        count = len(cuts) - 1
        x |= {name: x[name].expand(count, -1, -1, -1).contiguous() for name in ("initial_state", "dfinal")}
    a = Arguments(*(x[name] for name in NAMES), cu, case.dk**-0.5)
    return a, x["do"], x["dfinal"]


def new(shape, dtype) -> torch.Tensor:
    """Every byte 0xFF."""
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.full((*shape[:-1], shape[-1] * size), 0xFF, dtype=torch.uint8).view(dtype)


def execute(steps, schedule="early") -> None:
    """A plan's launches, one after the other, on the memory of its tensors."""
    from lethe.kernels.gdn import emulate

    def array(t):
        if not isinstance(t, torch.Tensor):
            return t
        return t.view(torch.int16).numpy().view("uint16") if t.dtype == torch.bfloat16 else t.numpy()

    for step in steps:
        kernel = emulate.load(step.architecture, step.stage, **step.options)
        kernel.run({name: array(t) for name, t in step.arguments.items()}, schedule)


def exact(a, do, dfinal):
    """Outputs and gradients in float64."""
    wide = {name: t.double() for name, t in a.tensors().items() if name != "cu_seqlens"}
    tensors = [wide.get(name) for name in NAMES]
    e = Arguments(*tensors, a.cu_seqlens, a.scale)
    o, final, saved = torch_path.forward(e, save=False)
    return {"o": o, "final": final}, torch_path.backward(e, do.double(), dfinal.double(), saved)


def bounded(found, expected, case) -> dict[str, float]:
    """Each error, after it was compared with the pin."""
    pin = PINS["fp16" if case.io == "fp16" and case.gate in ("unit", "none") else "bf16"]
    errors = {}
    for name, e in expected.items():
        errors[name] = float((found[name].double() - e).abs().max() / e.abs().max())
        stored = 0.0 if found[name].dtype == torch.float32 else ROUNDOFF[case.io]
        assert errors[name] <= pin + stored, (name, errors[name])
    print({name: f"{e:.2e}" for name, e in errors.items()})
    return errors


@WITH_DSL
@pytest.mark.slow
def test_the_backward_plan_holds_the_pins_under_two_schedules():
    case = Case("gdn2", "unit", io="fp16", length=128, heads=1)
    a, do, dfinal = arguments(case)
    runs = []
    for schedule in ("early", 5):
        steps, gradients = cute_sm90.plan_backward(a, do, dfinal, None, new, PROCESSORS)
        assert [step.stage for step in steps] == ["prep", "scan", "out"]
        execute(steps, schedule)
        runs.append(gradients)
    bounded(runs[0], exact(a, do, dfinal)[1], case)
    for name, first in runs[0].items():
        assert torch.equal(first.view(torch.uint8), runs[1][name].view(torch.uint8)), name


@WITH_DSL
@pytest.mark.slow
@pytest.mark.parametrize("save", [False, True], ids=["recompute", "save"])
def test_packed_sequences_forward_and_backward(save):
    case = Case("kda", "mild", io="bf16", length=100, heads=1, dv=64)
    a, do, dfinal = arguments(case, (0, 70, 70, 100))
    outputs, gradients = exact(a, do, dfinal)
    steps, made = cute_sm90.plan_forward(a, save, new)
    execute(steps)
    bounded(made, outputs, case)
    saved = (made["powers"], torch.empty(0), made["S"]) if save else None
    steps, found = cute_sm90.plan_backward(a, do, dfinal, saved, new, PROCESSORS)
    assert steps[1].options["direction"] == ("reverse" if save else "both")
    execute(steps)
    bounded(found, gradients, case)


@WITH_DSL
def test_every_kind_has_its_libraries():
    from lethe.kernels.gdn import build

    declared = {(stage, v.name) for stage in STAGES for v in build.variants(SM90, stage)}
    for come in KINDS:
        for io, dv, packed in (("float16", 128, False), ("bfloat16", 64, True)):
            kind = native.Kind(io, 128, dv, *come, packed)
            for v in (*native.libraries(kind), *native.libraries_to_save(kind)):
                assert (v.stage, v.name) in declared


@pytest.mark.parametrize("member", ["gdn2", "gla", "deltanet", "linear"])
@pytest.mark.parametrize("save", [False, True], ids=["recompute", "save"])
def test_plans_give_what_the_kernels_declare(member, save, monkeypatch):
    """Every argument there, of the declared dtype and shape, by the loader's own check."""
    pytest.importorskip("cutlass", reason="the declarations are in the kernels' modules")
    from lethe.kernels.gdn import build, launch

    case = Case(member, "mild", io="bf16", length=70, heads=2)
    a, do, _ = arguments(case)
    ahead, made = cute_sm90.plan_forward(a, save, new)
    saved = (made["powers"], torch.empty(0), made["S"]) if save else None
    back, _ = cute_sm90.plan_backward(a, do, None, saved, new, PROCESSORS)
    for step in (*ahead, *back):
        (variant,) = (v for v in build.variants(SM90, step.stage) if v.options == step.options)
        assert step.arguments.keys() == {x.name for x in variant.arguments}
        sizes: dict[str, int] = {}
        for x in variant.arguments:
            launch.Passed(x).fields(step.arguments[x.name], sizes)


@pytest.mark.parametrize("save", [False, True], ids=["recompute", "save"])
def test_the_operator_promises_what_the_plan_makes(save):
    """The operator's fake, by which programs are traced, against the tensors of the plan."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    import lethe.kernels.gdn.operator  # noqa: F401

    a, _, _ = arguments(Case("gdn2", "mild", length=70, heads=2, dv=64))
    _, made = cute_sm90.plan_forward(a, save, new)
    nothing = torch.empty(0, dtype=a.q.dtype)
    saved = (made["powers"], nothing, made["S"]) if save else (nothing,) * 3
    with FakeTensorMode() as mode:
        fakes = [None if t is None else mode.from_tensor(t) for t in (*(getattr(a, n) for n in NAMES), None)]
        found = torch.ops.lethe.gated_delta_rule(*fakes, a.scale, "cute_sm90", save)
    for fake, real in zip(found, (made["o"], made["final"], *saved), strict=True):
        assert (fake.shape, fake.dtype) == (real.shape, real.dtype)


def test_few_rows_get_a_group_for_each_half_of_the_columns():
    kind = native.Kind("float16", 128, 128, "channel", "channel", "channel", packed=False)
    chosen = {rows: native.groups_for(kind, rows, 2, 132) for rows in (8, 32, 33, 34, 256)}
    assert chosen == {8: 1, 32: 1, 33: 1, 34: 2, 256: 2}
    assert native.groups_for(kind, 64, 1, 132) == 1


def test_what_no_library_is_made_for_is_said():
    lacks = cute_sm90.lacks
    assert lacks("float16", 64, 128, "none", "none", "none", False).startswith("d_k is 64")
    assert lacks("float16", 128, 32, "none", "none", "none", False).startswith("d_v is 32")
    found = lacks("float16", 128, 64, "channel", "none", "channel", False)
    assert found.startswith("g, beta and w come as channel, none, channel, the kernels are compiled for")


def test_a_library_that_is_not_there_is_named(monkeypatch, tmp_path):
    from lethe.kernels.gdn import launch

    monkeypatch.setattr(launch, "available", lambda: False)
    monkeypatch.setattr(Architecture, "folders", lambda self: iter([tmp_path]))
    cute_sm90.BACKEND.ready.clear()
    found = cute_sm90.lacks("bfloat16", 128, 64, "none", "none", "none", False)
    assert (
        found.startswith("prep_adjoint1_dk128_dv64_") and "is not built for sm_90a: run 'python -m" in found
    )


def test_nothing_of_a_gpu_is_imported_with_the_package():
    import subprocess
    import sys

    program = (
        "import sys, lethe.kernels.gdn; print([m for m in ('cutlass', 'triton', 'cuda') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
