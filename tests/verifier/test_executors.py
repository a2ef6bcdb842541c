"""Executors: installation, launch counting, the pretence of CUDA, and what the interpreter computes."""

from __future__ import annotations

import math
import os
import re
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lethe.verifier.executors import is_executor_failure, lowprec, unfaithful
from tests.verifier.forked import ChildFailed, in_child, interpreted

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
def _autotune(k: Any, index: str | None) -> tuple[list[float], list[float], dict[str, int]]:
    from lethe.verifier.executors import autotune

    if index is not None:
        os.environ[autotune.CONFIG_VARIABLE] = index
    x, o, hooked = torch.ones(64), torch.full((64,), 9.0), torch.zeros(3)
    for _ in range(2):
        k.tuned[lambda meta: (-(-64 // meta["BLOCK"]),)](x, o, hooked, 64)
    return hooked.tolist(), o[:2].tolist(), autotune.config_counts()


@pytest.mark.parametrize(
    ("index", "hooks", "block"),
    [(None, 2, 16), ("1", 0, 32), ("2", 0, 64), ("4", 0, 32)],
    ids=["first", "1", "2", "4=1"],
)
def test_autotune_runs_the_chosen_configuration(index: str | None, hooks: int, block: int) -> None:
    state, output, counts = _autotune(index)
    assert state == [hooks, block, 1.0]
    assert output == [2.0, 2.0]  # reset_to_zero acts on the first call of a key only, as on a GPU
    assert counts == {"tuned": 3}


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


# ---------------------------------------------------------------- what the interpreter computes


@interpreted
def _elementwise(k: Any, op: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    o = torch.empty_like(x)
    k.elementwise[(1,)](x, y, o, op, x.numel())
    return o


SPECIALS = torch.tensor([NAN, 1.0, NAN, -0.0, 0.0, INF, -INF, 3.0])
PARTNERS = torch.tensor([2.0, NAN, NAN, 0.0, -0.0, NAN, 1.0, -3.0])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("maximum", [2.0, 1.0, NAN, 0.0, 0.0, INF, 1.0, 3.0]),
        ("maximum_all", [NAN, NAN, NAN, 0.0, 0.0, NAN, 1.0, 3.0]),
        ("minimum", [2.0, 1.0, NAN, -0.0, -0.0, INF, -INF, -3.0]),
        ("clamp", [-1.0, 1.0, -1.0, -0.0, 0.0, 1.0, -1.0, 1.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_extrema_treat_nan_and_zeros_as_the_gpu(op: str, expected: list[float], dtype: torch.dtype) -> None:
    got = _elementwise(op, SPECIALS.to(dtype), PARTNERS.to(dtype)).tolist()
    signed = [(math.isnan(v), math.copysign(1, v) if v == 0 else v) for v in got]
    wanted = [(math.isnan(v), math.copysign(1, v) if v == 0 else v) for v in expected]
    assert [s if not s[0] else True for s in signed] == [w if not w[0] else True for w in wanted]


@pytest.mark.parametrize("op", ["add", "mul", "div"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_arithmetic_rounds_once(op: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    x, y = (torch.randn(1024, generator=generator).to(dtype) for _ in range(2))
    wide = {"add": x.double() + y.double(), "mul": x.double() * y.double(), "div": x.double() / y.double()}[
        op
    ]
    error = (_elementwise(op, x, y).double() - wide).abs()
    half_ulp = torch.finfo(dtype).eps * 2.0 ** torch.floor(torch.log2(wide.abs())) / 2
    assert (error <= half_ulp * (1 + 1e-9) + torch.finfo(dtype).smallest_normal).all()


def test_fma_rounds_once_in_float32() -> None:
    x = torch.tensor([1.0 + 2.0**-12, 1.0 + 2.0**-23, 3.0, 1e-30], dtype=torch.float32)
    y = torch.tensor([-1.0 + 2.0**-12, -1.0 - 2.0**-23, 1 / 3, 1e-15], dtype=torch.float32)
    got = _elementwise("fma", x, y).tolist()
    for a, b, value in zip(x.tolist(), y.tolist(), got, strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(a)
        neighbours = [value, float(np.nextafter(np.float32(value), np.float32(9e9)))]
        neighbours.append(float(np.nextafter(np.float32(value), np.float32(-9e9))))
        assert abs(Fraction(value) - exact) == min(abs(Fraction(v) - exact) for v in neighbours)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("boolean", lambda x, y: (x < y) & ~(x < -y)),
        ("either", lambda x, y: (x < y) | (x > 1)),
        ("tanh", lambda x, y: torch.tanh(x)),
        ("erf", lambda x, y: torch.erf(x)),
    ],
    ids=["and-not", "or", "libdevice.tanh", "erf"],
)
def test_operators_and_functions_of_whole_blocks(op: str, expected: Any) -> None:
    x, y = torch.linspace(-2, 2, 32), torch.linspace(1, -1, 32)
    torch.testing.assert_close(_elementwise(op, x, y), expected(x, y).float(), rtol=1e-6, atol=1e-7)


def test_exp_multiplies_by_log2e_in_float32_first() -> None:
    x = torch.tensor([80.0, -80.0, 50.3, 0.0])
    got = _elementwise("exp", x, x)
    scaled = x * torch.tensor(1.4426950408889634, dtype=torch.float32)
    assert got.tolist() == torch.exp2(scaled.double()).float().tolist()
    assert (got.double() / torch.exp(x.double()) - 1).abs().max() > 5e-7  # so far off is the GPU's exp


CASTS = [
    (torch.float32, torch.bfloat16, [1.00390625, 1.01171875, 1.0, -3.3e38, NAN, 1e-40, 3.3961775e38, 2.5]),
    (torch.bfloat16, torch.float32, [1.0, -0.0, INF, 1e-39, 3.0, 2.0, 1.0, 1.0]),
    (torch.float32, torch.float16, [1.00048828125, 65519.0, 65520.0, 6e-8, 1.0, -1.0, NAN, INF]),
    (torch.int32, torch.bfloat16, [257, 259, -513, 2**24 + 1, 0, 1, 2, 3]),
    (torch.float64, torch.bfloat16, [1.00390625, 1.01171875, 2.0, -1.0, 0.0, 1e-3, 7.0, 9.0]),
]


@interpreted
def _convert(k: Any, x: torch.Tensor, name: str, o: torch.Tensor) -> torch.Tensor:
    import triton.language as tl

    k.convert[(1,)](x, o, getattr(tl, name), x.numel())
    return o


@pytest.mark.parametrize(("source", "target", "values"), CASTS, ids=[f"{s}-{t}" for s, t, _ in CASTS])
def test_casts_round_to_nearest_even(source: torch.dtype, target: torch.dtype, values: list[float]) -> None:
    x = torch.tensor(values, dtype=source)
    name = str(target).removeprefix("torch.")
    got = _convert(x, name, torch.empty(8, dtype=target))
    torch.testing.assert_close(got, x.to(target), rtol=0, atol=0, equal_nan=True)


def test_float64_to_bfloat16_rounds_once() -> None:
    x = torch.tensor([1.00390625 + 1e-12] * 8, dtype=torch.float64)  # by way of float32 this would be 1.0
    assert _convert(x, "bfloat16", torch.empty(8, dtype=torch.bfloat16)).tolist() == [1.0078125] * 8


def test_float_to_int_saturates() -> None:
    x = torch.tensor([3e9, -3e9, NAN, INF, -INF, 2.9, -2.9, 1.0])
    top, bottom = 2**31 - 1, -(2**31)
    assert _convert(x, "int32", torch.empty(8, dtype=torch.int32)).tolist() == [
        top,
        bottom,
        0,
        top,
        bottom,
        2,
        -2,
        1,
    ]


@interpreted
def _scale(k: Any, dtype: torch.dtype, flag: bool) -> torch.Tensor:
    o = torch.full((8,), -1.0)
    k.scale[(1,)](torch.full((8,), 3.0).to(dtype), o, 0.1, flag, 8)
    return o


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_float_argument_is_a_float32_scalar(dtype: torch.dtype) -> None:
    assert _scale(dtype, True).tolist() == (torch.tensor(3.0) * torch.tensor(0.1)).expand(8).tolist()
    assert _scale(dtype, False).tolist() == [-1.0] * 8


@interpreted
def _reduce(k: Any, op: str, x: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    k.reduce_rows[(1,)](x, o, op, *x.shape)
    return o


ROWS = torch.tensor(
    [[3.0, NAN, 7.0, 7.0], [NAN, NAN, NAN, NAN], [-0.0, 0.0, -0.0, -0.0], [NAN, 1.0, -2.0, -2.0]]
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_row_extrema_drop_nan(dtype: torch.dtype) -> None:
    largest = _reduce("max", ROWS.to(dtype), torch.empty(4)).tolist()
    smallest = _reduce("min", ROWS.to(dtype), torch.empty(4)).tolist()
    assert (
        largest[0] == 7.0
        and math.isnan(largest[1])
        and math.copysign(1, largest[2]) == 1
        and largest[3] == 1.0
    )
    assert smallest[0] == 3.0 and math.isnan(smallest[1]) and smallest[3] == -2.0
    assert math.copysign(1, smallest[2]) == -1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_argmax_takes_the_first_of_equals(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 5, 5, 2], [0, 0, 0, 0], [-1, -3, -1, -3], [4, 1, 1, 9]]).to(dtype)
    assert _reduce("argmax", x, torch.empty(4, dtype=torch.int32)).tolist() == [1, 0, 0, 3]
    assert _reduce("argmin", x, torch.empty(4, dtype=torch.int32)).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("op", ["smaller", "branch"])
def test_custom_reductions(op: str) -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    assert _reduce(op, x, torch.empty(4)).tolist() == x.min(1).values.tolist()


def test_a_reduction_keeps_the_order_of_its_operands() -> None:
    x = torch.arange(32.0).reshape(4, 8)
    assert _reduce("first", x, torch.empty(4)).tolist() == [0.0, 8.0, 16.0, 24.0]


@pytest.mark.parametrize(
    ("dtype", "total"), [(torch.float16, 2048), (torch.bfloat16, 256)], ids=["f16", "bf16"]
)
def test_narrow_sums_round_at_every_addition(dtype: torch.dtype, total: int) -> None:
    x = torch.zeros(2, 4, dtype=dtype)
    x[0] = torch.tensor([total, 1.0, 1.0, -total])  # in a wide accumulator: 2
    x[1] = 1.0
    got = _reduce("sum", x, torch.empty(2, dtype=dtype)).tolist()
    assert got[0] != 2.0 and got[1] == 4.0


@interpreted
def _scan(k: Any, op: str, x: torch.Tensor) -> torch.Tensor:
    o = torch.empty_like(x)
    k.scan_rows[(1,)](x, o, op, *x.shape)
    return o


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("cumsum", lambda x: x.cumsum(1)),
        ("reverse", lambda x: x.flip(1).cumsum(1).flip(1)),
        ("smaller", lambda x: x.cummin(1).values),
        ("branch", lambda x: x.cummin(1).values),
        ("first", lambda x: x[:, :1].expand(x.shape)),
        ("sort", lambda x: x.sort(1).values),
    ],
)
def test_scans(op: str, expected: Any) -> None:
    x = torch.randint(-9, 9, (4, 16), generator=torch.Generator().manual_seed(2)).float()
    assert torch.equal(_scan(op, x), expected(x))


@interpreted
def _pile_up(k: Any, dtype: torch.dtype) -> list[float]:
    total = torch.zeros(2, dtype=dtype)
    k.pile_up[(1,)](torch.arange(16).to(dtype), total, 16)
    return total.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_atomic_adds_to_one_address_all_arrive(dtype: torch.dtype) -> None:
    assert _pile_up(dtype) == [56.0, 64.0]


@interpreted
def _matmul(k: Any, a: torch.Tensor, b: torch.Tensor, tf32: bool) -> torch.Tensor:
    c = torch.empty(16, 16)
    k.matmul[(1,)](a, b, c, 16, tf32, 16)
    return c


def test_bfloat16_dot_is_right() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(16, 16, generator=generator).bfloat16() for _ in range(2))
    torch.testing.assert_close(_matmul(a, b, False), a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_dot_of_float32_uses_tf32_when_asked() -> None:
    b = torch.randn(16, 16, generator=torch.Generator().manual_seed(4))
    exact, narrow = _matmul(torch.eye(16), b, False), _matmul(torch.eye(16), b, True)
    assert torch.equal(exact, b)
    kept = (b.view(torch.int32) & ~0x1FFF).view(torch.float32)
    assert torch.equal(narrow, kept)


@interpreted
def _closures(k: Any) -> list[float]:
    return [k.filler(2.5, 4)[0].item(), k.filler(-1.0, 4)[0].item()]


def test_kernels_keep_the_variables_of_an_enclosing_function() -> None:
    assert _closures() == [2.5, -1.0]


# ---------------------------------------------------------------- limits


@interpreted
def _inline_assembly(k: Any) -> str | None:
    try:
        k.inline_assembly[(1,)](torch.ones(4))
    except Exception as error:
        return is_executor_failure(error)
    return None


def test_inline_assembly_is_the_executors_limit() -> None:
    assert _inline_assembly() == "inline assembly cannot run in Triton's interpreter"


@interpreted
def _graph(k: Any) -> str | None:
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1)
    except Exception as error:
        return is_executor_failure(error)
    return None


def test_graph_capture_is_the_executors_limit() -> None:
    assert _graph() == "CUDA graphs cannot be captured or replayed without a device"


@interpreted
def _own_fault(k: Any) -> str | None:
    try:
        k.broken[(1,)](torch.ones(8))
    except Exception as error:
        return is_executor_failure(error)
    return "nothing was raised"


def test_a_kernels_own_fault_is_not_the_executors() -> None:
    assert _own_fault() is None
    assert is_executor_failure(ValueError("size mismatch")) is None
    assert is_executor_failure(KeyError("weight")) is None


def test_causes_are_searched() -> None:
    try:
        try:
            raise NotImplementedError("extern_elementwise not supported in interpreter mode")
        except NotImplementedError as inner:
            raise RuntimeError("launch failed") from inner
    except RuntimeError as error:
        assert "libdevice" in (is_executor_failure(error) or "")


@pytest.mark.parametrize(
    ("source", "dtype", "reason"),
    [
        ("y = tl.inline_asm_elementwise('', '', [x], tl.float32, True, 1)", "float32", "inline assembly"),
        ("y = x.to(tl.float8e4nv)", "float32", "fp8"),
        ("y = x", "float8_e4m3fn", "fp8"),
        ("from triton.language.extra import libdevice\ny = libdevice.yn(1, x)", "float32", "yn"),
        ("from triton.experimental.gluon import language as gl", "float32", "Gluon"),
    ],
)
def test_unfaithful_features_are_named(source: str, dtype: str, reason: str) -> None:
    assert re.search(reason, "; ".join(unfaithful(source, dtype)))


def test_faithful_sources_have_no_reason() -> None:
    source = "# inline_asm_elementwise\n'float8'\ny = libdevice.tanh(tl.argmax(x, 0))"
    assert unfaithful(source, "bfloat16") == []
    assert "argmax" in unfaithful(source, "float32", nonfinite=True)[0]


# ---------------------------------------------------------------- arithmetic of lowprec


def test_multiply_high_of_64_bits() -> None:
    a = np.array([2**63 + 12345, 2**64 - 1, 7, 2**32 + 1], dtype=np.uint64)
    b = np.array([2**62 + 999, 2**64 - 1, 9, 2**33 + 5], dtype=np.uint64)
    expected = [(int(x) * int(y)) >> 64 for x, y in zip(a, b, strict=True)]
    assert lowprec.multiply_high(a, b).tolist() == expected


def test_fma_of_float64_rounds_once() -> None:
    rng = np.random.default_rng(5)
    x, y, z = rng.standard_normal((3, 500))
    z[:250] = -(x * y)[:250] * (1 + rng.integers(-3, 4, 250) * 2.0**-52)
    for a, b, c, value in zip(x, y, z, lowprec.fma_f64(x, y, z), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        near = [value, np.nextafter(value, np.inf), np.nextafter(value, -np.inf)]
        assert abs(Fraction(value) - exact) == min(abs(Fraction(float(v)) - exact) for v in near)


@pytest.mark.parametrize("toward_zero", [False, True], ids=["nearest", "toward-zero"])
def test_bfloat16_bits_of_every_exponent(toward_zero: bool) -> None:
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    got = lowprec.bf16_to_f32(lowprec.f32_to_bf16(values, toward_zero=toward_zero))
    if toward_zero:
        expected = (bits & np.uint32(0xFFFF0000)).view(np.float32)
    else:
        expected = torch.from_numpy(values).bfloat16().float().numpy()
    finite = ~np.isnan(values)
    assert np.array_equal(got[finite], expected[finite]) and np.isnan(got[~finite]).all()


def test_a_failing_child_is_reported() -> None:
    with pytest.raises(ChildFailed, match="ZeroDivisionError"):
        in_child(lambda: 1 // 0)


def test_on_a_device_the_first_configuration_that_loads_wins_after_one_call() -> None:
    from types import SimpleNamespace

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
