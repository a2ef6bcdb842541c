"""Which backend runs a call, and why: one rule, visible through `explain`, never a silent fallback.

=============  ===========================================  ==========================================
backend        what                                         where
=============  ===========================================  ==========================================
cute_sm100     tcgen05 / TMEM kernels                       compute capability 10.0
cute_sm90      wgmma / TMA kernels                          compute capability 9.0
torch          chunkwise, in float32 or float64             anywhere
=============  ===========================================  ==========================================

A backend that is asked for by name runs or raises; ``cute`` asks for the native kernels of whatever GPU it
is. ``auto`` takes the first backend that does not refuse; if a GPU has native kernels but they refuse the
arguments, ``auto`` warns with the reason before it takes torch. Kernels that have never run on a GPU of their
kind (`UNPROVEN`) are taken by ``auto`` only for kinds of calls that ``python -m lethe.kernels.gdn.prove`` has
found right on this GPU; asked for by name they run.
A backend is a module of this package with ``forward(arguments, save)`` and ``backward(arguments, do, dfinal,
saved)`` as in `torch_path`; one that is not installed is refused with that reason. A native one also has
``lacks(io, dk, dv, gate, erase, write, packed)``: why it cannot run such calls on any machine, or here.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

import torch

from lethe.kernels.gdn.architecture import SM90, SM100
from lethe.kernels.gdn.checks import Arguments

CAPABILITY = {"cute_sm100": SM100.capability, "cute_sm90": SM90.capability}
"""Native backend -> compute capability; sm_100a and sm_90a code runs on exactly that one."""

UNPROVEN = frozenset({"cute_sm100"})
"""Backends whose kernels were executed in `lethe.ptx` alone when this was released."""

BACKENDS = (*CAPABILITY, "torch")
MODES = ("recompute", "save")
_MODULE = {"torch": "torch_path", **{name: name for name in CAPABILITY}}
INSTALLED = frozenset(b for b, m in _MODULE.items() if find_spec(f"{__package__}.{m}") is not None)


@dataclass(frozen=True)
class Choice:
    """The backend of a call, and what spoke against the others."""

    backend: str
    asked: str
    refusals: dict[str, str]
    """Backend -> the sentence why it cannot run this call."""

    def __str__(self) -> str:
        because = "it was asked for" if self.asked == self.backend else "it is the first that can"
        return "\n".join(
            [f"{self.backend}: {because}", *(f"not {name}: {why}" for name, why in self.refusals.items())]
        )


def _capability(index: int | None) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def _lacks(backend: str, io: str, dk: int, dv: int, gate: str, erase: str, write: str, packed: bool) -> str:
    found: str = module(backend).lacks(io, dk, dv, gate, erase, write, packed)
    return found


def _proven(
    backend: str,
    index: int | None,
    io: str,
    dk: int,
    dv: int,
    gate: str,
    erase: str,
    write: str,
    packed: bool,
) -> bool:
    from lethe.kernels.gdn import prove
    from lethe.kernels.gdn.native import Kind

    path = prove.file(prove.architecture_of(backend))
    found = prove.proven(backend, torch.cuda.get_device_name(index), path)
    return Kind(io, dk, dv, gate, erase, write, packed) in found


def _how(gate: torch.Tensor | None) -> str:
    """How a gate comes."""
    return "none" if gate is None else "head" if gate.shape[3] == 1 else "channel"


def refusal(backend: str, a: Arguments) -> str:
    """Why `backend` cannot run this call, or an empty string."""
    if backend == "torch":
        return ""
    if a.q.device.type != "cuda":
        return f"q is on {a.q.device}, the kernels need a CUDA device"
    found, needed = _capability(a.q.device.index), CAPABILITY[backend]
    if found != needed:
        return "this GPU has compute capability {}.{}, the kernels need {}.{}".format(*found, *needed)
    if backend not in INSTALLED:
        return f"this build has no {_MODULE[backend]} module"
    if a.q.dtype not in (torch.bfloat16, torch.float16):
        return f"q is {a.q.dtype}, the kernels take bfloat16 or float16"
    return _lacks(backend, *_kind(a))


def _kind(a: Arguments) -> tuple[str, int, int, str, str, str, bool]:
    """The fields of `native.Kind`; sizes as plain numbers also where a compiler traces with symbols."""
    io, packed = str(a.q.dtype).removeprefix("torch."), a.cu_seqlens is not None
    return io, int(a.q.shape[3]), int(a.v.shape[3]), _how(a.g), _how(a.b), _how(a.w), packed


def _doubt(backend: str, a: Arguments) -> str:
    """Why ``auto`` leaves a backend alone that could run this call, or an empty string."""
    if backend not in UNPROVEN or _proven(backend, a.q.device.index, *_kind(a)):
        return ""
    return (
        "its kernels have not been shown to be right on this GPU for such calls; run "
        f"'python -m lethe.kernels.gdn.prove', or ask for backend={backend!r}"
    )


def choose(a: Arguments, backend: str) -> Choice:
    """Raises ValueError for an unknown backend, or for one that was asked for and refuses."""
    candidates = {"auto": BACKENDS, "cute": tuple(CAPABILITY)}.get(backend, (backend,))
    if candidates[0] not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose auto, cute, {', '.join(BACKENDS)}")
    refusals = {name: why for name in BACKENDS if (why := refusal(name, a))}
    if backend == "auto":
        refusals |= {name: why for name in BACKENDS if name not in refusals and (why := _doubt(name, a))}
    able = [name for name in candidates if name not in refusals]
    if not able:
        why = "; ".join(dict.fromkeys(refusals[name] for name in candidates))
        raise ValueError(f"backend={backend!r} cannot run this call: {why}")
    return Choice(able[0], backend, refusals)


def settled(a: Arguments, backend: str) -> str:
    """A backend that has a module: `backend`, or the one that it chooses. That depends on metadata alone, so
    the backward pass settles on the one of the forward pass."""
    return backend if backend in _MODULE else choose(a, backend).backend


def warn_if_slow(choice: Choice, a: Arguments) -> None:
    """Warn when ``auto`` leaves the kernels of this very GPU unused, at the line that called the family:
    three frames up."""
    if choice.asked != "auto" or choice.backend != "torch" or a.q.device.type != "cuda":
        return
    for name, needed in CAPABILITY.items():
        if name in INSTALLED and _capability(a.q.device.index) == needed:
            warnings.warn(f"gated_delta_rule runs in torch: {choice.refusals[name]}", stacklevel=4)


def module(backend: str) -> ModuleType:
    """The module that runs it."""
    return importlib.import_module(f"{__package__}.{_MODULE[backend]}")
