"""``torch.cuda`` and its relatives on a machine without CUDA: harmless, believable answers.

Questions are answered as an H200 would; synchronisation, streams and events do nothing (the interpreter
is synchronous); what cannot be pretended (graph capture) raises `NoDeviceError`, which is an executor
limitation and never the candidate's fault.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from lethe.verifier.executors.devices import (
    PRETENDED_CAPABILITY,
    PRETENDED_MEMORY,
    PRETENDED_NAME,
    PRETENDED_PROPERTIES,
)


class NoDeviceError(RuntimeError):
    """The candidate asked for something that only a real device can do."""


class Stream:
    """A stream of a synchronous device."""

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.cuda_stream = 0
        self.priority = priority

    def synchronize(self) -> None:
        """Everything issued so far has already run."""

    def wait_stream(self, stream: Any) -> None:
        """Everything issued so far has already run."""

    def wait_event(self, event: Any) -> None:
        """Everything issued so far has already run."""

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to switch back."""


class Event:
    """An event of a synchronous device; times are host times."""

    def __init__(self, enable_timing: bool = False, **options: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        return (end._at - self._at) * 1e3

    def synchronize(self) -> None:
        """The event has already happened."""

    def wait(self, stream: Any = None) -> None:
        """The event has already happened."""

    def query(self) -> bool:
        return True


class _Selected:
    """``torch.cuda.device(...)`` and ``torch.cuda.stream(...)``: one device, one stream."""

    def __init__(self, what: Any = None) -> None:
        self.idx = 0
        self.prev_idx = 0

    def __enter__(self) -> _Selected:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to switch back."""


class _NoGraphs:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NoDeviceError("CUDA graphs cannot be captured or replayed without a device")


_DEFAULT_STREAM = Stream()


def _properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name=PRETENDED_NAME,
        major=PRETENDED_CAPABILITY[0],
        minor=PRETENDED_CAPABILITY[1],
        total_memory=PRETENDED_MEMORY,
        multi_processor_count=PRETENDED_PROPERTIES["multiprocessor_count"],
        warp_size=PRETENDED_PROPERTIES["warpSize"],
        regs_per_multiprocessor=PRETENDED_PROPERTIES["max_num_regs"],
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=PRETENDED_PROPERTIES["max_shared_mem"],
        shared_memory_per_multiprocessor=228 * 1024,
        L2_cache_size=50 * 2**20,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
    )


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


@contextlib.contextmanager
def _quiet(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _seed_host(seed: int) -> None:
    """Device and host share one generator here; ``torch.manual_seed`` itself calls this too."""
    torch.default_generator.manual_seed(int(seed))


def _answers() -> dict[str, Any]:
    """The attributes of ``torch.cuda`` that are replaced.

    No two names share an object: ``torch._dynamo`` refuses to load otherwise.
    """
    table: dict[str, Any] = {name: _answer(None) for name in _OF_NOTHING}
    table |= {name: _answer(0) for name in _OF_ZERO}
    table |= {
        name: type(name, (_Selected,), {}) for name in ("StreamContext", "stream", "device", "device_of")
    }
    table |= {name: type(name, (_NoGraphs,), {}) for name in ("CUDAGraph", "graph", "make_graphed_callables")}
    table |= {name: getattr(torch, name) for name in _TENSOR_TYPES}
    table.update(
        is_available=_answer(True),
        is_initialized=_answer(True),
        is_bf16_supported=_answer(True),
        is_current_stream_capturing=_answer(False),
        device_count=_answer(1),
        get_device_name=_answer(PRETENDED_NAME),
        get_device_capability=_answer(PRETENDED_CAPABILITY),
        get_arch_list=_answer(["sm_90"]),
        get_device_properties=_properties,
        mem_get_info=_answer((PRETENDED_MEMORY, PRETENDED_MEMORY)),
        memory_stats=_answer({}),
        memory_summary=_answer(""),
        current_stream=_answer(_DEFAULT_STREAM),
        default_stream=_answer(_DEFAULT_STREAM),
        Stream=Stream,
        ExternalStream=type("ExternalStream", (Stream,), {}),
        Event=Event,
        manual_seed=lambda seed: _seed_host(seed),
        manual_seed_all=lambda seed: _seed_host(seed),
        seed=lambda: _seed_host(torch.default_generator.seed()),
        seed_all=lambda: _seed_host(torch.default_generator.seed()),
        initial_seed=lambda: torch.default_generator.initial_seed(),
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
    )
    return table


_OF_NOTHING = (
    "init",
    "synchronize",
    "set_device",
    "set_stream",
    "empty_cache",
    "ipc_collect",
    "set_per_process_memory_fraction",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
)
_OF_ZERO = (
    "current_device",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
    "utilization",
)
_TENSOR_TYPES = tuple(
    f"{name}Tensor"
    for name in ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Short", "Char", "Byte", "Bool")
)


class _Generator(torch.Generator):
    """``torch.Generator(device="cuda")`` is a host generator."""

    def __new__(cls, device: Any = None) -> _Generator:
        return super().__new__(cls)


def _autocast_on_host(original: Callable[..., None]) -> Callable[..., None]:
    """``autocast("cuda")`` acts on what are really host tensors; its default dtype stays float16."""

    @functools.wraps(original)
    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *args, **kwargs)

    return init


def _host_when_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    """An autocast query about ``"cuda"`` is answered for the host."""

    @functools.wraps(original)
    def query(*args: Any, **kwargs: Any) -> Any:
        return original(*("cpu" if value == "cuda" else value for value in args), **kwargs)

    return query


def _default_device(original: Callable[..., None]) -> Callable[[Any], None]:
    """``torch.set_default_device("cuda")`` is the default already."""

    @functools.wraps(original)
    def set_default_device(device: Any) -> None:
        original(None if str(device).startswith("cuda") or isinstance(device, int) else device)

    return set_default_device


def _default_tensor_type(original: Callable[..., None]) -> Callable[[Any], None]:
    """``"torch.cuda.FloatTensor"`` names what is really a host type."""

    @functools.wraps(original)
    def set_default_tensor_type(kind: Any) -> None:
        original(kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind)

    return set_default_tensor_type


def _identity_compile(model: Any = None, **options: Any) -> Any:
    """``torch.compile`` keeps a program's meaning; here it keeps the program."""
    return model if model is not None else (lambda function: function)


def _custom_op(original: Callable[..., Any], inside: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.library.custom_op`` for any device, its body running under the pretence."""

    def custom_op(name: str, fn: Any = None, /, **options: Any) -> Any:
        options["device_types"] = None

        def decorate(function: Callable[..., Any]) -> Any:
            # From the function itself: annotations that are strings are resolved where it was written.
            schema = options.get("schema") or torch.library.infer_schema(
                function, mutates_args=options["mutates_args"]
            )
            return original(name, **{**options, "schema": schema})(inside(function))

        return decorate if fn is None else decorate(fn)

    return custom_op


def install(inside: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the CUDA parts of torch; `inside` wraps a function so that it runs under the pretence."""
    for name, value in _answers().items():
        setattr(torch.cuda, name, value)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, _answer(None))
    autocast = torch.amp.autocast_mode.autocast
    # Backward passes start inside a torch function, where the pretence is off.
    backward = torch.autograd.function.BackwardCFunction
    replaced: list[tuple[Any, str, Any]] = [
        (torch.cuda.nvtx, "range", _quiet),
        (torch, "Generator", _Generator),
        (torch, "compile", _identity_compile),
        (torch, "set_default_device", _default_device(torch.set_default_device)),
        (torch, "set_default_tensor_type", _default_tensor_type(torch.set_default_tensor_type)),
        (torch._C, "_cuda_getCurrentRawStream", _answer(0)),
        (autocast, "__init__", _autocast_on_host(autocast.__init__)),
        (torch, "is_autocast_enabled", _host_when_cuda(torch.is_autocast_enabled)),
        (torch, "get_autocast_dtype", _host_when_cuda(torch.get_autocast_dtype)),
        (torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu")),
        (backward, "apply", inside(backward.apply)),
        (torch.library, "custom_op", _custom_op(torch.library.custom_op, inside)),
        (torch.library, "wrap_triton", lambda kernel: kernel),
        (torch.library, "capture_triton", lambda kernel: kernel),
        (torch.accelerator, "is_available", _answer(True)),
        (torch.accelerator, "device_count", _answer(1)),
        (torch.accelerator, "synchronize", _answer(None)),
        (torch.accelerator, "current_accelerator", _answer(torch.device("cuda"))),
    ]
    for owner, name, value in replaced:
        setattr(owner, name, value)
