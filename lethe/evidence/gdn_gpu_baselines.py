"""Other people's kernels on the inputs of `gdn_gpu_speed`, beside ours: flash-linear-attention and cuDNN.

`tasks` gives, for `gdn_gpu`, a line for each row, and every row is found by a process of its own, because a
capture that fails spoils the one that it happens in. Ours is timed in the same process: the forward pass, the
backward pass where the other side can be asked for it alone, and both together.

* fla (``fla.ops``) is called through autograd: forward, and forward with backward. Its kernels tune
  themselves on first use, alone on the device, and Triton keeps what they find
  (``TRITON_CACHE_AUTOTUNING``). Nearly all of that time is compiling, which `warm` does beforehand, in
  processes beside each other, without timing anything.
* cuDNN's frontend has KDA for sm_90: its two launches are called directly, bfloat16, d_k = d_v = 128.

Where the other side cannot be imported the row is ``skipped``, with the reason.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

import torch

from lethe.evidence.gdn_gpu_checks import Call
from lethe.evidence.gdn_gpu_speed import REPEATS, Shape
from lethe.kernels import timing
from lethe.kernels.gdn import cute_sm90

FLA = {"gdn2": ("gdn2", "chunk_gdn2"), "kda": ("kda", "chunk_kda"), "gla": ("gla", "chunk_gla")} | {
    "gdn": ("gated_delta_rule", "chunk_gated_delta_rule")
}
"""Member -> the module under ``fla.ops`` and the function that is the same operator."""

BOTH = "forward+backward"
Row = dict[str, Any]
Steps = dict[str, Callable[[], Any]]


def mine(c: Call) -> Steps:
    """Our passes on a call."""

    def both() -> Any:
        cute_sm90.forward(c.a, False)
        return cute_sm90.backward(c.a, c.do, None)

    return {
        "forward": lambda: cute_sm90.forward(c.a, False),
        "backward": lambda: cute_sm90.backward(c.a, c.do, None),
        BOTH: both,
    }


def beside(c: Call, theirs: Steps, agrees: dict[str, float]) -> Row:
    """Times of ours and of theirs by pass, and how far the results are apart."""
    own = mine(c)
    us = timing.measured({name: own[name] for name in theirs}, REPEATS)
    row: Row = {"us": us, "agrees": agrees}
    for name, step in theirs.items():
        samples, clock = timing.alone(step, REPEATS)
        middle = [timing.summary(x)["median"] for x in (samples, us[name])]
        row[name] = {"their_us": samples, "clock": clock, "over_ours": middle[0] / middle[1]}
    return row


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference over our largest value."""
    theirs = theirs.reshape(ours.shape).float()
    return float((ours.float() - theirs).abs().max() / ours.float().abs().max())


# --- flash-linear-attention -------------------------------------------------------------------


def fla_shapes() -> Iterator[Shape]:
    """What both are timed on, the most telling first."""
    yield from (Shape("gdn2"), Shape("kda"), Shape("gla"), Shape(dv=64))
    yield from (Shape(length=8192), Shape(length=512), Shape("gdn"))
    for length in (4096, 16384, 1024):
        yield Shape(length=length)
    yield Shape("kda", dv=64)
    for batch, heads in ((1, 4), (2, 8), (1, 8), (2, 4)):
        yield Shape(batch=batch, heads=heads)
    for member in ("kda", "gla"):
        for length in (512, 8192):
            yield Shape(member, length=length)


def _fla(c: Call, member: str) -> tuple[Steps, Callable[[], Any]]:
    """fla's forward pass without and both passes with autograd; and the latter with its o."""
    module, name = FLA[member]
    function = getattr(importlib.import_module(f"fla.ops.{module}"), name)
    inputs = {n: t for n, t in c.a.tensors().items() if n not in ("initial_state", "cu_seqlens")}
    if member in ("kda", "gdn"):
        inputs["beta"] = inputs.pop("b")[..., 0]
        del inputs["w"]
    if member == "gdn":
        inputs["g"] = inputs["g"][..., 0]
    inputs = {n: t.detach().clone().requires_grad_() for n, t in inputs.items()}

    def train() -> Any:
        o = function(**inputs, scale=c.a.scale)[0]
        return o.detach(), *torch.autograd.grad(o, list(inputs.values()), c.do)

    def infer() -> Any:
        with torch.no_grad():
            return function(**inputs, scale=c.a.scale)[0]

    return {"forward": infer, BOTH: train}, train


def fla(shape: Shape) -> Row:
    """fla beside ours."""
    c = shape.call()
    try:
        steps, train = _fla(c, shape.member)
    except ImportError as error:
        return {"skipped": f"fla cannot be imported: {error}"}
    o, dq = train()[:2]
    agrees = {
        "o": apart(cute_sm90.forward(c.a, False)[0], o),
        "dq": apart(cute_sm90.backward(c.a, c.do, None)["q"], dq),
    }
    return {**beside(c, steps, agrees), "version": metadata.version("fla-core")}


WARMED = {("gdn2", 128): 4, ("kda", 128): 4, ("gla", 128): 2, ("gdn2", 64): 3, ("kda", 64): 3}
"""(Member, d_v) -> processes that compile its configurations beside each other: one a core of sixteen."""


@contextmanager
def untimed(shard: int, shards: int) -> Iterator[None]:
    """Inside, an autotuner compiles and launches each configuration of a shard (counted from 0) once, takes
    the first that runs, and keeps no result."""
    from triton.runtime.autotuner import Autotuner

    bench, kept = Autotuner._bench, Autotuner.check_disk_cache

    def once(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        among = min(shards, len(tuner.configs))
        if tuner.configs.index(config) % among != shard % among:
            return 3 * [float("inf")]
        tuner.__dict__["do_bench"] = lambda call, quantiles=None: (call(), 3 * [1.0])[1]
        found: list[float] = bench(tuner, *args, config=config, **meta)
        return found

    def afresh(tuner: Any, key: Any, configs: Any, find: Callable[[], Any]) -> bool:
        find()
        return False

    Autotuner._bench, Autotuner.check_disk_cache = once, afresh
    try:
        yield
    finally:
        Autotuner._bench, Autotuner.check_disk_cache = bench, kept


def warm(member: str, dv: int, shard: int, shards: int) -> None:
    """Let fla compile a share of its configurations for a member, on a short sequence: what it compiles and
    tunes by does not contain the length."""
    c = replace(Shape(member, dv=dv), length=512).call()
    with untimed(shard, shards):
        for step in _fla(c, member)[0].values():
            step()
    torch.cuda.synchronize()


# --- cuDNN's frontend -------------------------------------------------------------------------


def cudnn(shape: Shape) -> Row:
    """cuDNN's KDA for sm_90 beside ours: forward and backward, its launches called directly."""
    try:
        hopper = "cudnn.linear_attention.hopper"
        ahead, back = (importlib.import_module(f"{hopper}.{n}") for n in ("cuda_host", "cuda_bwd_host"))
    except ImportError as error:
        return {"skipped": f"cuDNN's frontend with KDA for sm_90 cannot be imported: {error}"}
    c, (batch, heads) = shape.call(), (shape.batch, shape.heads)
    tokens, device = batch * shape.length, c.a.q.device

    def flat(t: torch.Tensor | None) -> torch.Tensor:
        assert t is not None
        return t.reshape(tokens, *t.shape[2:]).contiguous()

    x = {"q": flat(c.a.q), "k": flat(c.a.k), "v": flat(c.a.v), "g": flat(c.a.g)}
    x["beta"], do = flat(c.a.b)[..., 0].float().contiguous(), flat(c.do)
    cuts = torch.arange(0, tokens + 1, shape.length, dtype=torch.int32, device=device)
    start = torch.zeros(batch, heads, shape.dv, 128, device=device)
    end, dend, dstart = torch.empty_like(start), torch.zeros_like(start), torch.empty_like(start)
    o, made = torch.empty_like(x["v"]), {n: torch.empty_like(t) for n, t in x.items()}
    size = back.workspace_bytes(tokens, heads, batch)
    space, index = torch.empty(size, dtype=torch.uint8, device=device), device.index or 0
    at = {n: t.data_ptr() for n, t in x.items()}

    def forward() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        ahead.launch(
            index, stream, *at.values(), cuts.data_ptr(), start.data_ptr(), o.data_ptr(), end.data_ptr(),
            tokens, batch, heads,
        )  # fmt: skip

    def backward() -> None:
        back.launch(
            device=index, stream=torch.cuda.current_stream().cuda_stream, workspace=space.data_ptr(),
            dO=do.data_ptr(), **at, cu_seqlens=cuts.data_ptr(), initial_state=start.data_ptr(),
            d_final_state=dend.data_ptr(), **{f"d{n}": t.data_ptr() for n, t in made.items()},
            d_initial_state=dstart.data_ptr(), total_tokens=tokens, n_heads=heads, n_seqs=batch,
        )  # fmt: skip

    forward()
    backward()
    torch.cuda.synchronize()
    agrees = {
        "o": apart(cute_sm90.forward(c.a, False)[0], o),
        "dq": apart(cute_sm90.backward(c.a, c.do, None)["q"], made["q"]),
    }
    found = beside(c, {"forward": forward, "backward": backward}, agrees)
    return {**found, "version": metadata.version("nvidia-cudnn-frontend")}


# --- what is run ------------------------------------------------------------------------------


def tasks() -> Iterator[tuple[Row, Callable[[], Row]]]:
    """(what it is about, how the rest is found)."""
    kda = [Shape("kda", length=length) for length in (2048, 512, 8192)]
    first = list(fla_shapes())
    plan = [("fla", shape, fla) for shape in first[:3]] + [("cudnn", shape, cudnn) for shape in kda]
    plan += [("fla", shape, fla) for shape in first[3:]]
    for kind, shape, work in plan:
        yield {"kind": kind, **asdict(shape)}, functools.partial(work, shape)
