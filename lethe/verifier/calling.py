"""Candidate-side work: executing source, building, calling with guards, gradients and alias groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from lethe.verifier import poison
from lethe.verifier.channel import span
from lethe.verifier.entry import obstacle, state_of
from lethe.verifier.executors import launch_count as _launch_count
from lethe.verifier.executors import launched_names as _launched_names
from lethe.verifier.executors.accesses import tainting as _tainting
from lethe.verifier.executors.autotune import choices as _choices
from lethe.verifier.executors.autotune import forced as _forced
from lethe.verifier.executors.autotune import ran as _ran
from lethe.verifier.executors.pretend_cuda import is_host as _is_host
from lethe.verifier.structure import StructureError
from lethe.verifier.structure import flatten as _flatten
from lethe.verifier.structure import paths as _paths
from lethe.verifier.structure import unflatten as _unflatten

_clock = perf_counter
_plain, _no_grad, _grad_enabled = torch._C.DisableTorchFunction, torch.no_grad, torch.set_grad_enabled
_empty, _empty_strided, _arange, _randn = torch.empty, torch.empty_strided, torch.arange, torch.randn
_grad, _synchronize, _int64 = torch.autograd.grad, torch.cuda.synchronize, torch.int64
_T, _Parameter, _strided = torch.Tensor, torch.nn.Parameter, torch.strided
_copy, _as_strided, _clone, _to = _T.copy_, _T.as_strided, _T.clone, _T.to
_reshape, _detach, _requires_grad_, _set = _T.reshape, _T.detach, _T.requires_grad_, _T.set_
_data_ptr, _untyped_storage = _T.data_ptr, _T.untyped_storage

STIR_BYTES = (1 << 12, 1 << 16, 1 << 20, 3 << 20)
"""Sizes of the unrelated allocations between calls: below and above the allocators' thresholds."""


def spread_upstream(
    present: list[bool] | None, gradients: list[torch.Tensor]
) -> list[torch.Tensor | None] | None:
    """One gradient or None per output tensor."""
    if present is None:
        return None
    left = iter(gradients)
    return [next(left) if p else None for p in present]


def stir(count: int, device: torch.device) -> None:
    """Allocate, fill and free unrelated memory, so that a later call gets other addresses and contents."""
    kept = []
    for k in range(count):
        t = _empty(STIR_BYTES[k % len(STIR_BYTES)], dtype=torch.uint8, device=device)
        t.fill_(k & 0xFF)
        kept.append(t)


@dataclass
class Outcome:
    """One call, before it is described to the judge."""

    outputs: Any
    tensors: list[torch.Tensor]
    skeleton: Any
    inputs: list[torch.Tensor]
    others: dict[str, torch.Tensor]
    """Parameters and buffers by name."""
    grads: dict[str, torch.Tensor | None]
    overrun: list[str]
    launches: int
    kernels: list[str]
    choices: int
    """See `autotune.choices`."""
    configurations: list[str]
    """See `autotune.ran`."""
    elapsed: float
    devices: list[str] = field(default_factory=list)

    def describe(self, need_inputs: bool) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """The report as JSON, and the tensors that belong to it in order."""
        paths = _paths(self.skeleton) if self.tensors else []
        labelled = [(f"input:{i}", t) for i, t in enumerate(self.inputs)]
        labelled += [(f"param:{n}", t) for n, t in self.others.items()]
        first = len(labelled)
        labelled += list(zip(paths, self.tensors, strict=True))
        groups, aliases = _shared_memory(labelled, first)
        wanted = list(self.tensors)
        if need_inputs:
            wanted += self.inputs
        wanted += [g for g in self.grads.values() if g is not None]
        report = {
            "outputs": self.skeleton,
            "meta": [
                {
                    "device": device,
                    "contiguous": t.is_contiguous(),
                    "requires_grad": t.requires_grad,
                    "storage": groups[first + i],
                    "aliases": aliases[i],
                }
                for i, (t, device) in enumerate(zip(self.tensors, self.devices, strict=True))
            ],
            "after": len(self.inputs) if need_inputs else None,
            "grads": [[n, g is not None] for n, g in self.grads.items()],
            "overrun": [_printable(x) for x in self.overrun],
            "launches": self.launches,
            "kernels": [_printable(k) for k in self.kernels],
            "choices": self.choices,
            "configurations": [_printable(c) for c in self.configurations],
            "elapsed": self.elapsed,
        }
        return report, wanted


@dataclass
class Call:
    """How to call the candidate; `once` does it on inputs that are rebuilt each time."""

    target: Callable[..., Any]
    device: torch.device
    ledger: poison.Ledger
    strides: list[list[int]]
    given: list[torch.Tensor]
    skeleton: Any
    upstream: list[torch.Tensor | None] | None
    guard: bool
    mode: str | None
    taint: bool = False
    """Whether interpreted kernels store marks instead of what they computed (`executors.accesses`)."""
    configuration: int | None = None
    """Which configuration autotuners are to take; None leaves it to the executor."""
    leads: list[int] = field(default_factory=list)
    """At which element of its storage each input begins (`layout.lead`); at the first where none is given."""

    def once(self) -> Outcome:
        """Build the inputs and call."""
        self.ledger.begin()
        leaves: list[torch.Tensor] = []
        with _plain():
            leads = self.leads or [0] * len(self.given)
            inputs = [
                self._input(i, t, s, n)
                for i, (t, s, n) in enumerate(zip(self.given, self.strides, leads, strict=False))
            ]
            if self.upstream is not None:
                inputs = [_with_leaf(t, leaves) for t in inputs]
        return self._outcome(inputs, leaves)

    def again(self, earlier: Outcome, values: list[torch.Tensor]) -> Outcome:
        """Write `values` into the very tensors of an earlier call, and call on them."""
        self.ledger.begin()
        with _plain(), _no_grad():
            for t, value in zip(earlier.inputs, values, strict=True):
                self._fill(t, value, list(t.stride()))
        return self._outcome(earlier.inputs, [])

    def _outcome(self, inputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> Outcome:
        with _plain():
            arguments = _unflatten(inputs, self.skeleton)
        before, names = _launch_count(), set(_launched_names())
        self.ledger.active = self.guard
        _tainting(self.taint)
        begun = _clock()
        _grad_enabled(self.upstream is not None)
        try:
            with _forced(self.configuration):
                outputs = self._call(arguments)
            if self.device.type == "cuda":
                _synchronize()
            elapsed = _clock() - begun
            with _plain():
                tensors, skeleton = _flatten(outputs)
                tensors = [_ordinary(t) for t in tensors]
            own = _parameters(self.target)
            grads = self._gradients(tensors, leaves, own) if self.upstream is not None else {}
            if self.device.type == "cuda":
                _synchronize()
        finally:
            _tainting(False)
            _grad_enabled(True)
            self.ledger.active = False
        launched = list(_launched_names())
        with _plain():
            for path, t in zip(_paths(skeleton) if tensors else [], tensors, strict=True):
                self.ledger.name(_data_ptr(t), path)
            return Outcome(
                outputs=outputs,
                tensors=tensors,
                skeleton=skeleton,
                inputs=inputs,
                others=_state(self.target),
                grads=grads,
                overrun=self.ledger.check() if self.guard else [],
                launches=max(0, _launch_count() - before),
                kernels=[n for n in launched if n not in names] or launched,
                choices=_choices(),
                configurations=_ran(),
                elapsed=elapsed,
                devices=[self._residence(t) for t in tensors],
            )

    def _input(self, i: int, value: torch.Tensor, stride: list[int], lead: int) -> torch.Tensor:
        """A guarded tensor with the values, the stride pattern and the lead that the judge gave."""
        shape = tuple(value.shape)
        t = _empty_strided(shape, stride, dtype=value.dtype, device=self.device)
        if lead:
            long = _empty(lead + span(shape, tuple(stride)), dtype=value.dtype, device=self.device)
            with _no_grad():
                _set(t, _untyped_storage(long), lead, shape, stride)
        if self.guard:
            self.ledger.wrap(t, f"input:{i}", lead=lead)
        with _no_grad():
            self._fill(t, value, stride)
        return t

    def _fill(self, t: torch.Tensor, value: torch.Tensor, stride: list[int]) -> None:
        """Write `value` into `t`, whose elements may share places."""
        shape = tuple(value.shape)
        if span(shape, tuple(stride)) == value.numel() or not _overlaps(shape, stride):
            _copy(t, value)
            return
        place = _arange(0, 1, dtype=_int64, device=self.device).reshape([1] * len(shape))
        for axis, (n, s) in enumerate(zip(shape, stride, strict=True)):
            place = place + (_arange(0, n, dtype=_int64, device=self.device) * s).reshape(
                [n if a == axis else 1 for a in range(len(shape))]
            )
        flat = _as_strided(t, (span(shape, tuple(stride)),), (1,), t.storage_offset())
        flat[place.reshape(-1)] = _to(_clone(value), self.device).reshape(-1)

    def _call(self, arguments: Any) -> Any:
        def call() -> Any:
            return self.target(**arguments) if isinstance(arguments, dict) else self.target(*arguments)

        if self.mode is None or self.device.type != "cuda":
            return call()
        if self.mode == "stream":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                outputs = call()
            torch.cuda.current_stream().wait_stream(side)
            return outputs
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = call()
        graph.replay()
        return outputs

    def _gradients(
        self, outputs: list[torch.Tensor], leaves: list[torch.Tensor], parameters: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor | None]:
        """Gradients of <upstream, outputs> for floating inputs and parameters; None where none arrives."""
        assert self.upstream is not None
        wanted = {f"input:{i}": t for i, t in enumerate(leaves)}
        wanted |= {f"param:{n}": p for n, p in parameters.items() if p.requires_grad}
        pairs = [
            (t, _to(_to(_clone(u), t.dtype), t.device))
            for t, u in zip(outputs, self.upstream, strict=False)
            if u is not None and t.requires_grad and t.shape == u.shape
        ]
        if not pairs or not wanted:
            return dict.fromkeys(wanted)
        found = _grad([t for t, _ in pairs], list(wanted.values()), [u for _, u in pairs], allow_unused=True)
        return dict(zip(wanted, found, strict=True))

    def _residence(self, t: torch.Tensor) -> str:
        """Where `t` lives; ``"host"`` if the candidate moved it off the interpreter's pretended device."""
        return "host" if _is_host(t) else str(t.device)


class _Attach(torch.autograd.Function):
    """Give a tensor a leaf to send its gradient to.

    The candidate gets no leaf: writing to one in place raises, which the reference is spared too.
    """

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, box: list[torch.Tensor]) -> torch.Tensor:
        return box[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


_attach = _Attach.apply


def _with_leaf(t: torch.Tensor, leaves: list[torch.Tensor]) -> torch.Tensor:
    if not t.dtype.is_floating_point:
        return t
    leaves.append(_requires_grad_(_empty(t.shape, dtype=t.dtype, device=t.device), True))
    return _attach(leaves[-1], [t])


def _overlaps(shape: tuple[int, ...], stride: list[int]) -> bool:
    """True unless the strides, sorted, show that no two elements share a place."""
    reach = 0
    for s, n in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if s <= reach:
            return True
        reach += s * (n - 1)
    return False


def _ordinary(t: torch.Tensor) -> torch.Tensor:
    """`t` as a plain tensor. Raises StructureError if its values cannot be sent."""
    if type(t) is not _T and type(t) is not _Parameter:
        t = t.as_subclass(_T)
    why = obstacle(t)
    if why is not None:
        raise StructureError(why)
    return t


def _parameters(target: Any) -> dict[str, torch.Tensor]:
    return dict(target.named_parameters()) if isinstance(target, torch.nn.Module) else {}


def _state(target: Any) -> dict[str, torch.Tensor]:
    return state_of(target) if isinstance(target, torch.nn.Module) else {}


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:180]


def _shared_memory(labelled: list[tuple[str, torch.Tensor]], first: int) -> tuple[list[int], list[list[str]]]:
    """Alias groups by storage, and for each tensor from `first` on the names of those it overlaps."""
    storages, spans = [], []
    for _, t in labelled:
        storage = _untyped_storage(t)
        storages.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), str(t.device)))
        start = _data_ptr(t)
        spans.append(
            (start, start + span(tuple(t.shape), tuple(t.stride())) * t.element_size(), str(t.device))
        )
    groups = list(range(len(labelled)))
    for i in range(len(labelled)):
        for j in range(i):
            if groups[j] == j and _meet(storages[i], storages[j]):
                groups[i] = j
                break
    aliases = [
        [name for j, (name, _) in enumerate(labelled) if j != i and _meet(spans[i], spans[j])]
        for i in range(first, len(labelled))
    ]
    return groups, aliases


def _meet(a: tuple[int, int, str], b: tuple[int, int, str]) -> bool:
    return a[2] == b[2] and max(a[0], b[0]) < min(a[1], b[1])
