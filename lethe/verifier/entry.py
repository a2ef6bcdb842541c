"""The candidate's text and what it builds: byte code, module, entry point, weights."""

from __future__ import annotations

import inspect
import sys
from types import CodeType, ModuleType

import torch

_plain, _no_grad, _strided = torch._C.DisableTorchFunction, torch.no_grad, torch.strided
_copy, _clone, _to, _untyped_storage = (
    torch.Tensor.copy_,
    torch.Tensor.clone,
    torch.Tensor.to,
    torch.Tensor.untyped_storage,
)

MODULE = "candidate"
MAX_LISTED = 40


class Malformed(Exception):
    """The candidate's text holds no usable entry point."""


# ---------------------------------------------------------------- source


def compiled(text: str, path: str) -> CodeType:
    """Byte code of `text`. Raises Malformed with the line."""
    try:
        return compile(text, path, "exec", dont_inherit=True)
    except SyntaxError as e:
        where = f"line {e.lineno}: " if e.lineno else ""
        raise Malformed(f"the candidate is not valid Python: {where}{e.msg}") from None
    except (ValueError, RecursionError, MemoryError, UnicodeError) as e:
        raise Malformed(f"the candidate is not valid Python: {str(e) or type(e).__name__}") from None


def fresh_module(path: str) -> ModuleType:
    """An empty module ``candidate`` in sys.modules, where ``inspect`` and ``triton.jit`` find its source."""
    import linecache

    linecache.checkcache(path)
    module = ModuleType(MODULE)
    module.__file__ = path
    sys.modules[MODULE] = module
    return module


def definitions(module: ModuleType | None) -> dict[str, list[str]]:
    """Classes and functions that the candidate's module defines itself."""
    found: dict[str, list[str]] = {"classes": [], "functions": []}
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) == MODULE and name.isprintable() and len(name) <= 100:
            if isinstance(value, type):
                found["classes"].append(name)
            elif inspect.isfunction(value):
                found["functions"].append(name)
    return {k: v[:MAX_LISTED] for k, v in found.items()}


def require_entry(module: ModuleType, entry: str, kind: str) -> None:
    """Raise Malformed unless `module` holds `entry` as an nn.Module class or, if so declared, a callable."""
    if not hasattr(module, entry):
        found = definitions(module)
        names = ", ".join(found["classes"] + found["functions"]) or "nothing"
        wanted = "class" if kind == "module" else "function"
        raise Malformed(f"the candidate defines no {wanted} {entry}; it defines {names}")
    value = getattr(module, entry)
    if kind == "module" and not (isinstance(value, type) and issubclass(value, torch.nn.Module)):
        what = "class" if isinstance(value, type) else type(value).__name__
        raise Malformed(f"{entry} is a {what}, but not a subclass of nn.Module")
    if kind == "function" and not callable(value):
        raise Malformed(f"{entry} is a {type(value).__name__}, not a function")


# ---------------------------------------------------------------- modules and their state


def clone(t: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a tensor of the request (which is a view of read-only memory)."""
    with _plain():
        return _to(_clone(t), device)


def settle(model: torch.nn.Module, device: torch.device, dtype: torch.dtype, train: bool) -> torch.nn.Module:
    """Device, dtype of floating parameters, and mode."""
    if device.type != "cpu":
        model = model.to(device)
    if dtype is not torch.float32 and dtype.is_floating_point:
        model = model.to(dtype)
    return model.train(train)


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name; tensors that cannot travel are left out."""
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = [n for n in model.state_dict(keep_vars=True) if n in values]
    return {n: values[n] for n in names if obstacle(values[n]) is None}


def copy_state(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> list[str]:
    """Copy values into parameters and buffers of the same name and exact shape; returns the names."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copied = []
    with _no_grad():
        for name, value in state.items():
            if name in own and tuple(own[name].shape) == tuple(value.shape):
                _copy(own[name], value)
                copied.append(name)
    return copied


def storage_address(t: torch.Tensor) -> int:
    return _untyped_storage(t).data_ptr()


def obstacle(t: torch.Tensor) -> str | None:
    """Why the values of `t` cannot be sent, or None."""
    if t.layout is not _strided:
        return f"a tensor of layout {t.layout}"
    if t.is_quantized or t.is_nested:
        return "a quantized or nested tensor"
    if t.device.type not in ("cpu", "cuda"):
        return f"a tensor on device {t.device}"
    return None
