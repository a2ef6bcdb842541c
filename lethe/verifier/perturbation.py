"""Operation-level Monte-Carlo arithmetic: a dispatch mode in which every float64 operator rounds at random.

Method: D. S. Parker, *Monte Carlo Arithmetic*, UCLA CSD-970002 (1997); accumulation errors grow as
sqrt(n) u: N. Higham and T. Mary, SIAM J. Sci. Comput. 41 (2019) A2815.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lethe.verifier.modes import EagerMode
from lethe.verifier.operations import (
    CANCELLING,
    CRISP,
    MAX_DECOMPOSITION_DEPTH,
    Rounding,
    accumulates,
    decompositions,
    kind_of,
    lengths,
    mapped,
    sum_scale,
)


def real_view(t: Tensor) -> Tensor:
    """Complex tensors as (..., 2) real ones; others unchanged."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def smallest(dtype: torch.dtype) -> float:
    """Absolute error that an operator of `dtype` may make near zero.

    float32 and bfloat16: 2^-126, the smallest normal, because GPU code may flush subnormals
    (and bfloat16 has float32's exponents). float16: 2^-24, the spacing of its subnormals, which
    hardware keeps. float64: the spacing 2^-1074.
    """
    return {torch.float16: 2.0**-24, torch.float64: 2.0**-1074}.get(dtype, 2.0**-126)


VANISHING = frozenset({"exp", "exp2", "sigmoid", "erfc"})
"""Functions that never reach zero but come below every float: a zero of theirs is an underflow, where a
faithful kernel may return anything up to the smallest normal (a clamped or approximate exponential does)."""

HAS_TRITON = find_spec("triton") is not None
"""torch for CUDA brings it along; without it a GPU's judge takes a dozen launches where one would do."""

COARSE = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Unit roundoffs of the dtypes to which a reference may round inside."""


class Perturb(EagerMode):
    """Every rounding operator errs by up to `unit` in relative terms; sums make an accumulation error too.

    `limit`: results at or beyond it become infinite, as they may in the working precision. `coherent`: all
    elements of a result err alike and by as much as they may, as equal inputs make them. `crisp`: results of
    the `operations.CRISP` operators that this dtype represents are taken to be exact.
    """

    def __init__(
        self,
        unit: float,
        seed: int,
        *,
        tiny: float,
        rounding: Rounding,
        limit: float | None = None,
        coherent: bool = False,
    ) -> None:
        super().__init__()
        self.coherent = coherent
        self.crisp: torch.dtype | None = None
        self.unit, self.tiny, self.limit, self.rounding, self.seed = unit, tiny, limit, rounding, seed
        self.generators: dict[torch.device, torch.Generator] = {}
        self.depth = 0
        self.operations = 0
        self._calls = 0
        self._escaped: dict[torch.device, Tensor] = {}

    @property
    def overflowed(self) -> bool:
        """Whether anything has left the range of the working precision."""
        return any(bool(t) for t in self._escaped.values())

    def _escape(self, t: Tensor, where: Tensor, infinite: Tensor | float) -> Tensor:
        """`t`, but `infinite` at `where`, which is booked as an overflow if it holds anywhere.

        Nothing waits for a GPU to learn whether it does: where many judges share one, a wait costs a turn.
        """
        some = where.any()
        if not where.is_cuda and not bool(some):
            return t
        self._escapes(t.device).logical_or_(some)
        return torch.where(where, infinite, t)

    def _escapes(self, device: torch.device) -> Tensor:
        """int32: 1 once anything on `device` has left the range."""
        if device not in self._escaped:
            self._escaped[device] = torch.zeros((), dtype=torch.int32, device=device)
        return self._escaped[device]

    def uniform(self, t: Tensor) -> Tensor:
        """Errors uniform in [-1, 1), one per element of `t`, float64; a common sign if `coherent`."""
        generator = self.generators.get(t.device)
        if generator is None:
            generator = self.generators[t.device] = torch.Generator(t.device).manual_seed(self.seed)
        if self.coherent:
            sign = torch.rand((), generator=generator, dtype=torch.float64, device=t.device).sub_(0.5).sign()
            return sign.expand(t.shape)
        r = torch.rand(t.shape, generator=generator, dtype=torch.float64, device=t.device)
        return r.mul_(2).sub_(1)

    def perturbed(
        self,
        t: Tensor,
        scale: Tensor | None = None,
        factor: float = 0.0,
        terms: int = 1,
        *,
        vanishing: bool = False,
    ) -> Tensor:
        """`t` with a rounding error and, given `scale`, an accumulation error of ``factor * unit * scale``.

        Near zero a result may be flushed, an error of at most `tiny` and at most itself, so that zeros stay
        zeros unless the function is `vanishing`; the `terms` of a sum may be flushed one by one.
        """
        # plain float64 arithmetic: no mode has a say in it
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            move = self._moved_at_once if t.is_cuda and HAS_TRITON else self._moved
            return move(t, scale, factor, terms, vanishing)

    def jittered(self, t: Tensor) -> Tensor:
        """`t` (float64 or complex128) with one relative rounding error each; zeros and infinities stay."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if t.is_cuda and HAS_TRITON:
                return self._moved_at_once(t, None, 0.0, 1, False, relative=True)
            real = real_view(t)
            moved = torch.where(real.isfinite(), real * (1 + self.unit * self.uniform(real)), real)
            return torch.view_as_complex(moved) if t.is_complex() else moved

    def _moved(self, t: Tensor, scale: Tensor | None, factor: float, terms: int, vanishing: bool) -> Tensor:
        real = real_view(t.detach())
        size = real.abs()
        flushed = torch.full_like(size, self.tiny) if vanishing else size.clamp(max=self.tiny)
        error = (size * self.unit).add_(flushed).mul_(self.uniform(real))
        if scale is not None:
            size = _beside(scale, t).abs()
            underflow = size.clamp(max=self.tiny * terms) if terms > 1 else 0.0
            error.add_((size * (self.unit * factor) + underflow) * self.uniform(real))
        moved = torch.where(real.isfinite(), error.add_(real), real)
        if self.limit is not None:
            beyond = real.isfinite() & (moved.abs() >= self.limit)
            moved = self._escape(moved, beyond, moved.sign() * torch.inf)
        return torch.view_as_complex(moved) if t.is_complex() else moved

    def _moved_at_once(
        self,
        t: Tensor,
        scale: Tensor | None,
        factor: float,
        terms: int,
        vanishing: bool,
        relative: bool = False,
    ) -> Tensor:
        """The same in one launch, with random numbers of its own; `relative`: that error alone, so that
        nothing is flushed and nothing leaves the range."""
        from lethe.verifier.perturbation_kernel import move

        self._calls += 1
        moved = move(
            real_view(t.detach()),
            None if scale is None else _beside(scale, t),
            self._escapes(t.device),
            seed=((self.seed << 24) + self._calls) % (1 << 63),
            unit=self.unit,
            tiny=0.0 if relative else self.tiny,
            grown=self.unit * factor,
            underflow=self.tiny * terms if terms > 1 else 0.0,
            limit=None if relative else self.limit,
            vanishing=vanishing,
            coherent=self.coherent,
        )
        return torch.view_as_complex(moved) if t.is_complex() else moved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        spelled = decompositions().get(func)
        if spelled is not None and self.depth < MAX_DECOMPOSITION_DEPTH:
            self.depth += 1
            try:
                with self:
                    out = spelled(*args, **kwargs)
            finally:
                self.depth -= 1
            if out is not NotImplemented:
                return out
        self.operations += 1
        name, kind = kind_of(func)
        if name == "_to_copy" and kwargs.get("dtype") in COARSE:
            return self._cast(func(*args, **kwargs), kwargs["dtype"])
        if kind == "exact" and not accumulates(name, args, kwargs):
            return func(*args, **kwargs)
        originals = args
        if func._schema.is_mutable:
            originals = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, args)
        out = func(*args, **kwargs)
        if not any(_is_wide(t) for t in tree_leaves(out)):
            return out
        if self.crisp is not None and name in CRISP and out.dtype == torch.float64:
            moved = self._replace(func, out.clone(), [None], [1.0], (1,))
            return out.copy_(torch.where(_exact(name, args, kwargs, out, self.crisp), out, moved))
        if kind == "elementwise":
            return self._replace(func, out, [_spelling(name, out)], [1.0], (1,), vanishing=name in VANISHING)
        counts = lengths(name, args, out)
        scales, factors = self._accumulation(func, name, kind, originals, kwargs, out, counts)
        if self.limit is not None and isinstance(out, Tensor):
            if kind == "multiplying":
                parts = partial_products_escape(name, originals, kwargs, out, self.limit, self.tiny)
                out = self._escape(out, parts, torch.inf)
            if kind in ("contraction", "adding"):
                sums = _partial_sums_escape(func, originals, kwargs, out, self.limit)
                out = out if sums is None else self._escape(out, sums, torch.inf)
            if name == "mean":  # the sum that it divides overflows first
                large = out.isfinite() & (out.abs() >= self.limit / counts[0])
                out = self._escape(out, large, out.sgn() * torch.inf)
        return self._replace(func, out, scales, factors, counts)

    def _cast(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """The reference itself rounds to a coarser dtype; the widened run keeps the size of that error."""
        own, self.unit = self.unit, max(self.unit, COARSE[dtype])
        try:
            return self.perturbed(t) if _is_wide(t) else t
        finally:
            self.unit = own

    def _accumulation(
        self,
        func: Any,
        name: str,
        kind: str,
        args: Any,
        kwargs: dict[str, Any],
        out: Any,
        counts: tuple[int, ...],
    ) -> tuple[list[Tensor | None], list[float]]:
        """Per output: what accumulation errors are relative to, and their growth with the number of terms."""
        factors = [self.rounding.factor(n) for n in counts]
        if kind == "multiplying":
            return [out.abs()], factors
        if kind == "transform":
            size = real_view(out)
            return [torch.full_like(size, float(size.square().mean().sqrt()))], [
                float(counts[0].bit_length())
            ]
        if kind == "backward" or not isinstance(out, Tensor):
            return list(mapped(func, args, kwargs, torch.abs)), factors
        return [sum_scale(func, name, args, kwargs, out, self.rounding, counts[0])], factors

    def _replace(
        self,
        func: Any,
        out: Any,
        scales: list[Tensor | None],
        factors: list[float],
        counts: tuple[int, ...],
        *,
        vanishing: bool = False,
    ) -> Any:
        """Perturb the wide floating results; results written in place are overwritten where they are."""
        in_place = func._schema.is_mutable
        position = iter(range(1 << 30))

        def move(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            i = next(position)
            if not _is_wide(t):
                return t
            known = i < len(scales) and i < len(factors)
            if known:
                moved = self.perturbed(t, scales[i], factors[i], counts[i], vanishing=vanishing)
            else:
                moved = self.perturbed(t)
            return t.copy_(moved) if in_place else moved

        return tree_map(move, out)


def _exact(name: str, args: Any, kwargs: dict[str, Any], out: Tensor, dtype: torch.dtype) -> Tensor:
    """bool: elements at which a `CRISP` operator makes no rounding error in `dtype`."""
    scalars = [x for x in tree_leaves((args, kwargs)) if isinstance(x, float)]
    known = all(float(torch.tensor(x, dtype=torch.float64).to(dtype)) == x for x in scalars)
    exact = (out == out.to(dtype)) & known
    if name == "div":
        divisor = args[1] if isinstance(args[1], Tensor) else torch.tensor(float(args[1]))
        exact = exact & (torch.frexp(divisor.double())[0].abs() == 0.5).to(out.device)
    return exact


def _beside(scale: Tensor, t: Tensor) -> Tensor:
    """The scale of each element of the real view of `t`; a magnitude counts for both parts of a number."""
    real = real_view(scale)
    return real.unsqueeze(-1).expand(*real.shape, 2) if t.is_complex() and real.dim() == t.dim() else real


def _is_wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.float64, torch.complex128)


def _spelling(name: str, out: Any) -> Tensor | None:
    """What a faithful but different spelling of an elementwise function errs relative to, besides its result.

    `CANCELLING` functions: 1. x^p as exp(p log x): |x^p log x^p|, because the exponent is rounded.
    """
    if not isinstance(out, Tensor) or out.dtype != torch.float64:
        return None
    if name in CANCELLING:
        return torch.ones_like(out)
    if name == "pow":
        size = out.abs()
        return torch.where(size > 0, size * size.log().abs(), 0.0)
    return None


def _partial_sums_escape(
    func: Any, args: Any, kwargs: dict[str, Any], out: Tensor, limit: float
) -> Tensor | None:
    """Mask of sums of which some partial sum may leave the range of the working precision: those whose
    absolute terms add up to `limit`. None where nothing comes near it.

    A bound from the largest magnitudes spares the sum of absolute terms where nothing comes near.
    """
    wide = [t for t in tree_leaves((args, kwargs)) if _is_wide(t) and t.numel()]
    peaks = [t.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1.0).to(out.device) for t in wide]
    if not peaks or float(torch.stack(peaks).prod()) * sum(t.numel() for t in wide) < limit:
        return None
    return out.isfinite() & (mapped(func, args, kwargs, torch.abs) >= limit)


def partial_products_escape(
    name: str, args: Any, kwargs: dict[str, Any], out: Tensor, limit: float, tiny: float
) -> Tensor:
    """Mask of products of which some contiguous part leaves the range of the working precision.

    A blocked or tree-shaped product multiplies parts first; a part that underflows or overflows decides the
    result although the whole product is representable, so such elements may not be charged.
    """
    if name not in ("prod", "cumprod"):
        return torch.zeros_like(out, dtype=torch.bool)
    x = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if dim is None:
        x, dim = x.reshape(-1), 0
    logs = x.abs().log().cumsum(dim)
    start = torch.zeros_like(logs.narrow(dim, 0, 1))
    before = torch.cat([start, logs.narrow(dim, 0, logs.shape[dim] - 1)], dim)
    low = (logs - before.cummax(dim).values).cummin(dim).values
    high = (logs - before.cummin(dim).values).cummax(dim).values
    escapes = (low < math.log(tiny)) | (high > math.log(limit))
    escapes = escapes & ~(x == 0).cumsum(dim).bool()
    if name == "prod":
        last = escapes.narrow(dim, escapes.shape[dim] - 1, 1)
        return last.reshape(out.shape)
    return escapes
