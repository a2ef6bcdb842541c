"""What an honest candidate gets from the suspect's side: inputs, weights, gradients, guards, aliases."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lethe.verifier import failures, suspect
from lethe.verifier.custody import Limits, Suspect, SuspectError
from lethe.verifier.problem import Candidate
from lethe.verifier.server import SuspectServer
from lethe.verifier.verdict import Status
from tests.verifier.forked import in_child

LIMITS = Limits(cpu_seconds=60, wall_seconds=30.0, memory_bytes=2 << 30)
HEAD = "import ctypes, torch, torch.nn as nn, torch.nn.functional as F\n"


@pytest.fixture(scope="module")
def server():
    torch.set_num_threads(1)
    with SuspectServer() as s:
        yield s


def module(forward: str, init: str = "pass", arguments: str = "", top: str = "") -> str:
    body = "\n".join(f"        {line}" for line in forward.splitlines())
    setup = "\n".join(f"        {line}" for line in init.splitlines())
    return (
        f"{HEAD}{top}\nclass ModelNew(nn.Module):\n"
        f"    def __init__(self{arguments}):\n        super().__init__()\n"
        f"{setup}\n    def forward(self, x, *more):\n{body}\n"
    )


def loaded(server: SuspectServer, source: str, executor: str = "cpu", **options) -> Suspect:
    language = "triton" if executor == "interpreter" else "python"
    candidate = Candidate("honest", source, language, **options)
    suspect = server.spawn(candidate, executor=executor, limits=LIMITS)
    suspect.load()
    return suspect


def run(server: SuspectServer, source: str, inputs, executor: str = "cpu", init=(), **options):
    with loaded(server, source, executor) as suspect:
        suspect.build(list(init), 0)
        return suspect.run(inputs, **options)


# ---------------------------------------------------------------- values travel exactly


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16",
     "int8", "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"],
)  # fmt: skip
def test_every_dtype_travels_bit_for_bit(server: SuspectServer, dtype: str) -> None:
    kind = getattr(torch, dtype)
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (6 * kind.itemsize,), dtype=torch.uint8)
    x = raw.view(kind).reshape(2, 3)
    (report,) = run(server, module("return x"), [x], need_inputs_after=True)
    assert report.outputs.dtype == kind and report.outputs.shape == (2, 3)
    assert torch.equal(report.outputs.view(torch.uint8), x.view(torch.uint8))
    assert torch.equal(report.inputs_after[0].view(torch.uint8), x.view(torch.uint8))


def test_structure_and_scalars_travel(server: SuspectServer) -> None:
    inputs = [torch.ones(2), {"scale": 2.5, "flags": (True, None, "relu")}, [torch.zeros(0, 3), 7]]
    (report,) = run(server, module("return {'a': (x, more[0]), 'b': [*more[1], float('nan')]}"), inputs)
    assert torch.equal(report.outputs["a"][0], torch.ones(2))
    assert report.outputs["a"][1] == {"scale": 2.5, "flags": (True, None, "relu")}
    assert report.outputs["b"][0].shape == (0, 3) and report.outputs["b"][1] == 7
    assert report.outputs["b"][2] != report.outputs["b"][2]


@pytest.mark.parametrize(
    "strided",
    [
        pytest.param(torch.randn(4, 5).t(), id="transposed"),
        pytest.param(torch.randn(6, 8)[::2, 1::3], id="sliced"),
        pytest.param(torch.randn(1, 5).expand(3, 5), id="expanded"),
        pytest.param(torch.randn(9).as_strided((4, 3), (2, 1)), id="overlapping windows"),
        pytest.param(
            torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), id="channels last"
        ),
        pytest.param(torch.tensor(3.5), id="scalar"),
    ],
)
def test_stride_pattern_is_reproduced(server: SuspectServer, strided: torch.Tensor) -> None:
    (report,) = run(
        server, module("return x.clone(), torch.tensor(x.stride(), dtype=torch.int64)"), [strided]
    )
    assert torch.equal(report.outputs[0], strided)
    assert tuple(report.outputs[1].tolist()) == strided.stride()


def test_keyword_inputs_and_function_candidates(server: SuspectServer) -> None:
    source = HEAD + "def scaled(x, *, by): return x * by\n"
    with loaded(server, source, entry="scaled", kind="function") as suspect:
        built = suspect.build([], 0)
        assert built.names == [] and built.state == {}
        (report,) = suspect.run({"x": torch.ones(2), "by": 3.0})
    assert torch.equal(report.outputs, torch.full((2,), 3.0))


def test_results_larger_than_the_first_arena(server: SuspectServer) -> None:
    source = module("return [x.repeat(n) for n in (1, 300, 900, 5)]")
    reports = run(server, source, [torch.arange(1000.0)], times=3)
    for report in reports:
        for n, got in zip((1, 300, 900, 5), report.outputs, strict=True):
            assert torch.equal(got, torch.arange(1000.0).repeat(n))


# ---------------------------------------------------------------- building


def test_build_is_seeded_like_the_judge(server: SuspectServer) -> None:
    torch.manual_seed(5)
    reference = torch.nn.Linear(7, 3)
    with loaded(server, module("return self.f(x)", "self.f = nn.Linear(n, 3)", ", n")) as suspect:
        built = suspect.build([7], 5)
    assert [n for n, _, _ in built.names] == ["f.weight", "f.bias"] == built.parameters
    assert torch.equal(built.state["f.weight"], reference.weight)


def test_state_is_copied_by_name_and_exact_shape(server: SuspectServer) -> None:
    state = {"f.weight": torch.ones(3, 7), "f.bias": torch.ones(1), "other": torch.ones(2)}
    with loaded(server, module("return self.f(x)", "self.f = nn.Linear(n, 3)", ", n")) as suspect:
        built = suspect.build({"n": 7}, 5, state=state)
    assert built.copied == ["f.weight"] and built.unmatched == ["f.bias", "other"]
    assert torch.equal(built.state["f.weight"], torch.ones(3, 7))
    assert not torch.equal(built.state["f.bias"], torch.ones(3))


def test_nan_weights_are_allowed(server: SuspectServer) -> None:
    source = module("return x * self.w", "self.w = nn.Parameter(torch.full((2,), float('nan')))")
    assert run(server, source, [torch.ones(2)])[0].outputs.isnan().all()


def test_parameters_take_the_dtype_that_is_judged(server: SuspectServer) -> None:
    source = module(
        "return self.f(x)", "self.f = nn.Linear(4, 4)\nself.register_buffer('n', torch.ones(1).long())"
    )
    with loaded(server, source) as suspect:
        built = suspect.build([], 0, dtype="float16")
        (report,) = suspect.run([torch.ones(2, 4, dtype=torch.float16)])
    assert {n: d for n, _, d in built.names} == {"f.weight": "float16", "f.bias": "float16", "n": "int64"}
    assert report.meta[0].dtype == "float16"


def test_train_mode_is_asked_for(server: SuspectServer) -> None:
    with loaded(server, module("return x if self.training else -x")) as suspect:
        suspect.build([], 0)
        assert suspect.run([torch.ones(1)])[0].outputs == -1
        suspect.build([], 0, train=True)
        assert suspect.run([torch.ones(1)])[0].outputs == 1


def test_sizes_are_substituted_in_the_candidates_own_source(server: SuspectServer) -> None:
    with loaded(server, module("return x.new_full((width,), 1.0)", top="width = 5")) as suspect:
        suspect.build([], 0)
        assert suspect.run([torch.ones(1)])[0].outputs.shape == (5,)
        suspect.build([], 0, sizes={"width": 9})
        assert suspect.run([torch.ones(1)])[0].outputs.shape == (9,)
        suspect.build([], 0)
        assert suspect.run([torch.ones(1)])[0].outputs.shape == (5,)


# ---------------------------------------------------------------- gradients


def test_gradients_of_inputs_and_parameters(server: SuspectServer) -> None:
    parameters = "self.w = nn.Parameter(torch.ones(3) * 2)\nself.u = nn.Parameter(torch.ones(1))"
    source = module("return x * self.w, more[0] * 1", parameters)
    upstream = [torch.tensor([1.0, 10.0, 100.0]), None]
    inputs = [torch.tensor([1.0, 2.0, 3.0]), torch.arange(2), torch.ones(4)]
    (report,) = run(server, source, inputs, upstream=upstream)
    assert list(report.grads) == ["input:0", "input:1", "param:w", "param:u"]
    assert torch.equal(report.grads["input:0"], torch.tensor([2.0, 20.0, 200.0]))
    assert torch.equal(report.grads["param:w"], torch.tensor([1.0, 20.0, 300.0]))
    assert report.grads["input:1"] is None and report.grads["param:u"] is None
    assert report.meta[0].requires_grad


def test_in_place_work_on_inputs_is_as_legal_as_for_the_reference(server: SuspectServer) -> None:
    (report,) = run(server, module("return x.mul_(3.0).sum()"), [torch.ones(3)], upstream=[torch.tensor(2.0)])
    assert torch.equal(report.grads["input:0"], torch.full((3,), 6.0))


def test_forward_only_candidate_has_no_gradient(server: SuspectServer) -> None:
    (report,) = run(server, module("return x.detach() * 2"), [torch.ones(3)], upstream=[torch.ones(3)])
    assert report.grads == {"input:0": None} and not report.meta[0].requires_grad


def test_without_upstream_no_graph_is_built(server: SuspectServer) -> None:
    source = module("return x * self.w", "self.w = nn.Parameter(torch.ones(3))")
    (report,) = run(server, source, [torch.ones(3)])
    assert report.grads == {} and not report.meta[0].requires_grad


# ---------------------------------------------------------------- poison and guards


def test_uninitialised_memory_reads_as_poison(server: SuspectServer) -> None:
    source = module(
        "return [torch.empty(3), torch.empty_like(x), x.new_empty(2, 2), torch.empty_strided((2,), (3,)),\n"
        "  torch.empty(2, dtype=torch.bfloat16), torch.empty(2, dtype=torch.int32),\n"
        "  torch.empty(2, dtype=torch.bool),\n"
        "  torch.zeros(3), x.new_zeros(2)]"
    )
    (report,) = run(server, source, [torch.ones(4)])
    for t in report.outputs[:5]:
        assert t.isnan().all()
    assert (report.outputs[5] == 0x7F7F7F7F).all() and report.outputs[6].all()
    assert not report.outputs[7].any() and not report.outputs[8].any()
    assert report.guards_intact


WRITES = {
    "past an output": ("y = torch.empty_like(x)", "y.data_ptr() + 20", "out: 4 bytes after its end"),
    "before an output": ("y = torch.zeros(5)", "y.data_ptr() - 4", "out: 4 bytes before its start"),
    "past the end of an input": ("y = x + 1", "x.data_ptr() + 20", "input:0: 4 bytes after its end"),
    "past the end of a parameter": ("y = x + 1", "self.w.data_ptr() + 12", "param:w: 4 bytes after its end"),
    "past a temporary": ("t = torch.empty(7); y = -x", "t.data_ptr() + 28", "torch.empty[7]: 4 bytes after"),
}  # fmt: skip


@pytest.mark.parametrize("where", WRITES)
def test_a_write_out_of_bounds_is_seen(server: SuspectServer, where: str) -> None:
    make, address, says = WRITES[where]
    source = module(
        f"{make}\nctypes.memset({address}, 1, 4)\nreturn y", "self.w = nn.Parameter(torch.empty(3))"
    )
    (report,) = run(server, source, [torch.ones(5)])
    assert not report.guards_intact
    assert says in report.overrun[0]


def test_a_read_out_of_bounds_is_nan(server: SuspectServer) -> None:
    source = module("return torch.tensor((ctypes.c_float * 7).from_address(x.data_ptr() - 4)[:])")
    (report,) = run(server, source, [torch.ones(5)])
    assert report.outputs.isnan().tolist() == [True] + [False] * 5 + [True]
    assert report.guards_intact


def test_honest_uses_of_allocators_are_undisturbed(server: SuspectServer) -> None:
    source = module(
        "y = torch.empty(1); torch.add(x, 1, out=y.resize_(0))\n"
        "z = torch.empty(2); z.resize_(1000).fill_(1.0)\n"
        "w = torch.empty(4, requires_grad=True)\n"
        "p = nn.Parameter(torch.empty(3)); nn.init.ones_(p)\n"
        "s = scripted(x)\n"
        "return y, z, self.f(x[None]).detach(), p.detach(), s, self.b(x[None, None, :, None])",
        "self.f = nn.Linear(5, 2); self.b = nn.BatchNorm2d(1)",
        top="@torch.jit.script\ndef scripted(x):\n    y = torch.empty_like(x)\n    return y.fill_(2.0)\n",
    )
    reports = run(server, source, [torch.ones(5)], times=2)
    for report in reports:
        assert report.guards_intact, report.overrun
        assert torch.equal(report.outputs[0], torch.full((5,), 2.0))
        assert torch.equal(report.outputs[1], torch.ones(1000))
        assert torch.equal(report.outputs[4], torch.full((5,), 2.0))


def test_guards_can_be_switched_off(server: SuspectServer) -> None:
    (report,) = run(server, module("y = torch.empty_like(x)\nctypes.memset(y.data_ptr(), 0, 20)\nreturn y"),
                    [torch.ones(5)], guard=False)  # fmt: skip
    assert report.guards_intact and not report.outputs.any()


# ---------------------------------------------------------------- repeats, aliases, holding


def test_held_outputs_show_a_reused_buffer(server: SuspectServer) -> None:
    source = module("self.y.copy_(x)\nreturn self.y, x + 1", "self.y = torch.zeros(3)")
    with loaded(server, source) as suspect:
        suspect.build([], 0)
        (first,) = suspect.run([torch.ones(3)], hold="first")
        suspect.run([torch.full((3,), 5.0)])
        now = suspect.read("first")
        with pytest.raises(SuspectError) as caught:
            suspect.read("never")
    assert torch.equal(first.outputs[0], torch.ones(3)) and torch.equal(now[0], torch.full((3,), 5.0))
    assert torch.equal(now[1], torch.full((3,), 2.0))
    assert caught.value.status is Status.HARNESS_FAILED


def test_aliases_and_storages_are_named(server: SuspectServer) -> None:
    source = module(
        "y = torch.empty(6)\nreturn x, y[:3], y[3:], y[2:4], self.w, more[0][:1]",
        "self.w = nn.Parameter(torch.ones(2))",
    )
    (report,) = run(server, source, [torch.ones(3), torch.ones(4)])
    aliases = [m.aliases for m in report.meta]
    assert aliases == [
        ("input:0",), ("out[3]",), ("out[3]",), ("out[1]", "out[2]"), ("param:w",), ("input:1",)
    ]  # fmt: skip
    storages = [m.storage for m in report.meta]
    assert storages[1] == storages[2] == storages[3] and len(set(storages)) == 4


def test_each_repeat_gets_fresh_inputs(server: SuspectServer) -> None:
    reports = run(
        server, module("x += 1\nreturn x * 1"), [torch.zeros(2)], times=3, between=4, need_inputs_after=True
    )
    assert [r.outputs.tolist() for r in reports] == [[1.0, 1.0]] * 3
    assert [r.inputs_after[0].tolist() for r in reports] == [[1.0, 1.0]] * 3


def test_state_across_calls_is_visible(server: SuspectServer) -> None:
    source = module("self.n += 1\nreturn x + (self.n > 2)", "self.n = 0")
    reports = run(server, source, [torch.zeros(1)], times=4)
    assert [r.outputs.item() for r in reports] == [0.0, 0.0, 1.0, 1.0]


# ---------------------------------------------------------------- the interpreter

SCALE = """
import torch, triton, triton.language as tl, torch.nn as nn
@triton.jit
def scale(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, 2.0 * tl.load(x + o, mask=o < n), mask=o < MASK)
class ModelNew(nn.Module):
    def forward(self, x):
        assert x.is_cuda
        y = torch.empty_like(x)
        scale[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), 64)
        return RESULT
"""


def test_interpreted_kernel_is_counted(server: SuspectServer) -> None:
    source = SCALE.replace("MASK", "n").replace("RESULT", "y")
    first, second = run(server, source, [torch.ones(100)], "interpreter", times=2)
    assert torch.equal(first.outputs, torch.full((100,), 2.0))
    assert first.launches == second.launches == 1 and first.kernels == second.kernels == ["scale"]
    assert first.guards_intact and first.meta[0].device == "cpu"


def test_interpreted_kernel_without_mask_is_seen(server: SuspectServer) -> None:
    source = SCALE.replace("MASK", "10000").replace("RESULT", "y")
    (report,) = run(server, source, [torch.ones(100)], "interpreter")
    assert not report.guards_intact and "out" in report.overrun[0]


def test_output_moved_to_the_host_is_seen(server: SuspectServer) -> None:
    source = SCALE.replace("MASK", "n").replace("RESULT", "y.cpu()")
    (report,) = run(server, source, [torch.ones(100)], "interpreter")
    assert report.meta[0].device == "host"


@pytest.mark.parametrize("target", ["sm_90"])
def test_resources_of_the_launched_kernel(server: SuspectServer, target: str) -> None:
    with loaded(server, SCALE.replace("MASK", "n").replace("RESULT", "y"), "interpreter") as suspect:
        suspect.build([], 0)
        assert suspect.resources(target) == []
        suspect.run([torch.ones(100)])
        (needs,) = suspect.resources(target, seconds=120.0)
    assert needs["name"] == "scale" and needs["error"] is None and needs["registers"] > 0


def test_triton_failures_are_told_apart(server: SuspectServer) -> None:
    cases = {
        "tl.load(x + o, mask=o < n)": "tl.inline_asm_elementwise('nop;', '=r', [], tl.int32, True, 1)",
        "2.0 * tl": "tl.nonexistent * tl",
    }
    statuses = []
    for old, new in cases.items():
        with pytest.raises(SuspectError) as caught:
            run(server, SCALE.replace("MASK", "n").replace("RESULT", "y").replace(old, new), [torch.ones(8)],
                "interpreter")  # fmt: skip
        statuses.append(caught.value.status)
    assert statuses == [Status.EXECUTOR_FAILED, Status.RUN_FAILED]


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA out of memory. Tried to allocate 9 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_memory_that_ran_out_is_told_as_such_whoever_says_so(message: str) -> None:
    status, said = failures.classify(RuntimeError(message), "run", lambda e: None)
    assert status is Status.OUT_OF_MEMORY and message.split(".")[0] in said


def test_words_that_only_look_like_it_are_the_candidates_own() -> None:
    for message in ("pointer out of memory bounds", "this shape needs more memory"):
        assert failures.classify(RuntimeError(message), "run", lambda e: None)[0] is Status.RUN_FAILED


# ---------------------------------------------------------------- what it prints

TALKS = "print('spam ' * 60_000)\nreturn x + 1"


def test_a_candidate_may_print_more_over_its_calls_than_a_file_may_hold(server: SuspectServer) -> None:
    source = module(TALKS)
    limits = Limits(cpu_seconds=60, wall_seconds=30.0, memory_bytes=2 << 30, file_bytes=2 << 20)
    with server.spawn(Candidate("honest", source, "python"), executor="cpu", limits=limits) as suspect:
        suspect.load()
        suspect.build([], 0)
        for _ in range(12):  # 300 kB a call
            (report,) = suspect.run([torch.ones(2)])
            assert torch.equal(report.outputs, torch.full((2,), 2.0))
        assert suspect.tail("stdout").strip().endswith("spam spam")


def test_what_it_printed_is_cut_short_in_its_own_file_alone(server: SuspectServer, tmp_path) -> None:
    """Not in one that the candidate has put in its place."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"x" * (3 << 20))
    swap = f"""import os
for name in ("stdout.txt", "stderr.txt"):
    os.path.lexists(name) and os.unlink(name)
    os.symlink({str(victim)!r}, name)
"""
    talk = "for _ in range(8): print('spam ' * 60_000)\nreturn x"
    with loaded(server, module(talk, top=swap)) as suspect:
        suspect.build([], 0)
        for _ in range(2):
            suspect.run([torch.ones(2)])
    assert victim.stat().st_size == 3 << 20


# ---------------------------------------------------------------- the process itself


def test_the_thread_pool_is_made_anew_before_a_candidate_runs(tmp_path):
    """Or builds for CUDA abort, now and then, in a suspect's first backward pass ("Invalid thread pool")."""

    def child() -> list[str]:
        done: list[str] = []
        torch.set_num_threads = lambda count: done.append(f"{count} thread(s)")
        suspect.sandbox.set_limits = lambda *_: None
        suspect.Wire = lambda fd: SimpleNamespace(send=lambda message: None)
        suspect.Loop = lambda *_: SimpleNamespace(serve=lambda: done.append("serves"))
        suspect.main(0, "cpu", LIMITS, str(tmp_path), str(tmp_path), {})
        return done

    assert in_child(child) == ["1 thread(s)", "serves"]
