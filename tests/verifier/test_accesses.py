"""What an interpreted kernel reads outside its buffers is seen, what it stores can be marked, and a second
draw can be written into the tensors of an earlier call."""

from __future__ import annotations

import pytest
import torch

from lethe.verifier.custody import Limits, Suspect
from lethe.verifier.problem import Candidate
from lethe.verifier.server import SuspectServer

LIMITS = Limits(cpu_seconds=60, wall_seconds=30.0, memory_bytes=2 << 30)

KERNEL = """
import torch, triton, triton.language as tl, torch.nn as nn
@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = LOAD
    tl.store(y + o, STORE, mask=o < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), 64)
        return RESULT
"""
MASKED = "tl.load(x + o, mask=o < n)"
DISCARDED = "tl.where(o < n, tl.load(x + o), 0.0)"


@pytest.fixture(scope="module")
def server():
    torch.set_num_threads(1)
    with SuspectServer() as s:
        yield s


def kernel(load: str = MASKED, store: str = "v", result: str = "y") -> str:
    return KERNEL.replace("LOAD", load).replace("STORE", store).replace("RESULT", result)


def spawned(server: SuspectServer, source: str) -> Suspect:
    language = "triton" if "triton" in source else "python"
    executor = "interpreter" if language == "triton" else "cpu"
    suspect = server.spawn(Candidate("case", source, language), executor=executor, limits=LIMITS)
    suspect.load()
    suspect.build([], 0)
    return suspect


def run(server: SuspectServer, source: str, inputs, **options):
    with spawned(server, source) as suspect:
        return suspect.run(inputs, **options)


def test_a_load_past_the_end_is_seen_though_its_value_is_dropped(server):
    (report,) = run(server, kernel(DISCARDED), [torch.ones(100)])
    assert torch.equal(report.outputs, torch.ones(100))
    assert report.overrun == ["input:0: read 28 elements outside"] and not report.guards_intact


def test_a_load_before_the_start_is_seen(server):
    (report,) = run(server, kernel("tl.load(x + o - 1, mask=o < n)"), [torch.ones(64)])
    assert report.overrun == ["input:0: read 1 elements outside"]


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(torch.ones(100), id="whole"),
        pytest.param(torch.ones(64, dtype=torch.float16), id="half"),
        pytest.param(torch.ones(3, 5).to(torch.bfloat16), id="bfloat16"),
    ],
)
def test_masked_loads_are_in_order(server, x):
    (report,) = run(server, kernel(), [x])
    assert report.guards_intact and torch.equal(report.outputs, x)


def test_a_reading_of_the_gaps_of_a_view_is_no_reading_outside(server):
    """Between the rows of a padded matrix lies memory of the same tensor."""
    wide = torch.ones(4, 40)[:, :32]
    source = kernel("tl.load(x + o, mask=o < 150)").replace("empty_like(x)", "empty(152)")
    (report,) = run(server, source, [wide])
    assert report.guards_intact


@pytest.mark.parametrize(
    ("x", "marked"),
    [
        (torch.ones(70), torch.full((70,), torch.nan)),
        (torch.ones(70, dtype=torch.bfloat16), torch.full((70,), torch.nan, dtype=torch.bfloat16)),
        (torch.arange(70), torch.arange(70) ^ 1),
        (torch.arange(70) % 2 == 0, torch.arange(70) % 2 == 1),
    ],
    ids=["float32", "bfloat16", "int64", "bool"],
)
def test_marks_stand_where_a_kernel_stores(server, x, marked):
    with spawned(server, kernel()) as suspect:
        (tainted,) = suspect.run([x], taint=True)
        (plain,) = suspect.run([x])
    assert torch.equal(tainted.outputs.float(), marked.float()) or tainted.outputs.isnan().all()
    assert tainted.outputs.dtype == x.dtype and torch.equal(plain.outputs, x)


def test_what_torch_computes_is_not_marked(server):
    (report,) = run(server, kernel(result="torch.cat([y[:3], x[3:] * 2])"), [torch.ones(10)], taint=True)
    assert report.outputs[:3].isnan().all() and torch.equal(report.outputs[3:], torch.full((7,), 2.0))


def test_atomic_sums_are_marked_and_locks_are_not(server):
    source = (
        kernel()
        .replace(
            "tl.store(y + o, v, mask=o < n)", "tl.atomic_add(y + o, v, mask=o < n)\n    tl.atomic_xchg(z, 7)"
        )
        .replace("kernel(x, y, n, B", "kernel(x, y, z, n, B")
        .replace("torch.empty_like(x)", "torch.zeros_like(x)\n        z = torch.zeros(1, dtype=torch.int32)")
        .replace("](x, y, x.numel()", "](x, y, z, x.numel()")
        .replace("return y", "return y, z")
    )
    (report,) = run(server, source, [torch.ones(70)], taint=True)
    assert report.outputs[0].isnan().all() and report.outputs[1].tolist() == [7]


REMEMBERS = """
import torch
import torch.nn as nn
SEEN = []
class ModelNew(nn.Module):
    def forward(self, x, s):
        SEEN.append((x, x.data_ptr()))
        same = SEEN[0][0] is x and SEEN[0][1] == x.data_ptr()
        return x * s, torch.tensor([same])
"""


def test_a_second_draw_lies_in_the_tensors_of_the_first(server):
    first, second = run(server, REMEMBERS, [torch.ones(5), 2.0], then=[torch.arange(5.0), 2.0])
    assert torch.equal(first.outputs[0], torch.full((5,), 2.0))
    assert torch.equal(second.outputs[0], torch.arange(5.0) * 2) and second.outputs[1].item()


def test_the_first_answer_is_told_before_the_second_call(server):
    source = REMEMBERS.replace("return x * s", "return x.view(-1)")
    first, second = run(server, source, [torch.ones(5), 2.0], then=[torch.zeros(5), 2.0], times=2)[-2:]
    assert torch.equal(first.outputs[0], torch.ones(5)) and torch.equal(second.outputs[0], torch.zeros(5))
