"""Let CPU tensors pass for CUDA tensors, so that a kernel written for a GPU runs in the interpreter.

Candidates ask ``x.is_cuda``, call ``.cuda()``, pass ``device="cuda"`` and fall back to torch when they see a
CPU tensor. A `TorchFunctionMode` answers for the tensors and translates devices for the factories; inside
a torch function the mode is off, so torch itself and Triton's launch code meet ordinary CPU tensors.

A tensor is *host* when it was explicitly moved or made there (``.cpu()``, ``.to("cpu")``, ``device="cpu"``):
it says ``cpu`` and, as on a GPU, it is a copy. Everything else says ``cuda:0``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lethe.verifier.executors import cuda_namespace

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")

_HOST_MARK = "_lethe_host"
Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def is_host(tensor: torch.Tensor) -> bool:
    """Whether the candidate itself put this tensor on the host."""
    return _HOST_MARK in getattr(tensor, "__dict__", ())


def is_unreachable(tensor: Any) -> bool:
    """Whether a kernel on the device could not read this tensor: on the host and not pinned."""
    return getattr(tensor, "__dict__", {}).get(_HOST_MARK) == "pageable"


def _mark(value: Any, host: bool, memory: str = "pageable") -> Any:
    if isinstance(value, torch.Tensor):
        if host:
            setattr(value, _HOST_MARK, memory)
        else:
            value.__dict__.pop(_HOST_MARK, None)
    return value


def _kind(device: Any) -> str | None:
    """``"cuda"``, ``"cpu"``, another device type, or None when `device` is no device."""
    if isinstance(device, torch.device):
        return device.type
    if isinstance(device, str):
        return device.partition(":")[0]
    if isinstance(device, int) and not isinstance(device, bool):
        return "cuda"
    return None


def _device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    real: torch.device = func(*args, **kwargs)
    if real.type != "cpu":
        return real
    return CPU if is_host(args[0]) else CUDA


def _is_cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return args[0].device.type == "cpu" and not is_host(args[0])


def _is_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return is_host(args[0])


def _get_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return -1 if is_host(args[0]) else 0


def _copied(source: torch.Tensor, result: torch.Tensor, host: bool) -> torch.Tensor:
    """`result` of a conversion of `source`; a move between host and device is always a copy."""
    if is_host(source) != host and result is source:
        result = source.clone()
    if result is not source:
        _mark(result, host)
    return result


def _cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return _copied(args[0], args[0], host=False)


def _cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return _copied(args[0], args[0], host=True)


def _to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    source = args[0]
    host = is_host(source)
    rest = list(args[1:])
    if rest and isinstance(rest[0], torch.Tensor):
        host = is_host(rest[0])
    elif rest and (kind := _kind(rest[0])) in ("cuda", "cpu"):
        host = kind == "cpu"
        rest[0] = CPU
    elif "other" in kwargs:
        host = is_host(kwargs["other"])
    elif (kind := _kind(kwargs.get("device"))) in ("cuda", "cpu"):
        host = kind == "cpu"
        kwargs = {**kwargs, "device": CPU}
    return _copied(source, func(source, *rest, **kwargs), host)


def _type(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) > 1 and isinstance(args[1], str):
        args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
    result = func(*args, **kwargs)
    if isinstance(result, str) and not is_host(args[0]):
        return result.replace("torch.", "torch.cuda.", 1)
    return result


def _pin_memory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return _mark(args[0].clone(), host=True, memory="pinned")


def _is_pinned(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return is_host(args[0]) and not is_unreachable(args[0])


def _nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    return None


def _translated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `func` with a CUDA device replaced; explicit host devices mark the result."""
    kind = _kind(kwargs["device"]) if kwargs.get("device") is not None else None
    pinned = bool(kwargs.get("pin_memory"))
    if kind not in ("cuda", "cpu") and not pinned:
        return func(*args, **kwargs)
    changed = {**kwargs, "device": CPU} if kind in ("cuda", "cpu") else dict(kwargs)
    changed.pop("pin_memory", None)
    result = func(*args, **changed)
    if any(result is argument for argument in args):
        return _copied(result, result, host=kind == "cpu")
    return _mark(result, host=kind == "cpu" or pinned, memory="pinned" if pinned else "pageable")


def _handlers() -> dict[Any, Handler]:
    tensor: Any = torch.Tensor
    return {
        tensor.device.__get__: _device,
        tensor.is_cuda.__get__: _is_cuda,
        tensor.is_cpu.__get__: _is_cpu,
        tensor.get_device: _get_device,
        torch.get_device: _get_device,
        tensor.cuda: _cuda,
        tensor.cpu: _cpu,
        tensor.to: _to,
        tensor.type: _type,
        tensor.pin_memory: _pin_memory,
        tensor.is_pinned: _is_pinned,
        tensor.record_stream: _nothing,
    }


class PretendCuda(TorchFunctionMode):
    """While active, CPU tensors answer as CUDA tensors and CUDA devices mean this machine's memory."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers = _handlers()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(func, args, kwargs or {})
        if not kwargs:
            return func(*args)
        if "device" in kwargs or "pin_memory" in kwargs:
            return _translated(func, args, kwargs)
        return func(*args, **kwargs)


_mode: PretendCuda | None = None


def install() -> None:
    """Switch the pretence on in this thread, for the rest of the process. Repeated calls do nothing."""
    global _mode
    if _mode is None:
        cuda_namespace.install(inside=_inside)
        _mode = PretendCuda()
        _mode.__enter__()


@contextlib.contextmanager
def real_devices() -> Iterator[None]:
    """Inside, tensors tell the truth (``cpu``) and factories do not mark: for the executor's own code."""
    with torch._C.DisableTorchFunction():
        yield


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run under the pretence even when torch calls it with function modes switched off."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            if torch._C._len_torch_function_stack():
                return function(*args, **kwargs)
            with PretendCuda():
                return function(*args, **kwargs)

    return wrapped
