"""Dispatch modes that change how a reference computes: in float64, with 0*x as 0, with GELU in tanh form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_map


class EagerMode(TorchDispatchMode):
    """A dispatch mode for eager code only.

    torch guards `__torch_dispatch__` against its compiler, and the guard imports that compiler, which
    takes two seconds; none of this is ever compiled.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
"""What each narrow floating dtype becomes inside the float64 run."""


class Widen(EagerMode):
    """Keep every floating tensor at 64 bits: requested narrow dtypes become wide, narrow operands too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _any_narrow(args) or (kwargs and _any_narrow(kwargs.values())):
            args, kwargs = widen(args), widen(kwargs)
        return func(*args, **kwargs)


class WorkingDefaults(TorchFunctionMode):
    """What torch derives from the dtype keeps its working-precision value: the epsilon of RMS norm."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = torch.finfo(dtype).eps

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.rms_norm, nn.functional.rms_norm):
            eps = args[3] if len(args) > 3 else kwargs.get("eps")
            args, kwargs["eps"] = args[:3], self.eps if eps is None else eps
        return func(*args, **kwargs)


@contextmanager
def widened(dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """Run the reference in float64 although it was written for `dtype`."""
    with WorkingDefaults(dtype), Widen():
        yield


def _narrow(x: Any) -> bool:
    return (isinstance(x, Tensor) and x.dtype in WIDE) or (isinstance(x, torch.dtype) and x in WIDE)


def _any_narrow(values: Any) -> bool:
    """Whether an operator's arguments hold something narrow. Written out: it is asked at every operator call,
    and torch's walk over any tree costs more than most of the calls."""
    for x in values:
        if isinstance(x, Tensor | torch.dtype):
            if _narrow(x):
                return True
        elif isinstance(x, list | tuple) and _any_narrow(x):
            return True
    return False


def widen(value: Any) -> Any:
    """Narrow floating tensors and dtypes of an operator's arguments, made wide."""
    return tree_map(
        lambda x: (x.to(WIDE[x.dtype]) if isinstance(x, Tensor) else WIDE[x]) if _narrow(x) else x, value
    )


class ZeroAbsorbs(EagerMode):
    """Products in which 0 wins over Inf and NaN, as in an implementation that skips structural zeros.

    Bilinear operators (mul, mm, bmm, mv, dot, convolution and their fused-bias forms)
    are evaluated on the finite part, and the non-finite part is counted with indicator
    tensors: a term is non-finite only if its other factor is not zero.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name not in _BILINEAR or not _has_nonfinite(args):
            return func(*args, **kwargs)
        if name in ("mul", "mul_"):
            out = _absorbing_product(func, args)
            return args[0].copy_(out) if name == "mul_" else out
        if name == "convolution":
            x, w, bias, *rest = args
            out = _absorbing_bilinear(lambda a, b: func(a, b, None, *rest), x, w)
            return out if bias is None else out + bias.reshape(1, -1, *[1] * (out.dim() - 2))
        if name in ("addmm", "baddbmm", "addmv"):
            product = {"addmm": torch.ops.aten.mm, "baddbmm": torch.ops.aten.bmm, "addmv": torch.ops.aten.mv}[
                name
            ]
            out = _absorbing_bilinear(product.default, args[1], args[2])
            beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
            return out * alpha if beta == 0 else args[0] * beta + out * alpha
        return _absorbing_bilinear(lambda a, b: func(a, b, **kwargs), args[0], args[1])


_BILINEAR = frozenset({"mul", "mul_", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "convolution"})


def _has_nonfinite(args: Any) -> bool:
    return tree_any(
        lambda t: isinstance(t, Tensor) and t.is_floating_point() and not bool(t.isfinite().all()), args
    )


def _absorbing_product(func: Any, args: Any) -> Tensor:
    a, b = args[0], args[1]
    zero = torch.logical_or(torch.as_tensor(a == 0), torch.as_tensor(b == 0))
    plain = torch.ops.aten.mul.Tensor(a, b) if isinstance(b, Tensor) else torch.ops.aten.mul.Scalar(a, b)
    return torch.where(zero.to(plain.device), torch.zeros((), dtype=plain.dtype, device=plain.device), plain)


def _absorbing_bilinear(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    def on(p: Tensor, q: Tensor) -> Tensor:
        return product(p.to(a.dtype), q.to(b.dtype)) > 0.5

    zero = torch.zeros((), dtype=a.dtype, device=a.device)
    finite = product(torch.where(a.isfinite(), a, zero), torch.where(b.isfinite(), b, zero))
    minted = on(a.isnan(), b != 0) | on(a != 0, b.isnan())
    up, down = torch.isposinf, torch.isneginf
    plus = on(up(a), b > 0) | on(down(a), b < 0) | on(a > 0, up(b)) | on(a < 0, down(b))
    minus = on(up(a), b < 0) | on(down(a), b > 0) | on(a > 0, down(b)) | on(a < 0, up(b))
    out = torch.where(plus, torch.full_like(finite, torch.inf), finite)
    out = torch.where(minus, torch.full_like(finite, -torch.inf), out)
    return torch.where(minted | (plus & minus), torch.full_like(finite, torch.nan), out)


class TanhForm(EagerMode):
    """Exact GELU evaluated in its tanh form, the one approximation that kernels substitute for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.overloadpacket is torch.ops.aten.gelu:
            kwargs["approximate"] = "tanh"
        return func(*args, **kwargs)
