"""C1/C2 `selective_scan` and C5/C6 `fused_block`: checked, differentiable, opaque to torch.compile.

Both are one custom operator with its adjoint (``torch.ops.lethe.mamba_scan``). The exponential-trapezoidal
rule of Mamba-3 is rewritten in front of it: with lam = sigmoid(trap), token t weighs lam_t dt_t plus what
the next token would give it, late_t = dt_{t+1} (1 - lam_{t+1}); y_t must not see that part yet, so the skip
loses late_t (C_t . B_t). With one more token of history the initial state takes the first such term.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lethe.kernels.mamba3 import scan_forward, scan_launch
from lethe.kernels.mamba3.checks import (
    check_device,
    check_floats,
    check_runnable,
    check_shape,
    multiprocessors,
)
from lethe.kernels.mamba3.plan import Plan, choose_plan

MAX_TAPS = 4
"""Width of the causal convolution's window."""

FIELDS = (
    "u", "dt", "A", "B", "C", "D", "z", "dt_bias", "weight", "skip", "conv_weight", "conv_bias",
    "initial_state",
)  # fmt: skip
"""Tensor arguments of the operator in order; the adjoint returns gradients in the same order."""


def scan_plan(u: Tensor, *, mode: str = "auto", chunk: int | None = None) -> Plan:
    """The plan for u [B, L, D] on its device."""
    tiles = scan_launch.serial_tiles(u.shape[0], u.shape[2])
    return choose_plan(tiles, u.shape[1], multiprocessors(u), mode=mode, chunk=chunk)


@torch.library.custom_op("lethe::mamba_scan", mutates_args=())
def _scan(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, weight: Tensor | None, skip: Tensor | None, conv_weight: Tensor | None,
    conv_bias: Tensor | None, initial_state: Tensor | None, softplus: bool, chunk: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    operands = scan_launch.Operands(
        u, dt, A, B, C, D, z, dt_bias, weight, skip, conv_weight, conv_bias, initial_state, softplus
    )
    return scan_launch.forward(operands, chunk)


@_scan.register_fake
def _(u, dt, A, B, C, D, z, dt_bias, weight, skip, conv_weight, conv_bias, initial_state, softplus, chunk):
    batch, length, width = u.shape
    final = (batch, A.shape[1], width)
    return u.new_empty(batch, length, width), u.new_empty(final, dtype=torch.float32)


@torch.library.custom_op("lethe::mamba_scan_backward", mutates_args=())
def _scan_backward(
    dy: Tensor, dfinal: Tensor, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Tensor | None, z: Tensor | None, dt_bias: Tensor | None, weight: Tensor | None, skip: Tensor | None,
    conv_weight: Tensor | None, conv_bias: Tensor | None, initial_state: Tensor | None, softplus: bool,
) -> list[Tensor]:  # fmt: skip
    operands = scan_launch.Operands(
        u, dt, A, B, C, D, z, dt_bias, weight, skip, conv_weight, conv_bias, initial_state, softplus
    )
    g = scan_launch.backward(operands, dy, dfinal.contiguous())
    if initial_state is not None:
        g["initial_state"] = g["initial_state"].to(initial_state.dtype)
    tensors = [getattr(operands, name) for name in FIELDS]
    return [
        _nothing(u) if t is None else g[name].contiguous() for name, t in zip(FIELDS, tensors, strict=True)
    ]


@_scan_backward.register_fake
def _(
    dy, dfinal, u, dt, A, B, C, D, z, dt_bias, weight, skip, conv_weight, conv_bias, initial_state, softplus,
):  # fmt: skip
    tensors = (u, dt, A, B, C, D, z, dt_bias, weight, skip, conv_weight, conv_bias, initial_state)
    return [
        _nothing(u) if t is None else torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors
    ]


def _nothing(u: Tensor) -> Tensor:
    return u.new_empty(0)


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.softplus, _ = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(True)


def _adjoint(ctx, dy, dfinal):
    tensors = ctx.saved_tensors
    found = _scan_backward(dy, dfinal, *tensors, ctx.softplus)
    pairs = zip(tensors, found, strict=True)
    return *(None if t is None else d for t, d in pairs), None, None


_scan.register_autograd(_adjoint, setup_context=_save)


def _trapezoid(
    u0: tuple[Tensor, Tensor] | None, dt: Tensor, B: Tensor, C: Tensor, trap: Tensor, initial: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Token weights and skips [B, L, D] float32, and the initial state with the last token's late part."""
    lam = torch.sigmoid(trap.float())
    half = dt * (1 - lam)
    late = F.pad(half[:, 1:], (0, 0, 0, 1))
    skip = -late * (B.float() * C.float()).sum(-1, keepdim=True)
    if u0 is not None:
        first = (half[:, 0] * u0[0].float())[..., None] * u0[1].float()[:, None, :]
        initial = first if initial is None else initial.float() + first
    return lam * dt + late, skip, initial


def _check(
    first: str, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, **options: Tensor | None
) -> None:
    """``first``: what the caller names u."""
    named = {first: u, "dt": dt, "A": A, "B": B, "C": C, **options}
    check_floats(**named)
    shapes = f"{tuple(u.shape)} and {tuple(A.shape)}"
    if u.dim() != 3 or A.dim() != 2:
        raise ValueError(f"{first} must be [B, L, D] and A [D, N]; they are {shapes}")
    batch, length, width = u.shape
    n = A.shape[1]
    if not (batch and length and width and n):
        raise ValueError(f"{first} and A have shapes {shapes}: no axis may be empty")
    for name in ("dt", "z", "trap"):
        check_shape(name, named.get(name), B=batch, L=length, D=width)
    check_shape("A", A, D=width, N=n)
    for name in ("B", "C"):
        check_shape(name, named[name], B=batch, L=length, N=n)
    for name in ("D", "dt_bias", "conv_bias"):
        check_shape(name, named.get(name), D=width)
    check_shape("initial_state", named.get("initial_state"), B=batch, D=width, N=n)
    check_shape("previous[0]", named.get("previous[0]"), B=batch, D=width)
    check_shape("previous[1]", named.get("previous[1]"), B=batch, N=n)
    check_device(first, **named)
    check_runnable(first, u, scan_forward.scan_output)


def _run(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, softplus: bool, trap: Tensor | None, conv: tuple[Tensor | None, Tensor | None],
    initial_state: Tensor | None, previous: tuple[Tensor, Tensor] | None, mode: str, chunk: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    weight = skip = None
    if trap is not None:
        dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
        dt, dt_bias, softplus = F.softplus(dt) if softplus else dt, None, False
        weight, skip, initial_state = _trapezoid(previous, dt, B, C, trap, initial_state)
    chosen = scan_plan(u, mode=mode, chunk=chunk)
    y, final = _scan(
        u, dt, A, B, C, D, z, dt_bias, weight, skip, *conv, initial_state, softplus, chosen.chunk
    )
    return y, final.transpose(1, 2)


def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    softplus: bool = False,
    trap: Tensor | None = None,
    initial_state: Tensor | None = None,
    previous: tuple[Tensor, Tensor] | None = None,
    mode: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """C1, differentiable (C2): ``h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t``, ``y_t = C_t . h_t + D u_t``.

    Args:
        u: inputs [B, L, D]; float32, float16 or bfloat16, any strides.
        dt: steps [B, L, D], before `dt_bias` and, with `softplus`, before softplus.
        A: rates [D, N]; a positive rate grows, as the formula says.
        B, C: [B, L, N].
        D, dt_bias: [D]. z: gate [B, L, D]; y is multiplied by silu(z).
        trap: logits [B, L, D] of the exponential-trapezoidal rule; None is exponential-Euler.
        initial_state: [B, D, N]. previous: (u [B, D], B [B, N]) of the token before, for `trap` alone.
        mode: of the forward pass. ``serial``: a program walks through the whole sequence; ``chunked``:
            chunks of `chunk` tokens, rounded up to whole tiles, run in parallel; ``auto``: see `plan`.

    Returns: y [B, L, D] in the dtype of u and the final state [B, D, N] in float32.

    Raises: TypeError for another dtype, ValueError for a shape, device or mode; both name the argument.
    """
    if previous is not None and trap is None:
        raise ValueError("previous is the token before for the trapezoidal rule; it needs trap")
    if previous is not None and len(previous) != 2:
        raise ValueError(f"previous must be (u, B) of the token before; it has {len(previous)} parts")
    before = {} if previous is None else {f"previous[{i}]": x for i, x in enumerate(previous)}
    given = {"D": D, "z": z, "dt_bias": dt_bias, "trap": trap, "initial_state": initial_state, **before}
    _check("u", u, dt, A, B, C, **given)
    conv = (None, None)
    return _run(u, dt, A, B, C, D, z, dt_bias, softplus, trap, conv, initial_state, previous, mode, chunk)


def fused_block(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    dt_bias: Tensor,
    *,
    trap: Tensor | None = None,
    mode: str = "auto",
    chunk: int | None = None,
) -> Tensor:
    """C5, differentiable (C6): causal convolution, SiLU, softplus step, scan, skip and SiLU gate in one pass.

    ``u = silu(conv(x))``, ``dt = softplus(dt + dt_bias)``, result ``(scan(u, dt, A, B, C) + D u) silu(z)``
    [B, L, D]. x, dt, z [B, L, D]; conv_weight [D, K] with K <= 4, its last tap on the current token;
    conv_bias, dt_bias, D [D]; the rest as in `selective_scan`.

    Raises: TypeError for another dtype, ValueError for a shape (the widths of x and conv_weight must agree),
    device or mode; both name the argument.
    """
    check_floats(x=x, conv_weight=conv_weight)
    if x.dim() != 3:
        raise ValueError(f"x must be [B, L, D]; it has shape {tuple(x.shape)}")
    if conv_weight.dim() != 2 or not 1 <= conv_weight.shape[1] <= MAX_TAPS:
        raise ValueError(
            f"conv_weight has shape {tuple(conv_weight.shape)}, expected (D, K) with K <= {MAX_TAPS}"
        )
    if x.shape[-1] != conv_weight.shape[0]:
        raise ValueError(f"x has {x.shape[-1]} channels, conv_weight has {conv_weight.shape[0]}")
    given = {"D": D, "z": z, "dt_bias": dt_bias, "trap": trap}
    _check("x", x, dt, A, B, C, conv_weight=conv_weight, conv_bias=conv_bias, **given)
    conv = (conv_weight, conv_bias)
    return _run(x, dt, A, B, C, D, z, dt_bias, True, trap, conv, None, None, mode, chunk)[0]
