"""Running the reference: build its module, draw its inputs, on a chosen device."""

from __future__ import annotations

import copy
import linecache
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lethe.verifier.problem import Instance, OpSpec, Problem, ProblemError
from lethe.verifier.sites import substitute
from lethe.verifier.structure import StructureError, flatten, map_tensors


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator, ``random`` and numpy; restore their states afterwards."""
    import numpy as np

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


class OnDevice(TorchFunctionMode):
    """Create every tensor on `device`, even where the source names another one.

    References ask for ``device="cuda"`` or call ``.cuda()`` in `get_inputs`.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to(self.device)
        if kwargs.get("device") is not None:
            kwargs["device"] = self.device
        if func is torch.Tensor.to:
            args = tuple(self.device if _is_device(a) else a for a in args)
        return func(*args, **kwargs)


def _is_device(a: Any) -> bool:
    return isinstance(a, torch.device) or (isinstance(a, str) and a.split(":")[0] in ("cuda", "cpu", "meta"))


@contextmanager
def placed(device: str) -> Iterator[None]:
    """Both the default device and explicit ones become `device`; what torch warns about is kept quiet,
    since the sizes and values that a reference is tried at are not its author's."""
    with warnings.catch_warnings(), torch.device(device), OnDevice(device):
        warnings.simplefilter("ignore")
        yield


class _Function(nn.Module):
    """An OpSpec's reference as a module without parameters."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *inputs: Any) -> Any:
        return self.f(*inputs)


def _sentence(problem: Problem, what: str, e: BaseException) -> ProblemError:
    text = " ".join(str(e).split())
    return ProblemError(f"{problem.name}: {what}: {type(e).__name__}: {text[:300]}".rstrip(": "))


def _execute(problem: Problem, source: str) -> types.ModuleType:
    """Execute the reference's source as a module of its own."""
    digest = problem.sha256[:12]
    module = types.ModuleType(f"lethe_reference_{digest}")
    filename = problem.path or f"<reference {problem.name} {digest}>"
    module.__file__ = filename
    sys.modules[module.__name__] = module
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as e:
        raise _sentence(problem, "executing the reference raised", e) from None
    return module


def _float32(t: Tensor) -> Tensor:
    return t.detach().to(torch.float32) if t.is_floating_point() else t.detach()


def _as_list(problem: Problem, drawn: Any) -> list[Any]:
    if isinstance(drawn, Tensor):
        drawn = [drawn]
    if not isinstance(drawn, (list, tuple)):
        raise ProblemError(
            f"{problem.name}: get_inputs returned a {type(drawn).__name__}, not a list of arguments"
        )
    try:
        tensors, _ = flatten(list(drawn))
        if not tensors:
            raise ProblemError(f"{problem.name}: get_inputs returned no tensor")
        return map_tensors(list(drawn), _float32)
    except StructureError as e:
        raise ProblemError(f"{problem.name}: get_inputs returned {e}") from None


def build(
    problem: Problem, sizes: dict[str, int], seed: int, device: str, module_origin: str | None = None
) -> Instance:
    """See `problem.instantiate`. `module_origin` is where the module is built before it moves."""
    # random values come from the CPU generator whatever the device, so that a seed means the same
    origin = "meta" if device == "meta" else "cpu"
    module_origin = module_origin or origin
    init: list[Any] | dict[str, Any]
    if problem.spec is not None:
        factory, init, inputs = _from_spec(problem.spec, sizes)
    else:
        with placed(origin), seeded(seed):
            factory, init, inputs = _from_source(problem, substitute(problem.source, sizes))
    try:
        with placed(module_origin), torch.no_grad(), seeded(seed):
            module = factory(**init) if isinstance(init, dict) else factory(*init)
    except (Exception, SystemExit) as e:
        raise _sentence(problem, "constructing Model raised", e) from None
    if not isinstance(module, nn.Module):
        raise ProblemError(f"{problem.name}: Model is not an nn.Module class")
    module = module.float().eval()
    if device != module_origin:
        module = module.to(device)

    def draw(draw_seed: int) -> list[Any]:
        try:
            with placed(origin), torch.no_grad(), seeded(draw_seed):
                drawn = inputs()
        except (Exception, SystemExit) as e:
            raise _sentence(problem, "get_inputs raised", e) from None
        drawn = _as_list(problem, drawn)
        return drawn if device == origin else map_tensors(drawn, lambda t: t.to(device))

    return Instance(problem, dict(sizes), init, module, seed, draw)


def _from_spec(
    spec: OpSpec, sizes: Mapping[str, int]
) -> tuple[Callable[..., Any], list[Any], Callable[[], Any]]:
    unknown = [name for name in sizes if name not in spec.sizes]
    if unknown:
        raise ValueError(f"no size named {unknown[0]!r}; the operator has {', '.join(spec.sizes) or 'none'}")
    actual = {**spec.sizes, **sizes}
    return (lambda: _Function(spec.reference)), [], (lambda: spec.inputs(**actual))


def _from_source(
    problem: Problem, source: str
) -> tuple[Callable[..., Any], list[Any] | dict[str, Any], Callable[[], Any]]:
    module = _execute(problem, source)
    factory, inputs = getattr(module, "Model", None), getattr(module, "get_inputs", None)
    if not callable(factory) or not callable(inputs):
        raise ProblemError(f"{problem.name}: Model and get_inputs must be callable")
    get_init = getattr(module, "get_init_inputs", None)
    try:
        init = get_init() if get_init is not None else []
    except (Exception, SystemExit) as e:
        raise _sentence(problem, "get_init_inputs raised", e) from None
    if init is None:
        init = []
    if isinstance(init, tuple):
        init = list(init)
    if not isinstance(init, (list, dict)):
        raise ProblemError(
            f"{problem.name}: get_init_inputs returned a {type(init).__name__}, not a list or a dict"
        )
    return factory, init, inputs


def run_reference(instance: Instance, inputs: list[Any]) -> Any:
    """Output of the reference in working precision, without gradients. Raises ProblemError."""
    device = next((str(t.device) for t in flatten(inputs)[0]), "cpu")
    try:
        with placed(device), torch.no_grad(), seeded(instance.seed):
            return instance.module(*inputs)
    except ProblemError:
        raise
    except (Exception, SystemExit) as e:
        raise _sentence(instance.problem, "the reference raised", e) from None


def run_apart(instance: Instance, inputs: list[Any]) -> Any:
    """`run_reference` on a copy of the module and of the inputs, both of which a forward pass may write.

    State that is no parameter (a plain tensor attribute, a counter) moves with every call, and whatever is
    asked of the reference later must start from where a fresh one does. Raises ProblemError.
    """
    try:
        module = copy.deepcopy(instance.module)
    except Exception as e:
        raise _sentence(instance.problem, "copying Model raised", e) from None
    return run_reference(replace(instance, module=module), map_tensors(inputs, placed_alike))


def placed_alike(t: Tensor) -> Tensor:
    """A copy of `t` in a storage of its own, with the same strides and offset."""
    if t.is_conj() or t.is_neg():
        return t.clone()
    storage = t.detach().untyped_storage().clone()
    return t.new_empty(0).set_(storage, t.storage_offset(), t.shape, t.stride())
