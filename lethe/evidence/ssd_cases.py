"""What the SSD engine is tried on: each case is data, and says why it is there by its name.

A case fixes shapes, options, and how rates, steps and operands are drawn; `draw` makes its tensors. Operands
are drawn in the io dtype, or rounded to it, so that the oracle sees exactly what the engine sees. ``FULL``
are realistic sizes for a GPU, ``SMALL`` the same stresses at sizes that an interpreter runs.

The stresses are those in which engines of this kind go wrong: odd numbers of heads in a group, terms that
stand alone (initial state, gate, skip), rates that forget at once, never, or grow, steps at the branches of
softplus and at the clamp's edges, ragged ends, single tokens, cut and empty sequences, views as operands.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.kernels.ssd.cases import Case as Described

WIDTH = 64
"""Channels of a head, P: the engine has this one."""

IO = {"bf16": "bfloat16", "fp16": "float16"}
OPEN = (0.0, math.inf)


@dataclass(frozen=True)
class Case:
    """One call of the engine, forward and backward."""

    name: str
    batch: int = 2
    length: int = 321
    heads: int = 6
    groups: int = 2
    states: int = 64
    chunk: int = 64
    io: str = "bf16"
    rate: str = "usual"
    """A key of `RATES`."""
    step: str = "softplus"
    """A key of `STEPS`."""
    limit: tuple[float, float] = OPEN
    bias: bool = False
    D: str = ""
    """``"head"``, ``"channel"`` or none."""
    gate: bool = False
    initial: bool = False
    final: bool = False
    """Final states are returned, and an upstream gradient comes for them."""
    cuts: tuple[int, ...] | None = None
    silent: tuple[str, ...] = ()
    """Operands that are zero."""
    packed: bool = False
    """x, B and C are views of one projection, as in the layer, and dy is an expanded scalar."""
    wanted: tuple[str, ...] = ()
    """Names that require a gradient; empty means all."""
    checkpoint: str = "float32"
    reuse: bool = True

    @property
    def softplus(self) -> bool:
        return self.step in SOFTPLUS

    @property
    def id(self) -> str:
        """A name that a person can read: ``ragged-B2-L321-H6-G2-N64-c64-bf16``."""
        c = self
        return f"{c.name}-B{c.batch}-L{c.length}-H{c.heads}-G{c.groups}-N{c.states}-c{c.chunk}-{c.io}"

    def facts(self) -> dict[str, Any]:
        """The case as JSON; an open limit is null."""
        found = {k: v for k, v in vars(self).items() if v != getattr(_DEFAULT, k) or k in _SIZES}
        if "limit" in found:
            found["limit"] = [None if math.isinf(v) else v for v in self.limit]
        return found


_DEFAULT = Case("")
_SIZES = ("name", "batch", "length", "heads", "groups", "states", "chunk", "io")


@dataclass
class Call:
    """What a case comes to: operands by argument name, options, and the upstream gradients."""

    case: Case
    tensors: dict[str, Tensor]
    """Floating-point operands, ``x`` first."""
    options: dict[str, Any]
    """Options that the oracle knows too."""
    engine: dict[str, Any]
    """Options that only the engine knows."""
    dy: Tensor
    dfinal: Tensor | None = field(default=None)


# --- rates and steps ------------------------------------------------------------------------------


def _between(low: float, high: float) -> Callable[..., Tensor]:
    """Uniform in [low, high), whichever is larger."""

    def draw(*shape: int) -> Tensor:
        import torch

        return low + (high - low) * torch.rand(*shape)

    return draw


def _among(*values: float) -> Callable[..., Tensor]:
    """One of these, each as likely."""

    def draw(*shape: int) -> Tensor:
        import torch

        return torch.tensor(values)[torch.randint(len(values), shape)]

    return draw


def _normal(shift: float) -> Callable[..., Tensor]:
    def draw(*shape: int) -> Tensor:
        import torch

        return torch.randn(*shape) + shift

    return draw


RATES: dict[str, Callable[..., Tensor]] = {
    "usual": _between(-1.0, -0.02),
    "long": _between(-1e-2, -1e-3),
    "strong": _between(-16.0, -8.0),
    "vanishing": _between(-4000.0, -2000.0),
    "zero": _among(0.0),
    "growing": _between(1e-3, 4e-3),
    "slow": _between(-1e-2, -5e-3),
}
"""A by name. A step of 0.3 makes the decay of a token e^-4 when strong; when vanishing, e^-1000 underflows in
float64 as well, so that the gradient of A is exactly zero."""

STEPS: dict[str, Callable[..., Tensor]] = {
    "softplus": _normal(-1.0),
    "direct": _between(0.05, 0.6),
    "large": _between(0.5, 1.0),
    "signed": _normal(0.0),
    "upper branch": _among(19.0, 19.5, 19.875, 20.0, 20.125, 20.5, 21.0),
    "beyond exp": _between(80.0, 120.0),
    "lower branch": _among(-21.0, -20.5, -20.125, -20.0, -19.875, -19.5, -19.0),
    "negative tail": _between(-30.0, -18.0),
    "clamp edges": _among(-0.5, 0.0625, 0.125, 0.25, 0.5, 1.0, 1.5),
}
"""dt by name. In float32, ``log(1 + e^x)`` is zero below -17 and infinite above 88."""

SOFTPLUS = ("softplus", "upper branch", "beyond exp", "lower branch", "negative tail")
EDGES = (0.125, 1.0)
"""Bounds of a clamp that bf16 and fp16 hold exactly, so that some steps lie on them."""


# --- the cases ------------------------------------------------------------------------------------

ALL: dict[str, Any] = {"D": "channel", "gate": True, "bias": True, "initial": True, "final": True}
"""Every option at once."""

FULL_CUTS = (0, 0, 130, 130, 131, 195, 321, 321)
"""Empty sequences first, amid and last; one token; exactly one chunk; a ragged rest."""

STRESSES: tuple[Case, ...] = (
    Case("plain"),
    Case("everything", **ALL),
    Case("odd heads per group", heads=15, groups=3, **ALL),
    Case("a group for each head", heads=4, groups=4, D="head"),
    Case("initial state only", silent=("x",), **ALL),
    Case("initial state alone as an option", initial=True),
    Case("final state without initial", final=True),
    Case("gate only", gate=True),
    Case("recurrence silent", silent=("C",), D="head", gate=True),
    Case("skip by head", D="head"),
    Case("skip by channel", D="channel"),
    Case("strong rate", rate="strong", step="direct", initial=True, final=True),
    Case("vanishing rate", rate="vanishing", step="large", D="head", initial=True),
    Case("zero rate", rate="zero", initial=True, final=True),
    Case("growing rate", rate="growing", initial=True, final=True),
    Case("long memory", rate="long", **ALL),
    Case("softplus upper branch", rate="slow", step="upper branch"),
    Case("softplus beyond exp", rate="slow", step="beyond exp"),
    Case("softplus lower branch", step="lower branch", final=True),
    Case("softplus negative tail", step="negative tail", gate=True),
    Case("negative steps without softplus", step="signed"),
    Case("clamp edges", step="clamp edges", limit=EDGES, initial=True),
    Case("clamp after softplus", limit=(0.2, 0.5), **ALL),
    Case("one token", length=1, **ALL),
    Case("one token more than a chunk", length=65, **ALL),
    Case("whole chunks", length=256, **ALL),
    Case("shorter than a chunk", length=23, chunk=256, **ALL),
    Case("cut", batch=1, cuts=FULL_CUTS, **ALL),
    Case("cut from zero states", batch=1, cuts=FULL_CUTS, rate="long", final=True),
    Case("one sequence as a cut", batch=1, cuts=(0, 321), gate=True),
    Case("views of a projection", packed=True, **ALL),
    Case("gradient of the gate alone", wanted=("z",), **ALL),
    Case("gradient of the rates alone", wanted=("A",), **ALL),
    Case("gradient of the initial state alone", wanted=("initial_states",), **ALL),
)
"""One for each way of going wrong, at chunk 64, N = 64 and bf16."""


def _grid() -> list[Case]:
    """Every option over chunks, states and dtypes; the checkpoints over both precisions, with and without
    reuse."""
    found = []
    for io in IO:
        for states in (64, 128):
            for chunk in (32, 64, 128, 256):
                found.append(Case("grid", length=600, io=io, states=states, chunk=chunk, **ALL))
        for checkpoint in ("float32", "bfloat16"):
            for reuse in (True, False):
                how = f"checkpoints {checkpoint}{' reused' if reuse else ''}"
                found.append(
                    Case(how, length=600, io=io, rate="long", checkpoint=checkpoint, reuse=reuse, **ALL)
                )
    return found


FULL: tuple[Case, ...] = (
    *STRESSES,
    *_grid(),
    Case("fp16 cut", batch=1, cuts=FULL_CUTS, io="fp16", states=128, chunk=128, **ALL),
    Case("many chunks", batch=1, length=2077, heads=8, groups=1, rate="long", **ALL),
    Case("many heads", batch=1, length=300, heads=64, groups=8, states=128, **ALL),
)

SMALL_CUTS = (0, 0, 37, 37, 38, 69, 69)


def shrunk(case: Case) -> Case:
    """The same stress in three chunks of 32, the last ragged, with one batch entry where it was several."""
    heads, groups = (
        (6, 2) if case.name == "odd heads per group" else (2, 2 if case.groups == case.heads else 1)
    )
    length, cuts = min(case.length, 69), case.cuts
    if case.length == 65:
        length = 33
    elif case.length % case.chunk == 0:
        length = 64
    if cuts is not None:
        cuts = SMALL_CUTS if len(cuts) > 2 else (0, length)
    chunk = 64 if case.chunk == 256 else 32
    return replace(case, batch=1, length=length, heads=heads, groups=groups, cuts=cuts, chunk=chunk)


SMALL: tuple[Case, ...] = (
    *(shrunk(case) for case in STRESSES),
    replace(shrunk(Case("two batch entries", **ALL)), batch=2),
    replace(shrunk(Case("fp16 with 128 states", **ALL)), io="fp16", states=128),
    *(
        replace(shrunk(case), io="bf16")
        for case in _grid()
        if case.io == "bf16" and case.name.startswith("checkpoints")
    ),
)


def described(case: Case) -> Described:
    """The case as the engine's graph layer describes it: its shapes and options, without its values."""
    from lethe.kernels.ssd.cases import Case as Description

    return Description(
        case.id, case.batch, case.length, case.heads, case.groups, case.states, WIDTH, case.chunk,
        IO[case.io],
        skip=case.D or "none", gated=case.gate, bias=case.bias, softplus=case.softplus, limits=case.limit,
        initial=case.initial, final=case.final, cuts=case.cuts or (), checkpoint=case.checkpoint,
        reuse=case.reuse,
    )  # fmt: skip


# --- drawing --------------------------------------------------------------------------------------

MEAN = 0.3
"""Of x, B, C, z, states and upstream gradient, whose deviation is 1. Without it the gradients of A and of the
bias are sums of random signs, small by chance in a few heads, and rounding alone may come to 1 % of them."""


def draw(case: Case, device: str = "cpu") -> Call:
    """The tensors of a case on `device`, drawn on the CPU and seeded by its name: alike on every device."""
    import torch

    torch.manual_seed(zlib.crc32(case.id.encode()))
    io = getattr(torch, IO[case.io])
    b, length, h, n = case.batch, case.length, case.heads, case.states

    def normal(*shape: int) -> Tensor:
        return (torch.randn(*shape) + MEAN).to(io)

    tensors = {
        "x": normal(b, length, h, WIDTH), "dt": STEPS[case.step](b, length, h).to(io),
        "A": RATES[case.rate](h), "B": normal(b, length, case.groups, n),
        "C": normal(b, length, case.groups, n),
    }  # fmt: skip
    if case.D:
        tensors["D"] = torch.randn(h, WIDTH) if case.D == "channel" else torch.randn(h)
    if case.gate:
        tensors["z"] = normal(b, length, h, WIDTH)
    if case.bias:
        tensors["dt_bias"] = 0.5 * torch.randn(h)
    count = b if case.cuts is None else len(case.cuts) - 1
    if case.initial:
        tensors["initial_states"] = normal(count, h, WIDTH, n).float()
    for name in case.silent:
        tensors[name] = torch.zeros_like(tensors[name])
    dy = normal(b, length, h, WIDTH)
    tensors = {name: t.to(device) for name, t in tensors.items()}
    if case.packed:
        _pack(tensors)
        dy = torch.ones((), dtype=io).expand_as(dy)
    options: dict[str, Any] = {
        "dt_softplus": case.softplus, "dt_limit": case.limit, "return_final_states": case.final,
    }  # fmt: skip
    if case.cuts is not None:
        options["cu_seqlens"] = torch.tensor(case.cuts, dtype=torch.int32, device=device)
    engine = {
        "chunk_size": case.chunk, "checkpoint_dtype": case.checkpoint, "reuse_checkpoints": case.reuse,
    }  # fmt: skip
    dfinal = torch.randn(count, h, WIDTH, n).to(device) if case.final else None
    return Call(case, tensors, options, engine, dy.to(device), dfinal)


def _pack(tensors: dict[str, Tensor]) -> None:
    """Put x, B and C beside each other in one tensor and take views of it; dt as every other column."""
    import torch

    parts = {name: tensors[name].flatten(2) for name in ("x", "B", "C")}
    views = torch.cat(list(parts.values()), -1).split([p.shape[-1] for p in parts.values()], -1)
    for name, view in zip(parts, views, strict=True):
        tensors[name] = view.unflatten(-1, tensors[name].shape[2:])
    tensors["dt"] = torch.stack((tensors["dt"], torch.full_like(tensors["dt"], math.nan)), -1)[..., 0]
