"""What the reference would need at given sizes, found on the meta device.

The reference runs without data and without memory; a dispatch mode counts the
elements its operators write, their floating-point operations and the bytes alive
at once. References that read values in Python (``.item()`` in a constructor,
masks as indices) cannot run there: for those the module, then everything, is
built for real, as long as the inputs stay small.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lethe.verifier.problem import Instance, Problem, ProblemError
from lethe.verifier.reference import build, run_reference
from lethe.verifier.structure import StructureError, flatten

REAL_ELEMENTS = 1 << 22
"""A probe that needs real data is refused above this many input elements (16 MiB of float32)."""

FLOPS_PER_ELEMENT = 64
"""One written element costs about as much as 64 flops of a contraction: eager CPU code
moves some 0.3e9 elements and computes some 20e9 flops a second on one thread."""

ELEMENTS_PER_CALL = 300
"""Dispatching one operator takes about a microsecond: as much as writing 300 elements."""

PATIENCE = 100_000
"""Operator calls and tensors of state that one search may spend: about 20 s of probing. It is
counted, not timed, so that the same problem is always tried at the same sizes."""
CALLS_PER_TENSOR = 4
"""Building one parameter or buffer costs about as much as four operator calls."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Facts:
    """The reference at certain sizes."""

    inputs: tuple[Shape, ...]
    parameters: tuple[Shape, ...]
    """Parameters and buffers."""
    outputs: tuple[Shape, ...] = ()
    written: int = 0
    """Elements written by all operators together."""
    flops: int = 0
    calls: int = 0
    """Operators dispatched."""
    peak_bytes: int = 0
    """Bytes alive at once: inputs, parameters and what the forward pass holds."""

    @property
    def elements(self) -> int:
        """Elements of inputs, parameters and outputs."""
        return sum(math.prod(s) for s in self.inputs + self.parameters + self.outputs)

    @property
    def cost(self) -> int:
        """Work in elements: what is read, written and (scaled) computed."""
        return self.elements + _work(self.written, self.flops, self.calls)


def _work(written: int, flops: int, calls: int) -> int:
    return written + flops // FLOPS_PER_ELEMENT + calls * ELEMENTS_PER_CALL


class TooDear(ProblemError):
    """The reference costs more than the ceiling of a probe."""


class _Meter(TorchDispatchMode):
    """Counts elements, flops and live bytes of what runs under it; stops it above `ceiling`."""

    def __init__(self, held: list[Tensor], ceiling: int | None) -> None:
        super().__init__()
        self.ceiling = ceiling
        self.written = 0
        self.flops = 0
        self.calls = 0
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()
        for t in held:
            self._hold(t)

    def _hold(self, t: Tensor) -> None:
        storage = t.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.calls += 1
        for t in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(t, Tensor):
                self.written += t.numel()
                self._hold(t)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **kwargs, out_val=out)
        if self.ceiling is not None and _work(self.written, self.flops, self.calls) > self.ceiling:
            raise TooDear(f"the reference costs more than {self.ceiling} elements")
        return out


class _Recurrent(TorchFunctionMode):
    """Shapes of LSTM, GRU and RNN layers in one step; on meta they decompose into every time step.

    ``nn.LSTM`` and its kin check their arguments before they come here.
    """

    LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

    def __init__(self, meter: _Meter) -> None:
        super().__init__()
        self.meter = meter

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") not in self.LAYERS or len(args) != 9:
            return func(*args, **(kwargs or {}))
        x, hidden, weights, bidirectional = args[0], args[1], args[2], args[7]
        states = tuple(hidden) if isinstance(hidden, (list, tuple)) else (hidden,)
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        steps = x.numel() // x.shape[-1]
        self.meter.flops += sum(2 * w.numel() * steps for w in weights if w.ndim == 2)
        self.meter.written += sum(w.shape[0] * steps for w in weights if w.ndim == 2)
        return (x.new_empty(*x.shape[:-1], width), *(torch.empty_like(s) for s in states))


def _shapes(tensors: list[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(t.shape) for t in tensors)


class Prober:
    """Facts about one problem at any sizes; remembers what it found.

    `way` is ``"meta"``, ``"module"`` (module built for real, then moved to meta) or
    ``"real"``: the first that can run the reference as written.
    """

    def __init__(self, problem: Problem, base: Mapping[str, int] | None = None) -> None:
        self.problem = problem
        self.spent = 0
        self._found: dict[tuple[tuple[str, int], ...], Facts | ProblemError] = {}
        for self.way in ("meta", "module", "real"):
            try:
                self.run(dict(base or {}))
                break
            except ProblemError:
                if self.way != "real":
                    self._found.clear()

    @property
    def exhausted(self) -> bool:
        """True once so much was probed that a search should settle for what it has."""
        return self.spent > PATIENCE

    def _build(self, sizes: Mapping[str, int]) -> Instance:
        try:
            device = "cpu" if self.way == "real" else "meta"
            origin = "meta" if self.way == "meta" else "cpu"
            return build(self.problem, dict(sizes), 0, device, origin)
        except ProblemError:
            raise
        except ValueError as e:
            raise ProblemError(f"{self.problem.name}: {e}") from None

    def shapes(self, sizes: Mapping[str, int]) -> Facts:
        """Shapes of inputs and parameters; the reference is built, not run. Raises ProblemError."""
        instance = self._build(sizes)
        inputs = instance.draw(0) if self.way != "real" else self._affordable(sizes)
        return Facts(_shapes(flatten(inputs)[0]), _shapes(list(instance.module.state_dict().values())))

    def _affordable(self, sizes: Mapping[str, int]) -> list[Any]:
        """Inputs on meta if they can be drawn there, to refuse large ones before they exist."""
        inputs = build(self.problem, dict(sizes), 0, "meta", "cpu").draw(0)
        elements = sum(t.numel() for t in flatten(inputs)[0])
        if elements > REAL_ELEMENTS:
            raise ProblemError(
                f"{self.problem.name}: the reference cannot run without data and has {elements} input "
                f"elements, more than the {REAL_ELEMENTS} of a probe"
            )
        return inputs

    def run(self, sizes: Mapping[str, int], ceiling: int | None = None) -> Facts:
        """All facts at `sizes`. Raises ProblemError where the reference refuses them.

        With a `ceiling` it is stopped, with TooDear, as soon as its work exceeds it.
        """
        key = tuple(sorted(sizes.items()))
        if key not in self._found:
            try:
                self._found[key] = self._run(sizes, ceiling)
            except TooDear:
                raise
            except ProblemError as e:
                self._found[key] = e
        found = self._found[key]
        if isinstance(found, ProblemError):
            raise found
        return found

    def _run(self, sizes: Mapping[str, int], ceiling: int | None) -> Facts:
        if self.way == "real":
            self._affordable(sizes)
        instance = self._build(sizes)
        inputs = instance.draw(0)
        state = list(instance.module.state_dict().values())
        held = flatten(inputs)[0]
        meter = _Meter(held + state, ceiling)
        try:
            with meter, nullcontext() if self.way == "real" else _Recurrent(meter):
                output = run_reference(instance, inputs)
        finally:
            self.spent += meter.calls + CALLS_PER_TENSOR * len(state)
        try:
            outputs, _ = flatten(output)
        except StructureError as e:
            raise ProblemError(f"{self.problem.name}: the reference returned {e}") from None
        if not all(t.numel() for t in outputs):
            raise ProblemError(f"{self.problem.name}: an output is empty at these sizes")
        return Facts(
            _shapes(held),
            _shapes(state),
            _shapes(outputs),
            meter.written,
            meter.flops,
            meter.calls,
            meter.peak,
        )
