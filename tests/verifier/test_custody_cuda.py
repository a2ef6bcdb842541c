"""Suspects on a CUDA device: the same code path, the device's own failures, streams and graphs."""

from __future__ import annotations

import time

import pytest
import torch

from lethe.verifier.custody import Limits, SuspectError
from lethe.verifier.problem import Candidate
from lethe.verifier.server import SuspectServer
from lethe.verifier.verdict import Status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible to torch"),
]
LIMITS = Limits(cpu_seconds=120, wall_seconds=60.0, memory_bytes=4 << 30)
KERNEL = """
import torch, triton, triton.language as tl, torch.nn as nn
@triton.jit
def scale(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, 2.0 * tl.load(x + o, mask=o < n), mask=o < MASK)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        scale[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 256)
        return RESULT
"""


@pytest.fixture(scope="module")
def server():
    with SuspectServer() as s:
        yield s


def scale(mask: str = "n", result: str = "y") -> str:
    return KERNEL.replace("MASK", mask).replace("RESULT", result)


def run(server: SuspectServer, source: str, *, limits: Limits = LIMITS, n: int = 1000, **options):
    with server.spawn(Candidate("case", source, "triton"), executor="cuda", limits=limits) as suspect:
        suspect.load()
        suspect.build([], 0)
        return suspect.run([torch.ones(n)], **options)


def plain(body: str) -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    head = "import ctypes, torch, torch.nn as nn\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
    return head + lines


@pytest.mark.parametrize("mode", [None, "stream", "graph"])
def test_compiled_kernel_is_right_and_counted(server: SuspectServer, mode: str | None) -> None:
    for report in run(server, scale(), times=2, mode=mode):
        assert torch.equal(report.outputs, torch.full((1000,), 2.0))
        assert report.kernels == ["scale"] and report.launches >= 1
        assert report.meta[0].device == "cuda:0" and report.guards_intact


def test_missing_mask_is_seen(server: SuspectServer) -> None:
    (report,) = run(server, scale(mask="1 << 20"))
    assert not report.guards_intact and "out" in report.overrun[0]


def test_output_moved_to_the_host_is_seen(server: SuspectServer) -> None:
    assert run(server, scale(result="y.cpu()"))[0].meta[0].device == "cpu"


def test_gradient(server: SuspectServer) -> None:
    (report,) = run(server, plain("return x * x"), upstream=[torch.full((1000,), 3.0)])
    assert torch.equal(report.grads["input:0"], torch.full((1000,), 6.0))


@pytest.mark.parametrize(
    ("source", "status"),
    [
        pytest.param(plain("return torch.empty(100 << 30, dtype=torch.uint8, device='cuda')"),
                     Status.OUT_OF_MEMORY, id="out of memory"),
        pytest.param(scale().replace("y + o,", "y + o + (1 << 45),"), Status.CRASHED, id="illegal address"),
        pytest.param(plain("return x[torch.tensor([10**9], device='cuda')]"), Status.CRASHED,
                     id="device assert"),
        pytest.param(scale().replace("tl.load(", "tl.lod("), Status.COMPILE_FAILED, id="does not compile"),
        pytest.param(plain("while True: x = x + 1"), Status.TIMED_OUT, id="loops"),
        pytest.param(plain("ctypes.string_at(0)"), Status.CRASHED, id="segmentation fault"),
    ],
)  # fmt: skip
def test_failures_are_typed_and_do_not_spread(server: SuspectServer, source: str, status: Status) -> None:
    wall = 8.0 if status is Status.TIMED_OUT else 60.0
    limits = Limits(cpu_seconds=120, wall_seconds=wall, memory_bytes=4 << 30)
    with pytest.raises(SuspectError) as caught:
        run(server, source, limits=limits)
    assert caught.value.status is status, caught.value
    assert torch.equal(run(server, scale())[0].outputs, torch.full((1000,), 2.0))


def test_server_never_touches_the_device(server: SuspectServer) -> None:
    run(server, scale())
    for process in server._processes.values():
        with open(f"/proc/{process._process.pid}/maps") as maps:
            assert "/dev/nvidia" not in maps.read()


def test_spawn_is_quick(server: SuspectServer) -> None:
    run(server, scale())
    begun = time.perf_counter()
    for _ in range(5):
        server.spawn(Candidate("case", scale(), "triton"), executor="cuda", limits=LIMITS).close()
    assert time.perf_counter() - begun < 2.0
