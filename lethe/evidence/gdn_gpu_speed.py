"""Device times of the gated linear recurrence on a GPU, from CUDA graphs (`lethe.kernels.timing`).

`tasks` gives, for `gdn_gpu`, a line for each shape: forward and backward passes (recompute, no final state),
each kernel by itself, bytes that the pipeline moves (`cost.traffic`) with the ratio of the time to those at
the bandwidth that a copy reaches on this device, and the peak of memory. The steps of a line alternate.

With ``fla`` flash-linear-attention is timed on the same inputs in the same process, ours beside it once more:
forward, and forward with backward through autograd. Where it cannot be imported or fails, the line says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lethe.evidence.gdn_gpu_checks import DTYPES, Call
from lethe.evidence.gdn_precision import MEMBERS
from lethe.kernels import timing
from lethe.kernels.gdn import cute_sm90
from lethe.kernels.gdn.checks import Arguments
from lethe.kernels.gdn.chunks import CHUNK
from lethe.kernels.gdn.cost import least_traffic, traffic

REPEATS = 9
COPIED = 1 << 30
"""Bytes of the copy that measures the bandwidth: half are read, half written."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One problem."""

    member: str = "gdn2"
    batch: int = 2
    heads: int = 16
    length: int = 2048
    dv: int = 128
    io: str = "bf16"

    def call(self) -> Call:
        """Inputs with mild gates, without initial and final state."""
        return _inputs(self)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Numbers that g, b and w have for a token and head."""
        wide = (128, 128, self.dv)
        kinds = zip(MEMBERS[self.member], wide, strict=True)
        g, b, w = (0 if not kind else 1 if kind == "head" else width for kind, width in kinds)
        return g, b, w

    @property
    def chunks(self) -> int:
        """Chunks and heads."""
        return self.batch * self.heads * -(-self.length // CHUNK)


@functools.lru_cache(maxsize=1)
def _inputs(shape: Shape, device: str = "cuda") -> Call:
    """Drawn where they are used: keys of length one, gates as `gdn_precision` has them."""
    r = torch.Generator(device).manual_seed(0)
    io, rows = DTYPES[shape.io], (shape.batch, shape.length, shape.heads)

    def normal(width: int) -> torch.Tensor:
        return torch.randn(*rows, width, generator=r, device=device)

    def gate(width: int, of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
        return of(normal(width)) if width else None

    q, k = (F.normalize(F.silu(normal(128)), dim=-1).to(io) for _ in range(2))
    v, do = (normal(shape.dv).to(io) for _ in range(2))
    g, b, w = shape.widths
    gates = (
        gate(g, lambda x: F.logsigmoid(x + 3)),
        gate(b, lambda x: x.sigmoid().to(io)),
        gate(w, lambda x: x.sigmoid().to(io)),
    )
    a = Arguments(q, k, v, *gates, None, None, 128**-0.5)
    return Call(a, do, torch.zeros(a.state_shape, device=device))


def shapes() -> Iterator[Shape]:
    """The grid, the most telling first."""
    found: dict[Shape, None] = dict.fromkeys([Shape(), Shape(io="fp16")])
    for length in (512, 1024, 4096, 8192, 16384):
        found[Shape(length=length)] = None
    for member in reversed(MEMBERS):
        found[Shape(member)] = None
    found[Shape(dv=64)] = None
    for batch, heads in ((1, 4), (1, 8), (2, 4), (2, 8), (1, 16), (8, 16), (2, 32), (1, 32), (8, 32)):
        found[Shape(batch=batch, heads=heads)] = None
    for batch, heads in ((1, 4), (1, 8), (2, 4), (2, 8)):
        for length in (512, 4096, 8192, 16384):
            found[Shape(batch=batch, heads=heads, length=length)] = None
    for member in ("kda", "gdn", "gla"):
        for length in (512, 4096, 8192, 16384):
            found[Shape(member, length=length)] = None
        found[Shape(member, dv=64)] = None
    for length in (512, 4096, 16384):
        found[Shape(length=length, dv=64)] = None
    yield from found


# --- ours -------------------------------------------------------------------------------------


def passes(shape: Shape) -> dict[str, Callable[[], Any]]:
    """The two passes and their kernels, by name."""
    c = shape.call()
    device = c.a.q.device
    count = torch.cuda.get_device_properties(device).multi_processor_count

    def new(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    ahead, _ = cute_sm90.plan_forward(c.a, False, new)
    back, _ = cute_sm90.plan_backward(c.a, c.do, None, None, new, count)
    steps: dict[str, Callable[[], Any]] = {
        "forward": lambda: cute_sm90.forward(c.a, False),
        "backward": lambda: cute_sm90.backward(c.a, c.do, None),
    }
    for prefix, plan in (("forward", ahead), ("backward", back)):
        for step in plan:
            step.launch()
        steps |= {f"{prefix}.{step.stage}": step.launch for step in plan}
    return steps


def ours(shape: Shape) -> Row:
    """Times, bytes, ratios, memory."""
    c = shape.call()
    peaks = {"inputs": torch.cuda.memory_allocated()}
    for name, work in (
        ("forward", lambda: cute_sm90.forward(c.a, False)),
        ("backward", lambda: cute_sm90.backward(c.a, c.do, None)),
    ):
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        peaks[name] = torch.cuda.max_memory_allocated()
    us = timing.measured(passes(shape), REPEATS)
    moved = {k: v * shape.chunks for k, v in traffic(dv=shape.dv, widths=shape.widths).items()}
    moved["backward"] = sum(moved.values())
    moved["least"] = least_traffic(dv=shape.dv, widths=shape.widths) * shape.chunks
    floor = {name: 1e6 * size / bandwidth() for name, size in moved.items()}
    median = {name: timing.summary(samples)["median"] for name, samples in us.items()}
    ratios = {name: median[f"backward.{name}"] / floor[name] for name in ("prep", "scan", "out")}
    ratios |= {name: median["backward"] / floor[name] for name in ("backward", "least")}
    row = {"us": us, "median_us": median, "bytes": moved, "floor_us": floor, "ratio": ratios}
    return {**row, "bandwidth": bandwidth(), "peak": peaks}


@functools.cache
def bandwidth() -> float:
    """Bytes a second of a copy, read and written."""
    source = torch.empty(COPIED // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    samples = timing.measured({"copy": lambda: target.copy_(source)}, 5)["copy"]
    return 1e6 * COPIED / min(samples)


# --- flash-linear-attention -------------------------------------------------------------------

FLA = {"gdn2": ("gdn2", "chunk_gdn2"), "kda": ("kda", "chunk_kda"), "gla": ("gla", "chunk_gla")} | {
    "gdn": ("gated_delta_rule", "chunk_gated_delta_rule")
}
"""Member -> the module under ``fla.ops`` and the function that is the same operator."""


def fla_shapes() -> Iterator[Shape]:
    """What both are timed on."""
    for member in FLA:
        yield Shape(member)
    for length in (4096, 512, 8192, 16384, 1024):
        yield Shape(length=length)
    for batch, heads in ((1, 4), (2, 8), (1, 8), (2, 4)):
        yield Shape(batch=batch, heads=heads)
    for member in ("kda", "gdn", "gla"):
        for length in (512, 8192):
            yield Shape(member, length=length)


def theirs(shape: Shape) -> Row:
    """fla and ours on the same inputs."""
    import importlib
    from importlib import metadata

    c = shape.call()
    module, name = FLA[shape.member]
    function = getattr(importlib.import_module(f"fla.ops.{module}"), name)
    inputs = {n: t for n, t in c.a.tensors().items() if n not in ("initial_state", "cu_seqlens")}
    if shape.member in ("kda", "gdn"):
        inputs["beta"] = inputs.pop("b")[..., 0]
        del inputs["w"]
    if shape.member == "gdn":
        inputs["g"] = inputs["g"][..., 0]
    inputs = {n: t.detach().clone().requires_grad_() for n, t in inputs.items()}

    def run() -> torch.Tensor:
        o: torch.Tensor = function(**inputs, scale=c.a.scale)[0]
        return o

    def train() -> Any:
        return torch.autograd.grad(run(), list(inputs.values()), c.do)

    def infer() -> Any:
        with torch.no_grad():
            return run()

    def both() -> Any:
        cute_sm90.forward(c.a, False)
        return cute_sm90.backward(c.a, c.do, None)

    us = timing.measured(
        {"forward": lambda: cute_sm90.forward(c.a, False), "forward+backward": both}, REPEATS
    )
    row: Row = {"us": us, "fla_version": metadata.version("fla-core"), "agrees": _agreement(c, infer, train)}
    for key, step in (("forward", infer), ("forward+backward", train)):
        samples, clock = timing.alone(step, REPEATS)
        middle = [timing.summary(x)["median"] for x in (samples, us[key])]
        row[key] = {"fla_us": samples, "clock": clock, "fla_over_ours": middle[0] / middle[1]}
    return row


def _agreement(c: Call, infer: Callable[[], Any], train: Callable[[], Any]) -> dict[str, float]:
    """Largest difference over our largest value: that it is the same operator that is timed."""
    pairs = {"o": (cute_sm90.forward(c.a, False)[0], infer())}
    pairs["dq"] = (cute_sm90.backward(c.a, c.do, None)["q"], train()[0])
    return {
        n: float((a.float() - b.float()).abs().max() / a.float().abs().max()) for n, (a, b) in pairs.items()
    }


# --- what is run ------------------------------------------------------------------------------


def tasks(fla: bool) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """(what it is about, how the rest is found)."""
    grid = list(shapes())
    first = 16 if fla else len(grid)
    plan = [("ours", shape, ours) for shape in grid[:first]]
    plan += [("fla", shape, theirs) for shape in fla_shapes()] if fla else []
    plan += [("ours", shape, ours) for shape in grid[first:]]
    for kind, shape, work in plan:
        yield {"kind": kind, **asdict(shape)}, functools.partial(work, shape)
