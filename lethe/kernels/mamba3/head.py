"""C4/C3 `head_scan`: Mamba-3's rotated, trapezoidal head scan with its adjoint, SISO and MIMO.

Two custom operators: the data-dependent angles (``lethe::mamba3_angles``) and the scan itself
(``lethe::mamba3_head``), which takes cos and sin. What joins them, lam = sigmoid(trap) and the like on
[B, H, L], is plain torch and differentiated by it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lethe.kernels.mamba3 import head_forward, head_launch
from lethe.kernels.mamba3.checks import (
    check_device,
    check_floats,
    check_runnable,
    check_shape,
    multiprocessors,
)
from lethe.kernels.mamba3.plan import HEAD, Plan, choose_plan

FIELDS = (
    "q", "k", "v", "decay", "gamma", "late", "q_bias", "k_bias", "cos", "sin", "D", "z", "mimo_x", "mimo_z",
    "mimo_o", "initial_state",
)  # fmt: skip
"""Tensor arguments of ``lethe::mamba3_head`` in order; the adjoint returns gradients in the same order."""


@dataclass(frozen=True)
class HeadState:
    """What one segment hands to the next; all float32."""

    theta: Tensor
    """Angles [B, H, S]."""
    S: Tensor
    """State [B, H, P, N]."""
    k: Tensor
    """Last rotated key, bias included [B, H, R, N]."""
    x: Tensor
    """Last projected value [B, H, R, P]."""


@torch.library.custom_op("lethe::mamba3_angles", mutates_args=())
def _angles(angle: Tensor, dt: Tensor, begin: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return head_launch.angle_forward(angle, dt, begin)


@_angles.register_fake
def _(angle, dt, begin):
    batch, length, heads, turns = angle.shape
    cos, sin = (angle.new_empty(batch, length, heads, turns, dtype=torch.float32) for _ in range(2))
    return cos, sin, angle.new_empty(batch, heads, turns, dtype=torch.float32)


@torch.library.custom_op("lethe::mamba3_angles_backward", mutates_args=())
def _angles_backward(
    angle: Tensor, dt: Tensor, cos: Tensor, sin: Tensor, dcos: Tensor, dsin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return head_launch.angle_backward(angle, dt, cos, sin, dcos, dsin)


@_angles_backward.register_fake
def _(angle, dt, cos, sin, dcos, dsin):
    batch, length, heads, turns = angle.shape
    begin = angle.new_empty(batch, heads, turns, dtype=torch.float32)
    return angle.new_empty(angle.shape), dt.new_empty(batch, heads, length), begin


def _save_angles(ctx, inputs, output) -> None:
    angle, dt, begin = inputs
    ctx.save_for_backward(angle, dt, begin, output[0], output[1])


def _angles_adjoint(ctx, dcos, dsin, dend):
    angle, dt, begin, cos, sin = ctx.saved_tensors
    # The last angle shifts every angle before it by the same amount; its gradient joins the last token's.
    at_end = dend[:, None]
    dcos = torch.cat([dcos[:, :-1], dcos[:, -1:] - sin[:, -1:] * at_end], 1)
    dsin = torch.cat([dsin[:, :-1], dsin[:, -1:] + cos[:, -1:] * at_end], 1)
    dangle, ddt, dbegin = _angles_backward(angle, dt, cos, sin, dcos, dsin)
    return dangle, ddt, None if begin is None else dbegin.to(begin.dtype)


_angles.register_autograd(_angles_adjoint, setup_context=_save_angles)


@torch.library.custom_op("lethe::mamba3_head", mutates_args=())
def _head(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, gamma: Tensor, late: Tensor, q_bias: Tensor,
    k_bias: Tensor,
    cos: Tensor, sin: Tensor, D: Tensor | None, z: Tensor | None, mimo_x: Tensor | None,
    mimo_z: Tensor | None,
    mimo_o: Tensor | None, initial_state: Tensor | None, pairwise: bool, chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    operands = head_launch.Operands(
        q,
        k,
        v,
        decay,
        gamma,
        late,
        q_bias,
        k_bias,
        cos,
        sin,
        D,
        z,
        mimo_x,
        mimo_z,
        mimo_o,
        initial_state,
        pairwise,
    )
    return head_launch.forward(operands, chunk)


@_head.register_fake
def _(
    q, k, v, decay, gamma, late, q_bias, k_bias, cos, sin, D, z, mimo_x, mimo_z, mimo_o, initial_state,
    pairwise, chunk,
):  # fmt: skip
    batch, length, heads, width = v.shape
    n = q.shape[4]
    chunks = (length + chunk - 1) // chunk
    entry = (batch, chunks, heads, n, width) if chunks > 1 else (0,)
    f32 = {"dtype": torch.float32}
    return v.new_empty(v.shape), v.new_empty(batch, heads, n, width, **f32), v.new_empty(entry, **f32)


@torch.library.custom_op("lethe::mamba3_head_backward", mutates_args=())
def _head_backward(
    dout: Tensor, dfinal: Tensor, entry: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor,
    gamma: Tensor,
    late: Tensor, q_bias: Tensor, k_bias: Tensor, cos: Tensor, sin: Tensor, D: Tensor | None,
    z: Tensor | None,
    mimo_x: Tensor | None, mimo_z: Tensor | None, mimo_o: Tensor | None, initial_state: Tensor | None,
    pairwise: bool, chunk: int,
) -> list[Tensor]:  # fmt: skip
    operands = head_launch.Operands(
        q,
        k,
        v,
        decay,
        gamma,
        late,
        q_bias,
        k_bias,
        cos,
        sin,
        D,
        z,
        mimo_x,
        mimo_z,
        mimo_o,
        initial_state,
        pairwise,
    )
    g = head_launch.backward(operands, dout, dfinal.contiguous(), entry, chunk)
    if initial_state is not None:
        g["initial_state"] = g["initial_state"].to(initial_state.dtype)
    tensors = [getattr(operands, name) for name in FIELDS]
    return [v.new_empty(0) if t is None else g[n].contiguous() for n, t in zip(FIELDS, tensors, strict=True)]


@_head_backward.register_fake
def _(
    dout, dfinal, entry, q, k, v, decay, gamma, late, q_bias, k_bias, cos, sin, D, z, mimo_x, mimo_z, mimo_o,
    initial_state, pairwise, chunk,
):  # fmt: skip
    tensors = (
        q, k, v, decay, gamma, late, q_bias, k_bias, cos, sin, D, z, mimo_x, mimo_z, mimo_o, initial_state,
    )  # fmt: skip
    return [
        v.new_empty(0) if t is None else torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors
    ]


def _save_head(ctx, inputs, output) -> None:
    *tensors, ctx.pairwise, ctx.chunk = inputs
    ctx.save_for_backward(output[2], *tensors)


def _head_adjoint(ctx, dout, dfinal, _dentry):
    entry, *tensors = ctx.saved_tensors
    found = _head_backward(dout, dfinal, entry, *tensors, ctx.pairwise, ctx.chunk)
    pairs = zip(tensors, found, strict=True)
    return *(None if t is None else d for t, d in pairs), None, None


_head.register_autograd(_head_adjoint, setup_context=_save_head)


def head_plan(v: Tensor, *, mode: str = "auto", chunk: int | None = None) -> Plan:
    """The plan for v [B, L, H, P] on its device."""
    tiles = head_launch.serial_tiles(v.shape[0], v.shape[2], v.shape[3])
    return choose_plan(tiles, v.shape[1], multiprocessors(v), mode=mode, chunk=chunk, bounds=HEAD)


def head_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    adt: Tensor,
    dt: Tensor,
    q_bias: Tensor,
    k_bias: Tensor,
    angle: Tensor,
    *,
    trap: Tensor | None = None,
    D: Tensor | None = None,
    z: Tensor | None = None,
    mimo_x: Tensor | None = None,
    mimo_z: Tensor | None = None,
    mimo_o: Tensor | None = None,
    pairwise: bool = True,
    state: HeadState | None = None,
    mode: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, HeadState]:
    """C4, differentiable (C3): the Mamba-3 head.

    theta_t = theta_{t-1} + pi tanh(angle_t) dt_t; q and k, with their biases, are rotated by it; then
    S_t = e^{adt} S_{t-1} + (1 - lam) dt e^{adt} sum_r x^r_{t-1} k^r_{t-1}' + lam dt sum_r x^r_t k^r_t' and
    out = sum_i mimo_o^i (S q^i + D x^i) silu(z mimo_z^i) with x^r = v mimo_x^r, lam = sigmoid(trap).

    Args:
        q, k: [B, L, R, G, N]; head h reads group h // (H / G). N even.
        v, z: [B, L, H, P]. adt (the log-decay), dt, trap (logits; None is exponential-Euler): [B, H, L].
        q_bias, k_bias: [H, R, N]. angle: [B, L, H, S], S <= N/2; may be expanded over heads. D: [H].
        mimo_x, mimo_z, mimo_o: [H, R, P], all three or none (then R must be 1); mimo_z needs z in use.
        pairwise: rotate (2i, 2i+1), as the official SISO does; else (i, i + N/2), as the official MIMO.
        state: where a previous segment ended. mode, chunk: see `plan`.

    Returns: out [B, L, H, P] in the dtype of v, and the state at the end.

    Raises: TypeError for a dtype, ValueError for a shape, device or mode; both name the argument.
    """
    options = {"trap": trap, "D": D, "z": z, "mimo_x": mimo_x, "mimo_z": mimo_z, "mimo_o": mimo_o}
    _check(q, k, v, adt, dt, q_bias, k_bias, angle, options)
    _check_state(state, q, v, angle)
    dt = dt.float()
    lam = torch.ones_like(dt) if trap is None else torch.sigmoid(trap.float())
    half = dt * (1 - lam)
    late = F.pad(half[..., 1:], (0, 1))
    first = theta0 = None
    if state is not None:
        joined = torch.einsum("bhrp,bhrn->bhpn", state.x.float(), state.k.float())
        first, theta0 = state.S.float() + half[:, :, 0, None, None] * joined, state.theta.float()
    cos, sin, theta = _angles(angle, dt, theta0)
    chosen = head_plan(v, mode=mode, chunk=chunk)
    out, final, _ = _head(
        q, k, v, adt.float(), lam * dt, late, q_bias, k_bias, cos, sin, D, z, mimo_x, mimo_z, mimo_o, first,
        pairwise, chosen.chunk,
    )  # fmt: skip
    x = v[:, -1, :, None].float()
    last = HeadState(
        theta, final.transpose(2, 3), _last_key(k, k_bias, cos, sin, v.shape[2], pairwise),
        x if mimo_x is None else x * mimo_x.float(),
    )  # fmt: skip
    return out, last


def _last_key(k: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, heads: int, pairwise: bool) -> Tensor:
    """The last token's rotated key [B, H, R, N] float32."""
    key = k[:, -1].float().repeat_interleave(heads // k.shape[3], 2).transpose(1, 2) + bias.float()
    half = key.shape[-1] // 2
    pad = (0, half - cos.shape[-1])
    c, s = F.pad(cos[:, -1], pad, value=1.0)[:, :, None], F.pad(sin[:, -1], pad)[:, :, None]
    a, b = (key[..., 0::2], key[..., 1::2]) if pairwise else (key[..., :half], key[..., half:])
    parts = (a * c - b * s, a * s + b * c)
    return torch.stack(parts, -1).flatten(-2) if pairwise else torch.cat(parts, -1)


def _check(
    q: Tensor, k: Tensor, v: Tensor, adt: Tensor, dt: Tensor, q_bias: Tensor, k_bias: Tensor, angle: Tensor,
    options: dict[str, Tensor | None],
) -> None:  # fmt: skip
    named = {"q": q, "k": k, "v": v, "adt": adt, "dt": dt, "q_bias": q_bias, "k_bias": k_bias, "angle": angle}
    everything: dict[str, Tensor | None] = {**named, **options}
    check_floats(**everything)
    if q.dim() != 5 or v.dim() != 4:
        raise ValueError(
            f"q must be [B, L, R, G, N] and v [B, L, H, P]; they are {tuple(q.shape)}, {tuple(v.shape)}"
        )
    batch, length, rank, groups, n = q.shape
    heads, width = v.shape[2:]
    if not (q.numel() and v.numel()):
        raise ValueError(f"q has shape {tuple(q.shape)} and v {tuple(v.shape)}: no axis may be empty")
    if n % 2:
        raise ValueError(f"q has {n} states; a rotation pairs them, so N must be even")
    if heads % groups:
        raise ValueError(f"v has {heads} heads, which the {groups} groups of q do not divide")
    check_shape("k", k, B=batch, L=length, R=rank, G=groups, N=n)
    check_shape("v", v, B=batch, L=length, H=heads, P=width)
    check_shape("z", options["z"], B=batch, L=length, H=heads, P=width)
    for name, tensor in (("adt", adt), ("dt", dt), ("trap", options["trap"])):
        check_shape(name, tensor, B=batch, H=heads, L=length)
    for name, tensor in (("q_bias", q_bias), ("k_bias", k_bias)):
        check_shape(name, tensor, H=heads, R=rank, N=n)
    check_shape("D", options["D"], H=heads)
    check_shape("angle", angle, B=batch, L=length, H=heads, S=angle.shape[-1])
    if not 1 <= angle.shape[-1] <= n // 2:
        raise ValueError(f"angle has {angle.shape[-1]} angles; between 1 and N/2 = {n // 2} fit")
    projections = [name for name in ("mimo_x", "mimo_z", "mimo_o") if options[name] is not None]
    if len(projections) not in (0, 3) or (rank > 1 and not projections):
        raise ValueError(
            f"mimo_x, mimo_z and mimo_o go together and R = {rank} needs them; given: {projections}"
        )
    for name in projections:
        check_shape(name, options[name], H=heads, R=rank, P=width)
    check_device("v", **everything)
    check_runnable("v", v, head_forward.head_output)


def _check_state(state: HeadState | None, q: Tensor, v: Tensor, angle: Tensor) -> None:
    if state is None:
        return
    batch, _, rank, _, n = q.shape
    heads, width = v.shape[2:]
    check_floats(**{f"state.{name}": value for name, value in vars(state).items()})
    check_shape("state.theta", state.theta, B=batch, H=heads, S=angle.shape[-1])
    check_shape("state.S", state.S, B=batch, H=heads, P=width, N=n)
    check_shape("state.k", state.k, B=batch, H=heads, R=rank, N=n)
    check_shape("state.x", state.x, B=batch, H=heads, R=rank, P=width)
