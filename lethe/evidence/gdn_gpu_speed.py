"""Device times of the gated linear recurrence on a GPU, from CUDA graphs (`lethe.kernels.timing`).

`tasks` gives, for `gdn_gpu`, a line for each shape: forward and backward passes (no final state; recompute,
or with the forward pass's checkpoints where the shape says ``save``), each kernel by itself, the floors, and
the peak of memory. The steps of a line alternate.

A floor is bytes over the bandwidth that the fastest copy reaches on this device (`bandwidths`), in
microseconds:

* ``least`` and ``least_forward``: what the backward and the forward pass must move whatever their kernels
  are, `cost.compulsory`: inputs, outputs, gradients, checkpoints, each once. They bound every implementation
  from below as long as the tensors do not fit in the L2 cache;
* ``prep``, ``scan`` and ``out``: what a kernel of the backward pass reads and writes, workspaces included,
  each tensor once (`cost.traffic`); ``backward`` is their sum. A workspace that stays in the L2 cache from
  one kernel to the next beats it. Known for recompute mode.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lethe.evidence.gdn_gpu_checks import DTYPES, Call
from lethe.evidence.gdn_precision import MEMBERS, decays
from lethe.kernels import timing
from lethe.kernels.gdn import cute_sm90
from lethe.kernels.gdn.checks import Arguments
from lethe.kernels.gdn.chunks import CHUNK
from lethe.kernels.gdn.cost import compulsory, traffic
from lethe.kernels.gdn.native import Step

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
    save: bool = False
    gate: str = "mild"

    def call(self) -> Call:
        """Inputs with gates as `gdn_precision` has them, without initial and final state."""
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
    """Drawn where they are used: keys of length one, gates as `gdn_precision` has them.

    b and w that are one number a head are the same number, as in DeltaNet, GDN and KDA.
    """
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
        gate(g, functools.partial(decays, shape.gate)),
        gate(b, lambda x: x.sigmoid().to(io)),
        gate(w, lambda x: x.sigmoid().to(io)),
    )
    if shape.widths[1:] == (1, 1):
        gates = (*gates[:2], gates[1])
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
    for gate in ("steep", "strong"):
        found[Shape(gate=gate)] = None
    found[Shape(save=True)] = None
    for member in ("kda", "gdn", "gla"):
        found[Shape(member, dv=64)] = None
    found[Shape(save=True, dv=64)] = None
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


def whole(shape: Shape) -> dict[str, Callable[[], Any]]:
    """The two passes."""
    c = shape.call()
    saved = cute_sm90.forward(c.a, True)[2] if shape.save else None
    return {
        "forward": lambda: cute_sm90.forward(c.a, shape.save),
        "backward": lambda: cute_sm90.backward(c.a, c.do, None, saved),
    }


def backward_plan(c: Call, saved: Any = None) -> list[Step]:
    """The launches of a backward pass, on workspaces of their own."""
    count = torch.cuda.get_device_properties(c.a.q.device).multi_processor_count
    return cute_sm90.plan_backward(c.a, c.do, None, saved, _new(c), count)[0]


def _new(c: Call) -> Callable[[tuple[int, ...], torch.dtype], torch.Tensor]:
    return lambda size, dtype: torch.empty(size, dtype=dtype, device=c.a.q.device)


def kernels(shape: Shape) -> dict[str, Callable[[], Any]]:
    """The kernels of both passes, each by itself, after one launch of each in order."""
    c, steps = shape.call(), {}
    saved = cute_sm90.forward(c.a, True)[2] if shape.save else None
    ahead, _ = cute_sm90.plan_forward(c.a, shape.save, _new(c))
    back = backward_plan(c, saved)
    for prefix, plan in (("forward", ahead), ("backward", back)):
        for step in plan:
            step.launch()
            steps[f"{prefix}.{step.stage}"] = step.launch
    return steps


def ours(shape: Shape) -> Row:
    """Times, bytes, floors, ratios, memory."""
    c = shape.call()
    peaks = {"inputs": torch.cuda.memory_allocated()}
    passes = whole(shape)
    for name, step in passes.items():
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        peaks[name] = torch.cuda.max_memory_allocated()
    us = timing.measured(passes | kernels(shape), REPEATS)
    median = {name: timing.summary(samples)["median"] for name, samples in us.items()}
    least = floors(shape, c.a.state_shape, bandwidth())
    found = {name: median[f"backward.{name}"] for name in ("prep", "scan", "out")} | median
    found |= {"least": median["backward"], "least_forward": median["forward"]}
    ratios = {name: found[name] / floor for name, floor in least["floor_us"].items()}
    row = {"us": us, "median_us": median, **least, "ratio": ratios}
    return {**row, "bandwidth": bandwidth(), "bandwidths": bandwidths(), "peak": peaks}


def floors(shape: Shape, states: tuple[int, ...], per_second: float) -> Row:
    """``bytes`` and ``floor_us`` of a shape at a bandwidth, by the names that the module gives.

    The final states (`states`: their shape) are always written by the forward pass, float32.
    """
    sizes = {"dv": shape.dv, "widths": shape.widths}
    each = compulsory(**sizes, checkpoints=shape.save)  # type: ignore[arg-type]
    moved = {"least": each["backward"] * shape.chunks}
    moved["least_forward"] = each["forward"] * shape.chunks + 4 * math.prod(states)
    if not shape.save:
        own = traffic(**sizes, once=True)  # type: ignore[arg-type]
        moved |= {name: size * shape.chunks for name, size in own.items()}
        moved["backward"] = sum(own.values()) * shape.chunks
    return {"bytes": moved, "floor_us": {name: 1e6 * size / per_second for name, size in moved.items()}}


def bandwidth() -> float:
    """Bytes a second, read and written, of the fastest way to copy."""
    return max(bandwidths().values())


@functools.cache
def bandwidths() -> dict[str, float]:
    """Bytes a second of several ways to copy: the driver's, an elementwise kernel on words of 4 and 8 bytes.

    Of five samples the fastest; the buffers are ten times as large as any L2 cache.
    """
    source = torch.ones(COPIED // 8, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    wide = (source.view(torch.int64), target.view(torch.int64))
    ways: dict[str, Callable[[], Any]] = {
        "copy": lambda: target.copy_(source),
        "kernel, 4 bytes": lambda: torch.neg(source, out=target),
        "kernel, 8 bytes": lambda: torch.neg(wide[0], out=wide[1]),
    }
    return {name: 1e6 * COPIED / min(us) for name, us in timing.measured(ways, 5).items()}


# --- what is run ------------------------------------------------------------------------------


def tasks() -> Iterator[tuple[Row, Callable[[], Row]]]:
    """(what it is about, how the rest is found)."""
    for shape in shapes():
        yield {"kind": "ours", **asdict(shape)}, functools.partial(ours, shape)
