"""On a GPU: values and gradients at realistic sizes, the same bits every time, graphs replay to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.mamba3.checked import assert_within, block_errors, head_errors, scan_errors
from tests.kernels.mamba3.draws import block_operands, head_operands, leaves, scan_operands

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"]
)
MODES = pytest.mark.parametrize("mode", ["serial", "chunked"])


@DTYPES
@MODES
@pytest.mark.parametrize("trap", [False, True], ids=["euler", "trapezoidal"])
def test_scan(trap, mode, dtype):
    o = scan_operands(2, 201, 130, 16, dtype, trap=trap, state=True, device="cuda")
    assert_within(scan_errors(o, mode=mode, chunk=64), dtype)


@pytest.mark.parametrize("n", [1, 5, 32, 64, 128], ids=lambda n: f"N{n}")
def test_scan_with_other_states(n):
    o = scan_operands(1, 75, 70, n, device="cuda")
    assert_within(scan_errors(o, mode="chunked", chunk=32), torch.float32)


@DTYPES
@MODES
def test_block(mode, dtype):
    o = block_operands(2, 201, 130, 16, dtype, device="cuda")
    assert_within(block_errors(o, mode=mode, chunk=64), dtype)


@DTYPES
@MODES
@pytest.mark.parametrize("rank", [1, 4], ids=["siso", "mimo4"])
def test_head(rank, mode, dtype):
    o = head_operands(2, 75, 4, 2, 128, 64, 32, rank, dtype, device="cuda")
    assert_within(head_errors(o, pairwise=rank == 1, state=True, mode=mode, chunk=32), dtype)


def _steps() -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    from lethe.kernels.mamba3.head import head_scan
    from lethe.kernels.mamba3.scan import fused_block, selective_scan

    def both(run: Callable[..., Tensor], operands: dict[str, Tensor]) -> Callable[[], tuple[Tensor, ...]]:
        live = leaves(operands)
        dy = torch.randn_like(run(**live))

        def step() -> tuple[Tensor, ...]:
            y = run(**live)
            return (y.detach(), *torch.autograd.grad(y, list(live.values()), dy))

        return step

    bf16 = torch.bfloat16
    scan = scan_operands(2, 1000, 512, 16, bf16, device="cuda")
    block = block_operands(2, 1000, 512, 16, bf16, device="cuda")
    head = head_operands(1, 300, 8, 1, 128, 64, 32, 4, bf16, device="cuda")
    return {
        "scan": both(lambda **k: selective_scan(**k)[0], scan),
        "block": both(fused_block, block),
        "head": both(lambda **k: head_scan(**k, pairwise=False)[0], head),
    }


@pytest.mark.parametrize("name", ["scan", "block", "head"])
def test_twenty_runs_give_the_same_bits(name):
    step = _steps()[name]
    first = step()
    for _ in range(19):
        assert all(torch.equal(a, b) for a, b in zip(first, step(), strict=True))


@pytest.mark.parametrize("name", ["scan", "block", "head"])
def test_a_graph_replays_to_the_bit(name):
    step = _steps()[name]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for tensor in captured:
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))


@pytest.mark.parametrize("name", ["u", "dt", "A", "B", "C", "D"])
def test_another_device_is_refused(name):
    from lethe.kernels.mamba3.scan import selective_scan

    o = scan_operands(1, 8, 32, 16, device="cuda")
    with pytest.raises(ValueError, match=f"{name} is on cpu" if name != "u" else "is on cuda:0, u is on cpu"):
        selective_scan(**(o | {name: o[name].cpu()}))
