"""Host counterparts of libdevice functions, so that kernels which call them can be interpreted.

Each is computed in float64 and rounded once to the return type: within libdevice's own error bound of the
device's result (0 to 2 ulp for most; CUDA C++ Programming Guide, appendix on mathematical functions), but
not bit-identical. Triton links libdevice with flush-to-zero, so subnormal float32 operands and results become
zero in all but `KEEPING_SUBNORMALS`. The ``fast_`` functions whose hardware approximation has an absolute
rather than a relative bound (sine, cosine, tangent, logarithms, powers) have no counterpart here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from lethe.verifier.executors.lowprec import Array, float_to_int, flush, fma_narrow

Function = Callable[..., Array]


def _torch(name: str) -> Function:
    """A function of ``torch.special`` or ``torch`` on float64 arrays."""

    def apply(values: Array) -> Array:
        import torch

        function = getattr(torch.special, name, None) or getattr(torch, name)
        with torch._C.DisableTorchFunction():
            return np.asarray(function(torch.from_numpy(np.ascontiguousarray(values))).numpy())

    return apply


def _scaled_exp2(factor: float) -> Function:
    """``ex2.approx(x * factor)`` with the product rounded to float32, as the ``fast_`` exponentials do."""
    narrow = np.float32(factor)
    return lambda x: np.exp2((x.astype(np.float32) * narrow).astype(np.float64))


def _round_half_away(values: Array) -> Array:
    return np.copysign(np.floor(np.abs(values) + 0.5), values)


FUNCTIONS: dict[str, Function] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "add_rn": np.add,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2.0)),
    "cyl_bessel_i0": _torch("i0"),
    "cyl_bessel_i1": _torch("i1"),
    "div_rn": np.divide,
    "erf": _torch("erf"),
    "erfc": _torch("erfc"),
    "erfcx": _torch("erfcx"),
    "erfinv": _torch("erfinv"),
    "exp": np.exp,
    "exp10": lambda x: np.power(10.0, x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fast_dividef": np.divide,
    "fast_exp10f": _scaled_exp2(3.321928094887362),
    "fast_expf": _scaled_exp2(1.4426950408889634),
    "fdim": lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.maximum(x - y, 0.0)),
    "finitef": np.isfinite,
    "float2int_rd": np.floor,
    "float2int_rn": np.rint,
    "float2int_ru": np.ceil,
    "float2int_rz": np.trunc,
    "floor": np.floor,
    "fma": fma_narrow,
    "fma_rn": fma_narrow,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "int2float_rn": np.positive,
    "isfinited": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "j0": _torch("bessel_j0"),
    "j1": _torch("bessel_j1"),
    "ldexp": lambda x, n: np.ldexp(x, n.astype(np.int32)),
    "lgamma": _torch("lgamma"),
    "llrint": np.rint,
    "llround": _round_half_away,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "mul_rn": np.multiply,
    "nearbyint": np.rint,
    "normcdf": _torch("ndtr"),
    "normcdfinv": _torch("ndtri"),
    "pow": np.power,
    "rcbrt": lambda x: 1.0 / np.cbrt(x),
    "rcp_rn": lambda x: 1.0 / x,
    "rint": np.rint,
    "round": _round_half_away,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "rsqrt_rn": lambda x: 1.0 / np.sqrt(x),
    "saturatef": lambda x: np.where(np.isnan(x), 0.0, np.clip(x, 0.0, 1.0)),
    "scalbn": lambda x, n: np.ldexp(x, n.astype(np.int32)),
    "signbit": np.signbit,
    "sin": np.sin,
    "sinh": np.sinh,
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2.0)),
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "sub_rn": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "y0": _torch("bessel_y0"),
    "y1": _torch("bessel_y1"),
}
"""Function of libdevice (its name in ``triton.language.extra.libdevice``) -> the same on float64 arrays."""


KEEPING_SUBNORMALS = frozenset(
    {
        "copysign",
        "finitef",
        "fmod",
        "isinf",
        "isnan",
        "ldexp",
        "llrint",
        "llround",
        "log",
        "log10",
        "log2",
        "nearbyint",
        "pow",
        "rint",
        "round",
        "scalbn",
        "signbit",
        "trunc",
    }
)
"""Float32 functions whose PTX does not flush (read from what triton 3.6 to 3.9 emit for sm_90)."""


def unsupported_names(code: str) -> list[str]:
    """Names of libdevice functions that `code` uses and that have no counterpart here."""
    used = set(re.findall(r"\blibdevice\.([a-z]\w*)", code))
    for names in re.findall(r"libdevice import \(?([\w ,]+)", code):
        used |= {name.split(" as ")[0].strip() for name in names.split(",")}
    return sorted(used - FUNCTIONS.keys() - {"", "libdevice"})


class NoCounterpart(NotImplementedError):
    """A libdevice function that cannot be interpreted."""


_calling: list[str] = []


def install() -> None:
    """Make libdevice functions callable from interpreted kernels, once for this process."""
    import triton.language.extra.libdevice as portable
    from triton.language.extra.cuda import libdevice as cuda
    from triton.runtime import interpreter as host

    names = [name for name, value in vars(cuda).items() if callable(value) and not name.startswith("_")]
    for name in names:
        interpreted = _interpreted(name, getattr(cuda, name), host.interpreter_semantic)
        for module in (cuda, portable):
            _originals.append((module, name, getattr(module, name, None)))
            setattr(module, name, interpreted)
    host.InterpreterBuilder.create_extern_elementwise = _extern_elementwise


def uninstall() -> None:
    """Give libdevice back its compiler form (in a process that stops interpreting)."""
    while _originals:
        setattr(*_originals.pop())


_originals: list[tuple[Any, str, Any]] = []


def _interpreted(name: str, function: Callable[..., Any], semantic: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        _calling.append(name)
        try:
            return function(*args, **{**kwargs, "_semantic": semantic})
        finally:
            _calling.pop()

    call.__name__ = name
    return call


def _extern_elementwise(
    self: Any, library: str, path: str, symbol: str, arguments: list[Any], result_type: Any, is_pure: bool
) -> Any:
    from triton.runtime import interpreter as host

    function = FUNCTIONS.get(_calling[-1]) if _calling else None
    if function is None:
        raise NoCounterpart(f"libdevice function {symbol!r} has no host equivalent")
    scalar = result_type.scalar
    exact = arguments[0].data.dtype.kind != "f"
    flushed = _calling[-1] not in KEEPING_SUBNORMALS
    operands = [a.data if exact else _wide(a.data, flushed) for a in arguments]
    result = np.asarray(function(*operands))
    if result.dtype.kind == "f" and scalar.is_int():
        result = float_to_int(result, host._get_np_dtype(scalar))
    result = result.astype(host._get_np_dtype(scalar))
    return host.TensorHandle(flush(result) if flushed and result.dtype == np.float32 else result, scalar)


def _wide(values: Array, flushed: bool) -> Array:
    return (flush(values) if flushed and values.dtype == np.float32 else values).astype(np.float64)
