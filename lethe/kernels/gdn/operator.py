"""`gated_delta_rule`: checked, dispatched, differentiable once, opaque to torch.compile.

Forward and backward are the custom operators ``lethe::gated_delta_rule`` and
``lethe::gated_delta_rule_backward``; the backend is an argument of both. It is chosen before they are called,
and where torch.compile traces the call by the operators themselves, so that no compiler has to read how.
Both compute in the precision that they promise also within autocast.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lethe.kernels.gdn import dispatch
from lethe.kernels.gdn.checks import TENSORS, Arguments, check, check_cuts, contiguous
from lethe.kernels.gdn.chunks import CHUNK, slot_count
from lethe.kernels.gdn.dispatch import MODES, Choice


@torch.library.custom_op("lethe::gated_delta_rule", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, b: Tensor | None, w: Tensor | None,
    initial_state: Tensor | None, cu_seqlens: Tensor | None, scale: float, backend: str, save: bool,
    wide: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """o is in the dtype of v or, if `wide`, in that of the sums: torch then rounds it nowhere."""
    a = contiguous(Arguments(q, k, v, g, b, w, initial_state, cu_seqlens, scale))
    backend = dispatch.settled(a, backend)
    if wide and backend == "torch":
        a = replace(a, v=a.v.to(a.compute_dtype))
    with _no_autocast(a):
        o, final, saved = dispatch.module(backend).forward(a, save)
    return o.to(a.compute_dtype) if wide else o, final, *saved


@_forward.register_fake
def _(q, k, v, g, b, w, initial_state, cu_seqlens, scale, backend, save, wide=False):
    a = Arguments(q, k, v, g, b, w, initial_state, cu_seqlens, scale)
    compute, backend = a.compute_dtype, dispatch.settled(a, backend)
    saved = [
        q.new_empty(shape if save else (0,), dtype=dtype if save or backend == "torch" else None)
        for shape, dtype in _kept(a, backend)
    ]
    o = torch.empty(v.shape, dtype=compute if wide else v.dtype, device=v.device)
    return o, q.new_empty(a.state_shape, dtype=compute), *saved


def _no_autocast(a: Arguments) -> torch.autocast:
    """A backend computes in the dtypes that it says, whatever surrounds the call."""
    return torch.autocast(a.q.device.type, enabled=False)


def _kept(a: Arguments, backend: str) -> list[tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of what the forward pass of a backend (a settled one) saves: three tensors, whose
    meaning is its own."""
    cuts, (_, heads, dk, dv) = a.cu_seqlens, a.state_shape
    slots = slot_count(a.q.shape[0], a.q.shape[1], None if cuts is None else cuts.shape[0] - 1)
    if backend != "torch":
        powers, states = (slots, heads, 2), (slots, heads, dv, dk)
        return [(powers, torch.int32), ((0,), None), (states, torch.float16)]
    square = (slots, heads, CHUNK, CHUNK)
    shapes = (square, (0,) if a.b is None else square, (slots, heads, dk, dv))
    return [(shape, a.compute_dtype) for shape in shapes]


@torch.library.custom_op("lethe::gated_delta_rule_backward", mutates_args=())
def _backward(
    do: Tensor, dfinal: Tensor, A: Tensor, T: Tensor, S: Tensor, q: Tensor, k: Tensor, v: Tensor,
    g: Tensor | None, b: Tensor | None, w: Tensor | None, initial_state: Tensor | None,
    cu_seqlens: Tensor | None, scale: float, backend: str,
) -> list[Tensor]:  # fmt: skip
    a = contiguous(Arguments(q, k, v, g, b, w, initial_state, cu_seqlens, scale))
    backend = dispatch.settled(a, backend)
    do = do if backend == "torch" else do.to(a.v.dtype)
    with _no_autocast(a):
        found = dispatch.module(backend).backward(a, do.contiguous(), dfinal.contiguous(), (A, T, S))
    return [found[name].contiguous() if name in found else q.new_empty(0) for name in TENSORS[:-1]]


@_backward.register_fake
def _(do, dfinal, A, T, S, q, k, v, g, b, w, initial_state, cu_seqlens, scale, backend):
    tensors = (q, k, v, g, b, w, initial_state)
    return [
        q.new_empty(0) if t is None else torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors
    ]


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.backend, _, _ = inputs
    ctx.save_for_backward(*output[2:], *tensors)
    ctx.set_materialize_grads(True)


def _adjoint(ctx, do, dfinal, *_of_saved):
    _refuse_tangents((do, dfinal))
    A, T, S, *tensors = ctx.saved_tensors
    found = _backward(do, dfinal, A, T, S, *tensors, ctx.scale, ctx.backend)
    pairs = zip(tensors[:-1], found, strict=True)
    return *(None if t is None else d for t, d in pairs), None, None, None, None, None


def _no_second(ctx, *_grads):
    raise NotImplementedError(
        "gated_delta_rule can be differentiated once; its gradients have no derivative (create_graph=True)"
    )


def _refuse_tangents(tensors: Iterable[Tensor | None]) -> None:
    """torch would drop the tangents in silence: no custom operator can give it a rule for them."""
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError(
            "gated_delta_rule has no forward-mode derivative (torch.func.jvp, jacfwd, forward_ad)"
        )


_forward.register_autograd(_adjoint, setup_context=_save)
_backward.register_autograd(_no_second)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    w: Tensor | None = None,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    mode: str = "recompute",
) -> tuple[Tensor, Tensor | None]:
    """``S_t = (I - k_t (b_t*k_t)^T) Diag(e^{g_t}) S_{t-1} + k_t (w_t*v_t)^T``, ``o_t = scale S_t^T q_t``.

    Args:
        q, k: [B, L, H, dk]; v: [B, L, H, dv]; one dtype, bfloat16, float16, float32 or float64. No axis may
            be empty: B = 0 and L = 0 are refused. Keys are taken as they are: normalise them first. With beta
            one number a head, 0 <= beta k.k <= 2 and g <= 0 a step never amplifies the state, it only adds
            what it writes; with a beta of one number a channel no such bound holds.
        g: natural-log decay, at most 0, [B, L, H, dk] or [B, L, H], float32 (float64 with float64); None is
            0. In torch any decay is exact to rounding, and g = -inf is a decay to zero. The native kernels
            subtract float32 sums of g within a chunk of 64 tokens: a decay is off by about 2^-24 of the sum
            of |g| over its chunk up to there (6e-4 where that is 1e4; derived, not measured), and g = -inf
            is not for them.
        beta: erase gate b, [B, L, H, dk] or [B, L, H], in the dtype of q or float32; None is 0 (no erasure).
        w: write gate, [B, L, H, dv] or [B, L, H]; None is beta where beta is one number a head, 1 without
            beta.
        scale: a finite number, dk**-0.5 if None. initial_state: [N, H, dk, dv], float32 (float64 with
            float64); None is 0.
        cu_seqlens: [N + 1] int32 or int64, first tokens of N sequences packed in B = 1, then L; some may be
            empty. Without it N = B.
        backend: ``auto``, ``cute`` (native or nothing), ``cute_sm100``, ``cute_sm90`` or ``torch``; see
            `explain`. The native ones round a float32 beta or w to the dtype of q. ``auto`` takes those of
            sm_100a only where ``python -m lethe.kernels.gdn.prove`` has found them right on this GPU.
        mode: ``recompute`` keeps nothing but the inputs for the backward pass, ``save`` also the states that
            enter the chunks (and in torch A and T).

    Returns: o [B, L, H, dv] in the dtype of v; the final states [N, H, dk, dv], or None.

    What is not finite: NaN or inf (but g = -inf) in q spoils o of its token, in another input what follows it
    in its sequence and head, as token by token. But a chunk of 64 tokens is a matrix product, in which
    0 * NaN is NaN: in k, v, g, beta or w it also reaches o at earlier tokens of its chunk, and in the
    gradient of o also the gradients of later ones. It never reaches o of an earlier chunk, another head or
    another sequence.

    Derivatives: once, in reverse mode, by torch.autograd. Forward mode and second derivatives are refused;
    torch.func.grad, vjp and jacrev fail in torch itself, which has no rule for custom operators (torch 2.13).

    Raises: TypeError for a dtype or for what is no tensor; ValueError for a shape, device, mode, or a backend
    that cannot run the call; NotImplementedError for a derivative that there is not. Each names the argument.
    """
    return recurrence(
        q,
        k,
        v,
        g,
        beta,
        w,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        mode=mode,
    )


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    w: Tensor | None = None,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    mode: str = "recompute",
    erase: str = "beta",
    wide: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`gated_delta_rule` for the members: messages call its erase gate `erase`; with `wide` o is in the dtype
    of the sums (float32, float64 with float64), which torch does not round to that of v on the way."""
    _check_mode(mode)
    a = check(q, k, v, g, beta, w, scale, initial_state, cu_seqlens, erase)
    tensors = [getattr(a, name) for name in TENSORS]
    _refuse_tangents(tensors)
    if not torch.compiler.is_compiling():
        choice = dispatch.choose(a, backend)
        dispatch.warn_if_slow(choice, a)
        backend = choice.backend
    o, final, *_ = _forward(*tensors, a.scale, backend, mode == "save", wide)
    return o, final if output_final_state else None


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; choose {' or '.join(MODES)}")


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    w: Tensor | None = None,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    mode: str = "recompute",
) -> Choice:
    """The backend that `gated_delta_rule` would take for these arguments, and why not another; print it.

    What the call refuses is refused here, by the same error. `output_final_state` and `mode` choose nothing.
    """
    _check_mode(mode)
    choice = dispatch.choose(check(q, k, v, g, beta, w, scale, initial_state, cu_seqlens), backend)
    if choice.backend == "torch" and cu_seqlens is not None and not cu_seqlens.is_meta:
        check_cuts(cu_seqlens, q.shape[1])
    return choice
