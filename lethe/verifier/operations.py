"""What each torch operator does to rounding errors: exact, a contraction, a reduction, or elementwise.

The table speaks about operators of the aten level, where every reference ends up,
so that no analysis ever asks for the name of a *problem*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_map


def _names(text: str) -> frozenset[str]:
    """The words of `text`."""
    return frozenset(text.split())


EXACT = _names("""
    view reshape t transpose permute expand slice select squeeze unsqueeze clone copy _to_copy
    as_strided index gather cat stack max min amax amin aminmax relu relu6 clamp clamp_min clamp_max
    maximum minimum fmax fmin neg abs max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool2d adaptive_max_pool3d where flip roll repeat constant_pad_nd reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d fill zero
    zeros ones empty empty_strided full zeros_like ones_like empty_like full_like new_zeros new_ones
    new_empty new_full new_empty_strided eq ne lt le gt ge argmax argmin sort topk kthvalue median
    nanmedian mode cummax cummin triu tril detach alias unbind split split_with_sizes _unsafe_view
    threshold hardtanh sign signbit masked_fill masked_select masked_scatter diagonal unfold lift_fresh
    scalar_tensor _local_scalar_dense rand randn randint bernoulli normal uniform index_select
    index_fill index_copy scatter index_put embedding upsample_nearest1d upsample_nearest2d
    upsample_nearest3d pixel_shuffle pixel_unshuffle isnan isinf isfinite nonzero floor ceil round trunc
    heaviside arange one_hot searchsorted bucketize threshold_backward hardtanh_backward diag_embed
    view_as_real view_as_complex _reshape_alias nan_to_num channel_shuffle equal item real imag _conj
    resize set im2col col2im narrow select_backward slice_backward select_scatter slice_scatter
    diagonal_scatter as_strided_scatter unsafe_split unsafe_split_with_sizes eye sgn rand_like
    randn_like conj_physical resolve_conj convert_element_type device_put unfold_backward
    diagonal_backward take view_copy
""")
"""Operators whose floating results are copies or selections of their operands: no rounding.
``index_put`` and ``scatter`` count as exact when they do not accumulate."""

STEPS = frozenset({"round", "floor", "ceil", "trunc"})
"""Operators that jump where their operand is a whole number or a tie."""

CRISP = frozenset({"add", "sub", "rsub", "mul", "neg", "div"})
"""Operators whose result, where it is representable, every faithful spelling gives to the bit (a division by
a power of two only)."""

SELECTING = _names("""
    max min amax amin aminmax maximum minimum fmax fmin argmax argmin sort topk kthvalue median
    nanmedian mode cummax cummin max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d
    adaptive_max_pool3d
""")
"""Operators that pick elements by comparing values."""

CONTRACTIONS = _names("""
    mm bmm mv dot vdot addmm baddbmm addmv addbmm addr convolution convolution_overrideable
    mkldnn_convolution _convolution cudnn_convolution cudnn_convolution_transpose miopen_convolution
    _trilinear linear
""")
"""Sums of products over a contracted index."""

CONVOLUTIONS = frozenset(name for name in CONTRACTIONS if "convolution" in name)

ADDING = _names("""
    sum nansum mean cumsum avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
    scatter_add index_add scatter_reduce index_reduce trace _embedding_bag upsample_linear1d
    upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d avg_pool2d_backward avg_pool3d_backward
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward embedding_dense_backward upsample_nearest2d_backward
    upsample_bilinear2d_backward
""")
"""Operators that are linear in their first floating operand and add several of its elements up."""

MULTIPLYING = frozenset({"prod", "cumprod", "logcumsumexp"})
"""Chains in which every step rounds once; the relative error grows with the number of steps."""

TRANSFORMS = frozenset({"_fft_r2c", "_fft_c2c", "_fft_c2r"})

ELEMENTARY = _names("""
    add sub rsub mul neg square pow addcmul lerp
""")
"""Elementwise operators of which sums of products consist."""

CANCELLING = frozenset({"expm1", "log1p", "tanh", "sinh", "log_sigmoid", "erf"})
"""Functions that vanish at zero although their common spellings (exp(x) - 1, log(1 + x), 2 sigmoid(2x) - 1,
the rational erf of device libraries) subtract numbers near 1: such a spelling errs by u in absolute terms
(fairness rule 38)."""

MAX_DECOMPOSITION_DEPTH = 6
"""Decompositions within decompositions that are followed before an operator is taken as it is."""

_ALIASES = {"absolute": "abs", "negative": "neg", "multiply": "mul", "subtract": "sub"}

_DECOMPOSED = _names("""
    native_layer_norm native_group_norm gelu _softmax _log_softmax _safe_softmax silu mish softplus elu
    selu celu hardswish hardsigmoid logsumexp native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update smooth_l1_loss
    huber_loss mse_loss binary_cross_entropy binary_cross_entropy_with_logits nll_loss_forward
    nll_loss2d_forward soft_margin_loss var_mean var std std_mean log_sigmoid_forward addcmul addcdiv
    lerp glu logaddexp logaddexp2 linalg_vector_norm norm _fused_rms_norm rms_norm logit xlogy
    special_xlog1py frobenius_norm cdist _euclidean_dist dist renorm native_layer_norm_backward
    native_group_norm_backward native_batch_norm_backward batch_norm_backward _fused_rms_norm_backward
    _softmax_backward_data _log_softmax_backward_data gelu_backward silu_backward mish_backward
    softplus_backward elu_backward hardswish_backward hardsigmoid_backward leaky_relu_backward
    sigmoid_backward tanh_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward
    nll_loss_backward nll_loss2d_backward binary_cross_entropy_backward log_sigmoid_backward
    glu_backward logit_backward _prelu_kernel_backward
""")


def _overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name, None)
    return [] if packet is None else [getattr(packet, o) for o in packet.overloads()]


def _variance(x: Tensor, dims: list[int] | None, correction: float = 1, **_: Any) -> Tensor:
    """Two-pass variance over `dims`; the primitive that torch's own decompositions of norms end in."""
    axes = list(range(x.dim())) if dims is None else list(dims)
    count = math.prod(x.shape[d] for d in axes)
    centred = x - x.mean(axes, keepdim=True)
    return (centred * centred).sum(axes) / max(0.0, count - correction)


def _distances(a: Tensor, b: Tensor, p: float, *_: Any) -> Tensor:
    """Pairwise p-norm distances (..., m, n) of the rows of (..., m, d) and (..., n, d)."""
    return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), ord=p, dim=-1)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Composite operators (softmax, norms, GELU...) and the torch code that spells each out in simpler
    ones."""
    found = {
        f: decomposition_table[f] for n in _DECOMPOSED for f in _overloads(n) if f in decomposition_table
    }
    found[torch.ops.prims.var.default] = _variance
    found[torch.ops.aten._cdist_forward.default] = _distances
    return found


@cache
def kind_of(func: Any) -> tuple[str, str]:
    """``(name, kind)`` of an aten overload; the name without the in-place underscore.

    kind is ``"exact"``, ``"contraction"``, ``"adding"``, ``"multiplying"``, ``"transform"``,
    ``"backward"`` (of a convolution) or ``"elementwise"``.
    """
    name = func.overloadpacket.__name__
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    name = _ALIASES.get(name, name)
    if name in CONTRACTIONS:
        return name, "contraction"
    if name == "convolution_backward":
        return name, "backward"
    if name in ADDING:
        return name, "adding"
    if name in MULTIPLYING:
        return name, "multiplying"
    if name in TRANSFORMS:
        return name, "transform"
    if name in EXACT or func.is_view:
        return name, "exact"
    return name, "elementwise"


def accumulates(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """True for ``index_put(..., accumulate=True)`` and its kin, which add although they are listed as
    exact."""
    return name == "index_put" and bool(kwargs.get("accumulate", args[3] if len(args) > 3 else False))


def whole_power(name: str, args: Any) -> bool:
    """True unless this is ``pow`` with an exponent that is no positive integer."""
    if name != "pow":
        return True
    exponent = args[1]
    return not isinstance(exponent, Tensor) and float(exponent).is_integer() and float(exponent) > 0


def is_scaling(name: str, args: Any) -> bool:
    """True for a division by a number, which is a product with its reciprocal."""
    return name == "div" and not (isinstance(args[1], Tensor) and args[1].dim() > 0)


def lengths(name: str, args: Any, out: Any) -> tuple[int, ...]:
    """How many terms one element of each output of a reducing operator adds (or multiplies) up."""
    first = args[0]
    if name in ("mm", "bmm", "mv", "dot", "vdot", "linear"):
        return (max(1, first.shape[-1]),)
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        return (args[1].shape[-1] * (args[1].shape[0] if name == "addbmm" else 1) + 1,)
    if name in CONVOLUTIONS:
        weight = args[1]
        transposed = len(args) > 6 and args[6] is True
        groups = args[8] if len(args) > 8 and isinstance(args[8], int) else 1
        channels = weight.shape[0] // groups if transposed else weight.shape[1]
        return (channels * math.prod(weight.shape[2:]) + 1,)
    if name == "convolution_backward":
        grad, _, weight = args[:3]
        taps, pixels = math.prod(weight.shape[2:]), grad.shape[0] * math.prod(grad.shape[2:])
        return (max(1, weight.shape[0] * taps), max(1, pixels), max(1, pixels))
    if name in ("cumsum", "cumprod", "logcumsumexp"):
        return (first.shape[args[1]] if first.dim() else 1,)
    if name.startswith("_fft"):
        return (math.prod(first.shape[d] for d in args[1]),)
    if name in ("scatter_add", "index_add", "scatter_reduce", "index_reduce", "index_put"):
        return (
            max(
                2,
                math.ceil(args[-1].numel() / max(1, first.numel())) + 1
                if isinstance(args[-1], Tensor)
                else 2,
            ),
        )
    if name == "_embedding_bag":
        return (max(1, args[1].numel() // max(1, out[0].shape[0])),)
    result = out if isinstance(out, Tensor) else out[0]
    if name.startswith(("upsample", "_upsample")):
        return (16,)
    if name in ("avg_pool1d", "avg_pool2d", "avg_pool3d"):
        return (math.prod(args[1]) if len(args[1]) > 1 else args[1][0] ** (3 if name.endswith("3d") else 2),)
    return (max(1, first.numel() // max(1, result.numel())),)


def mapped(func: Any, args: Any, kwargs: dict[str, Any], f: Callable[[Tensor], Tensor]) -> Any:
    """`func` on its operands with `f` applied to the wide floating ones."""

    def g(x: Any) -> Any:
        return f(x) if isinstance(x, Tensor) and x.dtype in (torch.float64, torch.complex128) else x

    return func(*tree_map(g, args), **tree_map(g, kwargs))


def _squared(t: Tensor) -> Tensor:
    """The squared magnitude of each element."""
    return t.abs().square() if t.is_complex() else t.square()


@dataclass(frozen=True)
class Rounding:
    """How one kind of rounding error enters a sum of `n` terms: ``factor(n) * u * scale``."""

    growth: str
    """``"random"``: sqrt(n) times the sum of absolute terms.
    ``"rss"``: sqrt(n) times (root sum square of the terms + |result|), which partial sums of exchangeable
    terms obey. ``"auto"``: random, and from `LARGE_SUM` terms on rss.
    ``"worst"``: max(sqrt(n), n / `WORST_SHARE`) times the sum of absolute terms: with the band's own
    multiplier no order of summation exceeds it."""

    def factor(self, n: int) -> float:
        return max(math.sqrt(n), n / WORST_SHARE) if self.growth == "worst" else math.sqrt(n)

    def squares(self, n: int) -> bool:
        return self.growth == "rss" or (self.growth == "auto" and n >= LARGE_SUM)


WORST_SHARE = 8.0
"""Half of the elementwise multiplier 16: 16 x 0.89 (mean largest of 8 draws) x n / 8 = 1.8 n exceeds n, the
worst case of any order."""

LARGE_SUM = 1024
"""Terms from which the root-sum-square form replaces the absolute sum on random draws. The absolute
form is sqrt(n)/1.25 times wider there (25 x at 1,024): enough to hide TF32 (2^13 u) from n of about 65,536 on
with c = 16, while below 1,024 the two differ by less than the margin c already grants."""


def sum_scale(
    func: Any, name: str, args: Any, kwargs: dict[str, Any], out: Tensor, rounding: Rounding, n: int
) -> Tensor:
    """The magnitude that one accumulation error of this operator is relative to, per output element."""
    if not rounding.squares(n):
        return mapped(func, args, kwargs, torch.abs)
    squares = mapped(func, args, kwargs, _squared)
    if name in (
        "mean",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
    ):
        squares = squares / n
    return squares.clamp_min_(0).sqrt_() + out.abs()
