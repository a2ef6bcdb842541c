"""Executors: installation, launch counting and the pretence of CUDA."""

from __future__ import annotations

import os
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lethe.verifier.executors import is_executor_failure
from tests.verifier.forked import in_child, interpreted

NAN, INF = float("nan"), float("inf")


# ---------------------------------------------------------------- installation


def test_an_unknown_executor_is_refused() -> None:
    from lethe.verifier import executors

    with pytest.raises(ValueError, match="unknown executor 'gpu'"):
        executors.install("gpu")


def test_one_process_has_one_executor() -> None:
    def child() -> str:
        from lethe.verifier import executors

        executors.install("cpu")
        executors.install("cpu")
        try:
            executors.install("interpreter")
        except RuntimeError as error:
            return str(error)
        return ""

    assert "already runs the 'cpu' executor" in in_child(child)


@interpreted
def _compiles_again(k: Any) -> list[str]:
    import triton.language as tl

    from lethe.verifier.executors import library

    kinds = [type(tl.sum).__name__, type(tl.standard._sum_combine).__name__]
    library.use_compiler()
    return [*kinds, type(tl.sum).__name__, type(tl.tensor.sum).__name__]


def test_the_library_of_triton_changes_kind_and_back() -> None:
    assert _compiles_again() == ["InterpretedFunction"] * 2 + ["JITFunction"] * 2


# ---------------------------------------------------------------- launches


@interpreted
def _launches(k: Any, how: str) -> tuple[int, list[str]]:
    from lethe.verifier import executors

    x, o, hooked = torch.ones(40), torch.zeros(40), torch.zeros(3)
    with torch.no_grad():
        if how == "tuple":
            k.double[(3,)](x, o, 40, 16)
        elif how == "list":
            k.double[[3, 1]](x, o, 40, BLOCK=16)
        elif how == "callable":
            k.double[lambda meta: (-(-meta["n"] // meta["BLOCK"]),)](x, o, 40, BLOCK=16)
        elif how == "run":
            k.double.run(x, o, 40, 16, grid=(3,), warmup=False)
        elif how == "tuned":
            k.tuned[lambda meta: (-(-40 // meta["BLOCK"]),)](x, o, hooked, 40)
        elif how == "warmup":
            k.double.warmup(x, o, 40, 16, grid=(3,))
        elif how == "empty":
            k.double[(0,)](x, o, 40, 16)
            k.double[(2, 0)](x, o, 40, 16)
        elif how == "failing":
            with pytest.raises(Exception, match="shape"):
                k.broken[(1,)](x)
        elif how == "reset":
            k.double[(3,)](x, o, 40, 16)
            executors.reset_launches()
    return executors.launch_count(), executors.launched_names()


@pytest.mark.parametrize(
    ("how", "count", "names"),
    [
        ("tuple", 1, ["double"]),
        ("list", 1, ["double"]),
        ("callable", 1, ["double"]),
        ("run", 1, ["double"]),
        ("tuned", 1, ["tuned"]),
        ("warmup", 0, []),
        ("empty", 0, []),
        ("failing", 0, []),
        ("reset", 0, []),
    ],
)
def test_launches_are_counted(how: str, count: int, names: list[str]) -> None:
    assert _launches(how) == (count, names)


@interpreted
def _autotune(k: Any, index: str | None) -> tuple[list[float], list[float], int]:
    from lethe.verifier.executors import autotune

    if index is not None:
        os.environ[autotune.CONFIG_VARIABLE] = index
    x, o, hooked = torch.ones(64), torch.full((64,), 9.0), torch.zeros(3)
    for _ in range(2):
        k.tuned[lambda meta: (-(-64 // meta["BLOCK"]),)](x, o, hooked, 64)
    return hooked.tolist(), o[:2].tolist(), autotune.choices()


@pytest.mark.parametrize(
    ("index", "hooks", "block"),
    [(None, 2, 16), ("1", 0, 32), ("2", 0, 64), ("4", 0, 32)],
    ids=["first", "1", "2", "4=1"],
)
def test_autotune_runs_the_chosen_configuration(index: str | None, hooks: int, block: int) -> None:
    state, output, counts = _autotune(index)
    assert state == [hooks, block, 1.0]
    assert output == [2.0, 2.0]  # reset_to_zero acts on the first call of a key only, as on a GPU
    assert counts == 3


@interpreted
def _pruned(k: Any) -> tuple[list[float], list[int]]:
    """Blocks that run when each of four configurations is asked for, and how many are offered meanwhile."""
    from lethe.verifier.executors import autotune, launches

    offered: list[int] = []
    launches.observe(lambda function, *_: offered.append(len(autotune.offered(function.fn))))
    k.tuned.early_config_prune = lambda configs, *_, **__: configs[1:]
    x, o, hooked, blocks = torch.ones(64), torch.zeros(64), torch.zeros(3), []
    for index in range(4):
        with autotune.forced(index):
            k.tuned[lambda meta: (-(-64 // meta["BLOCK"]),)](x, o, hooked, 64)
        blocks.append(float(hooked[1]))
    k.tuned.fn[(1,)](x, o, hooked, 64, BLOCK=64, EVEN=True)  # past the autotuner
    with autotune.forced(None):
        assert autotune.ran() == [], "what ran before is not told of this call"
    return blocks, [autotune.choices(), *offered]


def test_what_a_kernels_own_pruning_leaves_out_never_runs() -> None:
    assert _pruned() == ([32.0, 64.0, 32.0, 64.0], [2, 2, 2, 2, 2, 0])


def test_a_configuration_that_differs_in_warps_alone_comes_last() -> None:
    from lethe.verifier.executors import autotune

    blocks = (64, 64, 128, 64, 32, 128)
    configs = [SimpleNamespace(kwargs={"BLOCK": block}, warps=i) for i, block in enumerate(blocks)]
    ordered, distinct = autotune._telling(configs)
    assert [c.warps for c in ordered] == [0, 2, 4, 1, 3, 5] and distinct == 3


def test_on_a_device_the_first_configuration_that_loads_wins_after_one_call() -> None:
    from lethe.verifier.executors import autotune

    calls: list[str] = []
    tuner = SimpleNamespace(_settled=False)

    def bench(tuner: Any, config: str) -> list[float]:
        """As Triton's: what does not fit is infinitely slow, the rest is timed by ``do_bench``."""
        if config == "too large":
            return 3 * [float("inf")]
        return list(tuner.do_bench(lambda: calls.append(config), quantiles=(0.5, 0.2, 0.8)))

    configs = ("too large", "small", "smaller")
    times = {c: autotune._first_that_runs(tuner, bench, (), c, {}) for c in configs}
    assert min(times, key=lambda c: times[c][0]) == "small"
    assert calls == ["small"]


# ---------------------------------------------------------------- the pretence of CUDA

BELIEFS = [
    "x.is_cuda",
    "x.device == torch.device('cuda', 0)",
    "x.device.type == 'cuda'",
    "x.get_device() == 0",
    "not x.is_cpu",
    "x.cuda() is x",
    "x.to('cuda') is x",
    "x.to(device=torch.device('cuda:0')) is x",
    "x.to('cuda', torch.float16).dtype == torch.float16",
    "x.to(torch.empty(1, device='cuda', dtype=torch.float64)).dtype == torch.float64",
    "torch.zeros(2, device='cuda').is_cuda",
    "torch.tensor([1.0], device=x.device).is_cuda",
    "torch.arange(3, device='cuda:0').is_cuda",
    "torch.empty_like(x, device='cuda').is_cuda",
    "x.new_zeros(3, device='cuda').is_cuda",
    "torch.as_tensor([1.0], device='cuda').is_cuda",
    "torch.randn(2, generator=torch.Generator(device='cuda'), device='cuda').is_cuda",
    "torch.nn.Linear(2, 3, device='cuda').weight.is_cuda",
    "next(torch.nn.Linear(2, 3).cuda().parameters()).is_cuda",
    "next(torch.nn.Linear(2, 3).to('cuda').parameters()).is_cuda",
    "torch.cuda.is_available() and torch.cuda.device_count() == 1",
    "torch.cuda.current_device() == 0",
    "torch.cuda.get_device_capability() == (9, 0)",
    "torch.cuda.get_device_properties(0).multi_processor_count == 132",
    "'H200' in torch.cuda.get_device_name(x.device)",
    "torch.cuda.synchronize() is None",
    "torch.cuda.current_stream().cuda_stream == 0",
    "torch.cuda.Event(enable_timing=True).query()",
    "torch.cuda.device(x.device).__enter__() is not None",
    "torch.cuda.stream(torch.cuda.Stream()).__enter__() is not None",
    "triton.runtime.driver.active.get_current_device() == 0",
    "triton.runtime.driver.active.utils.get_device_properties(0)['multiprocessor_count'] == 132",
    "triton.runtime.driver.active.get_current_target().arch == 90",
    "(torch.manual_seed(3), torch.rand(1))[1] == (torch.cuda.manual_seed_all(3), torch.rand(1))[1]",
    "torch.compile(len) is len and torch.compile(dynamic=True)(len) is len",
    "x.type() == 'torch.cuda.FloatTensor'",
    "torch.cuda.FloatTensor([1.0]).is_cuda",
    "(torch.set_default_device('cuda'), torch.zeros(2).is_cuda)[1]",
    "not x.cpu().is_cuda and x.cpu().device.type == 'cpu'",
    "x.cpu() is not x and x.cpu().data_ptr() != x.data_ptr()",
    "not x.to('cpu').is_cuda and not x.to(torch.device('cpu')).is_cuda",
    "x.cpu().cuda().is_cuda",
    "x.cpu().to(x).is_cuda and not x.to(x.cpu()).is_cuda",
    "not torch.zeros(2, device='cpu').is_cuda",
    "not x.cpu().to(torch.float16).is_cuda",
    "(x.cpu() + 1).sum().item() == 5",
    "x.pin_memory().is_pinned() and not x.is_pinned()",
    "__import__('torch._dynamo') is not None",
]


@interpreted
def _evaluate(k: Any) -> dict[str, str]:
    import triton

    results = {}
    for expression in BELIEFS:
        names = {"torch": torch, "triton": triton, "x": torch.tensor([1.0, 2.0])}
        try:
            results[expression] = str(bool(eval(expression, names)))
        except Exception as error:
            results[expression] = f"{type(error).__name__}: {error}"
    return results


beliefs = cache(_evaluate)


@pytest.mark.parametrize("expression", BELIEFS)
def test_a_cpu_tensor_passes_for_cuda(expression: str) -> None:
    assert beliefs()[expression] == "True"


@interpreted
def _contexts(k: Any) -> list[Any]:
    answers: list[Any] = []
    with torch.device("cuda"):
        answers.append(torch.zeros(1).is_cuda)
    with torch.autocast("cuda"):
        answers.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
        answers.append(torch.is_autocast_enabled("cuda"))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        answers.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
    return answers


def test_device_and_autocast_contexts() -> None:
    assert _contexts() == [True, torch.float16, True, torch.bfloat16]


@interpreted
def _backward(k: Any) -> tuple[str, list[float]]:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    k.Squared.apply(x).sum().backward()
    assert x.grad is not None
    return k.Squared.where, x.grad.tolist()


def test_a_backward_pass_runs_under_the_pretence() -> None:
    assert _backward() == ("cuda True", [2.0, -4.0])


@interpreted
def _truth(k: Any) -> tuple[str, str]:
    from lethe.verifier.executors import pretend_cuda

    x = torch.zeros(2)
    with pretend_cuda.real_devices():
        made = torch.zeros(2, device="cpu")
        answers = (x.device.type, str(pretend_cuda.is_host(made)))
    return answers


def test_the_harness_can_see_real_devices() -> None:
    assert _truth() == ("cpu", "False")


@interpreted
def _custom_op(k: Any) -> bool:
    seen = []

    @torch.library.custom_op("lethe_test::look", mutates_args=(), device_types="cuda")
    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.is_cuda)
        return x + 1

    look(torch.zeros(2))
    return seen == [True]


def test_a_custom_op_runs_under_the_pretence() -> None:
    assert _custom_op()


ANNOTATED = """
from __future__ import annotations
from collections.abc import Sequence
import torch

@torch.library.custom_op("lethe_test::annotated", mutates_args=())
def annotated(x: torch.Tensor, by: Sequence[int]) -> torch.Tensor:
    return x * by[0]
"""


@interpreted
def _annotated_op(k: Any) -> float:
    space: dict[str, Any] = {"__name__": "annotated"}
    exec(compile(ANNOTATED, "<annotated>", "exec", dont_inherit=True), space)
    return float(space["annotated"](torch.ones(()), [3]))


def test_a_custom_op_may_have_annotations_that_are_strings() -> None:
    assert _annotated_op() == 3.0


@interpreted
def _host_argument(k: Any) -> str:
    try:
        k.double[(1,)](torch.ones(4).cpu(), torch.ones(4), 4, 4)
    except ValueError as error:
        return f"{error} / {is_executor_failure(error)}"
    return ""


def test_a_kernel_refuses_a_tensor_that_was_moved_to_the_host() -> None:
    assert _host_argument() == "Pointer argument 'x' cannot be accessed from Triton (cpu tensor?) / None"
