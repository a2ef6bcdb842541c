"""The native kernels as one operator: a backend for each architecture, the same plans for all.

`Backend.forward` launches ``prep`` (without dO) and ``forward``; `Backend.backward` launches ``prep``,
``scan`` in both directions and ``out``. Nothing of torch runs between them. A call is first a *plan*: its
launches in order (`Step`), with every workspace and output allocated, by ``new`` where one is given. A plan
can be launched here, timed step by step, or executed in the emulator.

* The variant follows from the dtype of q, d_v, whether sequences are packed, and how g, b and w come: absent,
  one number a head, one a channel (`declare.KINDS`: the members of the family).
* b and w may be float32; the kernels read them in the dtype of q, so they are rounded to it once, and their
  gradients are given in their own dtype.
* ``cu_seqlens`` is read by the kernels as it is, int32: that it rises from 0 to L is not checked, because
  nothing here waits for the device.
* Workspaces are by slot (`chunks`): their sizes depend on shapes alone, so calls can be captured in a graph.
* With ``save`` the forward pass keeps the states that enter the chunks and their powers, and the scan of the
  backward pass runs in reverse only.

Neither this module nor what it imports needs the compiler; libraries come as `launch` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from lethe.kernels.gdn import launch
from lethe.kernels.gdn.architecture import Architecture
from lethe.kernels.gdn.checks import Arguments
from lethe.kernels.gdn.chunks import CHUNK, slot_count
from lethe.kernels.gdn.declare import KINDS, Variant

DK, DV = 128, (64, 128)
"""Sizes for which all four kernels exist."""

COLUMNS = 64
"""Columns of the state (d_v) that one warp group of `scan` keeps."""

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]
Named = dict[str, Any]
Saved = tuple[Tensor, Tensor, Tensor]
"""Powers int32 [slots, H, 2], nothing, S float16 [slots, H, dv, dk]; empty tensors if nothing is saved."""


@dataclass(frozen=True)
class Kind:
    """What decides which libraries run a call; ``gate``, ``erase``, ``write``: how g, b and w come."""

    io: str
    dk: int
    dv: int
    gate: str
    erase: str
    write: str
    packed: bool

    def prep(self, adjoint: bool) -> Named:
        """Options of kernel `prep`."""
        return {**asdict(self), "adjoint": adjoint}

    def scan(self, groups: int, direction: str = "both") -> Named:
        """Options of kernel `scan`."""
        return {**self._states(), "groups": groups, "direction": direction}

    def forward(self, saves: bool) -> Named:
        """Options of kernel `forward`."""
        return {"io": self.io, **self._states(), "groups": 1, "saves": saves}

    def out(self) -> Named:
        """Options of kernel `out`."""
        return asdict(self)

    def _states(self) -> Named:
        return {"dk": self.dk, "dv": self.dv, "erase": self.erase != "none", "packed": self.packed}


@dataclass(frozen=True)
class Step:
    """One launch: a variant and its arguments by name."""

    architecture: Architecture
    stage: str
    options: Named
    arguments: Named

    def launch(self) -> None:
        """On torch's current stream."""
        launch.kernel(self.architecture, self.stage, **self.options)(**self.arguments)


def kind_of(a: Arguments) -> Kind:
    """The kind of a call."""
    io = str(a.q.dtype).removeprefix("torch.")
    gate, erase, write = (
        "none" if t is None else "head" if t.shape[3] == 1 else "channel" for t in (a.g, a.b, a.w)
    )
    return Kind(io, a.q.shape[3], a.v.shape[3], gate, erase, write, packed=a.cu_seqlens is not None)


def libraries(kind: Kind) -> list[Variant]:
    """Every variant that calls of this kind may need in recompute mode, the backward pass first."""
    counts = (1, 2) if kind.dv > COLUMNS else (1,)
    return [
        Variant("prep", kind.prep(adjoint=True)),
        *(Variant("scan", kind.scan(groups)) for groups in counts),
        Variant("out", kind.out()),
        Variant("prep", kind.prep(adjoint=False)),
        Variant("forward", kind.forward(saves=False)),
    ]


def libraries_to_save(kind: Kind) -> list[Variant]:
    """What mode ``save`` needs in place of some of them."""
    counts = (1, 2) if kind.dv > COLUMNS else (1,)
    reverse = [Variant("scan", kind.scan(groups, "reverse")) for groups in counts]
    return [Variant("forward", kind.forward(saves=True)), *reverse]


def groups_for(kind: Kind, rows: int, directions: int, processors: int) -> int:
    """Warp groups of a CTA of `scan`: 64 columns each in a CTA of its own while all of them run at once.

    Two groups share the keys that they read, but leave half of the processors without work when `rows`
    (sequences times heads) are few.
    """
    parts = kind.dv // COLUMNS
    return 1 if parts == 1 or rows * parts * directions <= processors else 2


@dataclass(frozen=True)
class Backend:
    """The operator on one architecture; a module of a backend offers these methods as its functions."""

    architecture: Architecture
    ready: set[Kind] = field(default_factory=set, compare=False)
    """Kinds whose libraries were found."""

    def lacks(self, *kind: Any) -> str:
        """Why calls of a kind (the fields of `Kind`) cannot run here, or "". Compiles nothing."""
        k = Kind(*kind)
        if k in self.ready:
            return ""
        if k.dk != DK:
            return f"d_k is {k.dk}, the kernels are compiled for {DK}"
        if k.dv not in DV:
            return f"d_v is {k.dv}, the kernels are compiled for {' and '.join(map(str, DV))}"
        come = (k.gate, k.erase, k.write)
        if come not in KINDS:
            have = "; ".join(", ".join(known) for known in KINDS)
            return f"g, beta and w come as {', '.join(come)}, the kernels are compiled for {have}"
        for variant in libraries(k):
            if why := launch.unavailable(self.architecture, variant):
                return why
        self.ready.add(k)
        return ""

    def forward(self, a: Arguments, save: bool, new: Allocate | None = None) -> tuple[Tensor, Tensor, Saved]:
        """o [B, L, H, dv], the final states [N, H, dk, dv], and what `backward` may use again if `save`."""
        steps, made = self.plan_forward(a, save, new or _on(a))
        _run(steps)
        saved = (made["powers"], None, made["S"]) if save else (None, None, None)
        powers, nothing, S = (a.q.new_empty(0) if t is None else t for t in saved)
        return made["o"], made["final"], (powers, nothing, S)

    def backward(
        self,
        a: Arguments,
        do: Tensor,
        dfinal: Tensor | None,
        saved: Saved | None = None,
        new: Allocate | None = None,
    ) -> dict[str, Tensor]:
        """Gradients by name of the tensors of `a`; no ``dfinal`` is the same as zeros."""
        count = torch.cuda.get_device_properties(a.q.device).multi_processor_count
        steps, made = self.plan_backward(a, do, dfinal, saved, new or _on(a), count)
        _run(steps)
        tensors = a.tensors()
        return {name: made[name].to(tensors[name].dtype) for name in tensors if name in made}

    def plan_forward(self, a: Arguments, save: bool, new: Allocate) -> tuple[list[Step], Named]:
        """The launches of the forward pass, and o, final, powers and S (None unless `save`)."""
        kind, inputs = kind_of(a), _inputs(a)
        local = _local(a, kind, new)
        local["Qh"], local["P"] = new((*_slots(a), CHUNK, kind.dk), torch.float16), None
        prep = self._step("prep", kind.prep(adjoint=False), {**inputs, "do": None, **local, "scale": a.scale})
        made = {
            "S": new((*_slots(a), kind.dv, kind.dk), torch.float16) if save else None,
            "powers": new((*_slots(a), 2), torch.int32),
            "final": new(a.state_shape, torch.float32),
            "o": new(tuple(a.v.shape), a.v.dtype),
        }
        arguments = {name: local[name] for name in ("Kt", "W", "U", "Qh", "A", "decay", "maxima", "a")}
        arguments |= {"S0": _aligned(a.initial_state), "cu_seqlens": inputs["cu_seqlens"], **made}
        arguments |= {"scale": a.scale, "sequences": a.state_shape[0]}
        return [prep, self._step("forward", kind.forward(saves=save), arguments)], made

    def plan_backward(
        self,
        a: Arguments,
        do: Tensor,
        dfinal: Tensor | None,
        saved: Saved | None,
        new: Allocate,
        processors: int,
    ) -> tuple[list[Step], Named]:
        """The launches of the backward pass, and the gradients by name."""
        kind, inputs = kind_of(a), _inputs(a)
        inputs["do"] = _aligned(do)
        chunk, states = _slots(a), (kind.dv, kind.dk)
        local = _local(a, kind, new)
        local |= {"P": new((*chunk, *states), torch.float16), "Qh": None}
        prep = self._step("prep", kind.prep(adjoint=True), {**inputs, **local, "scale": a.scale})

        kept = saved is not None and saved[2].numel() > 0
        S = saved[2] if saved is not None and kept else new((*chunk, *states), torch.float16)
        D, powers = new((*chunk, *states), torch.float16), new((*chunk, 2), torch.int32)
        if saved is not None and kept:
            powers.copy_(saved[0])
        sequences, heads = a.state_shape[:2]
        groups = groups_for(kind, sequences * heads, 1 if kept else 2, processors)
        erases = kind.erase != "none"
        arguments = {name: local[name] for name in ("Kt", "W", "U", "P", "decay", "maxima")}
        if kept:
            arguments |= {"U": None, "Kt": local["Kt"] if erases else None}
        gradients = {"initial_state": None if a.initial_state is None else new(a.state_shape, torch.float32)}
        arguments |= {
            "S0": None if kept else _aligned(a.initial_state),
            "dfinal": _aligned(dfinal),
            "cu_seqlens": inputs["cu_seqlens"],
            "S": None if kept else S,
            "D": D,
            "powers": powers,
            "final": None,
            "dS0": gradients["initial_state"],
            "sequences": sequences,
        }
        scan = self._step("scan", kind.scan(groups, "reverse" if kept else "both"), arguments)

        for name in ("q", "k", "v", "g", "b", "w"):
            t = inputs[name]
            gradients[name] = None if t is None else new(tuple(t.shape), t.dtype)
        arguments = {**inputs, "S": S, "D": D, "powers": powers}
        arguments |= {name: local[name] for name in ("A", "T", "a")}
        arguments |= {f"d{name}": gradients[name] for name in ("q", "k", "v", "g", "b", "w")}
        arguments |= {"scale": a.scale, "programs": min(processors, chunk[0] * heads)}
        return [prep, scan, self._step("out", kind.out(), arguments)], {
            n: t for n, t in gradients.items() if t is not None
        }

    def _step(self, stage: str, options: Named, arguments: Named) -> Step:
        return Step(self.architecture, stage, options, arguments)


def _run(steps: Iterable[Step]) -> None:
    for step in steps:
        step.launch()


def _on(a: Arguments) -> Allocate:
    return lambda shape, dtype: torch.empty(shape, dtype=dtype, device=a.q.device)


def _slots(a: Arguments) -> tuple[int, int]:
    """First axes of every workspace."""
    sequences = None if a.cu_seqlens is None else a.cu_seqlens.shape[0] - 1
    return slot_count(a.q.shape[0], a.q.shape[1], sequences), a.q.shape[2]


def _inputs(a: Arguments) -> Named:
    """The inputs as the kernels read them."""
    gates = {name: None if (t := getattr(a, name)) is None else t.to(a.q.dtype) for name in "bw"}
    cuts = None if a.cu_seqlens is None else a.cu_seqlens.to(torch.int32)
    named = {"q": a.q, "k": a.k, "v": a.v, "g": a.g, **gates, "cu_seqlens": cuts}
    return {name: _aligned(t) for name, t in named.items()}


def _aligned(t: Tensor | None) -> Tensor | None:
    """Dense, at an address that the loader takes."""
    if t is None:
        return None
    t = t.contiguous()
    return t.clone() if t.data_ptr() % launch.ALIGNMENT else t


def _local(a: Arguments, kind: Kind, new: Allocate) -> Named:
    """What `prep` writes for either pass."""
    chunk, half, full = _slots(a), torch.float16, torch.float32
    erases = kind.erase != "none"
    return {
        "Kt": new((*chunk, CHUNK, kind.dk), half),
        "W": new((*chunk, CHUNK, kind.dk), half) if erases else None,
        "U": new((*chunk, CHUNK, kind.dv), half),
        "A": new((*chunk, CHUNK, CHUNK), half),
        "T": new((*chunk, CHUNK, CHUNK), half) if erases else None,
        "a": new((*chunk, CHUNK), full),
        "decay": new((*chunk, kind.dk), full),
        "maxima": new((*chunk, 4), full),
    }
