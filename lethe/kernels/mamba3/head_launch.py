"""Launches of the head-scan kernels: tiles, buffers, the order of the passes. Tensors in, tensors out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from lethe.kernels.mamba3 import angles, head_backward, head_forward
from lethe.kernels.mamba3.checks import adjacent
from lethe.kernels.mamba3.scan_launch import combine

P_BLOCK = 16
"""Channels of a tile: with N = 128 each of 128 threads holds sixteen elements of the state."""

SPAN = 8
"""Tokens between two checkpoints of the backward pass."""

WARPS = 4
ANGLE_TILE = 64


@dataclass(frozen=True)
class Operands:
    """The tensors of one head scan; None leaves an option out.

    q, k [B, L, R, G, N]; v, z [B, L, H, P]; decay (log), gamma, late [B, H, L] float32; biases [H, R, N];
    cos, sin [B, L, H, S] float32; D [H]; mimo_* [H, R, P]; initial_state [B, H, P, N].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    gamma: Tensor
    late: Tensor
    q_bias: Tensor
    k_bias: Tensor
    cos: Tensor
    sin: Tensor
    D: Tensor | None
    z: Tensor | None
    mimo_x: Tensor | None
    mimo_z: Tensor | None
    mimo_o: Tensor | None
    initial_state: Tensor | None
    pairwise: bool

    def dense(self) -> Operands:
        """The same with adjacent last axes; what is indexed without strides is made contiguous."""
        strided: dict[str, Any] = {name: adjacent(getattr(self, name)) for name in ("q", "k", "v")}
        names = ("decay", "gamma", "late", "q_bias", "k_bias", "cos", "sin", "mimo_x", "mimo_z", "mimo_o")
        whole: dict[str, Any] = {n: t.contiguous() for n in names if (t := getattr(self, n)) is not None}
        first = None
        if self.initial_state is not None:
            first = self.initial_state.float().transpose(2, 3).contiguous()
        z = None if self.z is None else adjacent(self.z)
        return replace(self, **strided, **whole, z=z, initial_state=first)

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int, int]:
        """batch, length, heads, heads a group, N, P, angles."""
        batch, length, _, groups, n = self.q.shape
        heads, width = self.v.shape[2:]
        return batch, length, heads, heads // groups, n, width, self.cos.shape[3]

    def flags(self) -> dict[str, Any]:
        """Compile-time arguments that every kernel takes."""
        n = self.q.shape[4]
        return {
            "MIMO": self.mimo_x is not None, "RANK": self.q.shape[2], "STEP": 2 if self.pairwise else 1,
            "OFFSET": 1 if self.pairwise else n // 2, "NB": triton.next_power_of_2(max(2, n // 2)),
            "PB": p_block(self.v.shape[3]), "num_warps": WARPS,
        }  # fmt: skip


def p_block(width: int) -> int:
    """Channels of a tile of a head with `width` channels."""
    return int(min(P_BLOCK, triton.next_power_of_2(max(2, width))))


def serial_tiles(batch: int, heads: int, width: int) -> int:
    """Programs of a serial head scan."""
    return batch * heads * triton.cdiv(width, p_block(width))


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    return stand_in if tensor is None else tensor


def rows(t: Tensor) -> tuple[int, ...]:
    """Strides but the last."""
    return t.stride()[:-1]


def forward(o: Operands, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """out [B, L, H, P]; the final state [B, H, N, P] float32; what each chunk meets [B, NC, H, N, P] or
    empty."""
    o = o.dense()
    batch, length, heads, per_group, n, width, turns = o.sizes
    chunks = triton.cdiv(length, chunk)
    flags = o.flags()
    grid = (batch * chunks, heads, triton.cdiv(width, flags["PB"]))
    f32: dict[str, Any] = {"dtype": torch.float32, "device": o.v.device}
    none, entry = o.v, o.initial_state
    sizes = (length, chunk, chunks, heads, per_group, n, width, turns)
    if chunks > 1:
        local, total = (
            torch.empty(batch, chunks, heads, n, width, **f32),
            torch.empty(batch, chunks, heads, **f32),
        )
        head_forward.head_chunk[grid](
            o.k, o.v, o.decay, o.gamma, o.late, o.k_bias, o.cos, o.sin, _or(o.mimo_x, none), local, total,
            *rows(o.k), *rows(o.v), *sizes, **flags,
        )  # fmt: skip
        entry, _ = combine(local, total, None, o.initial_state, reverse=False, by_row=True)
    out = torch.empty(batch, length, heads, width, dtype=o.v.dtype, device=o.v.device)
    final = torch.empty(batch, heads, n, width, **f32)
    z = _or(o.z, none)
    head_forward.head_output[grid](
        o.q, o.k, o.v, z, o.decay, o.gamma, o.late, o.q_bias, o.k_bias, o.cos, o.sin, _or(o.D, none),
        _or(o.mimo_x, none), _or(o.mimo_z, none), _or(o.mimo_o, none), _or(entry, none), out, final,
        *rows(o.q), *rows(o.k), *rows(o.v), *rows(z), *sizes,
        HAS_D=o.D is not None, HAS_Z=o.z is not None, HAS_ENTRY=entry is not None, **flags,
    )  # fmt: skip
    return out, final, entry if chunks > 1 and entry is not None else torch.empty(0, **f32)


def backward(
    o: Operands, dout: Tensor, dfinal: Tensor | None, entry: Tensor, chunk: int
) -> dict[str, Tensor]:
    """Gradients by the names of `Operands`; dout [B, L, H, P], dfinal [B, H, N, P], entry from `forward`."""
    o, dout = o.dense(), dout.contiguous()
    batch, length, heads, per_group, n, width, turns = o.sizes
    chunks, spans = triton.cdiv(length, chunk), triton.cdiv(chunk, SPAN)
    flags = o.flags()
    rank, blocks = flags["RANK"], triton.cdiv(width, flags["PB"])
    grid = (batch * chunks, heads, blocks)
    f32: dict[str, Any] = {"dtype": torch.float32, "device": o.v.device}
    none, z = o.v, _or(o.z, o.v)
    sizes = (length, chunk, chunks, heads, per_group, n, width, turns)
    exits = dfinal
    if chunks > 1:
        local, total = (
            torch.empty(batch, chunks, heads, n, width, **f32),
            torch.empty(batch, chunks, heads, **f32),
        )
        head_backward.head_adjoint[grid](
            dout, o.q, z, o.decay, o.q_bias, o.cos, o.sin, _or(o.mimo_z, none), _or(o.mimo_o, none), local,
            total,
            *rows(o.q), *rows(z), *sizes, HAS_Z=o.z is not None, **flags,
        )  # fmt: skip
        exits, _ = combine(local, total, None, dfinal, reverse=True, by_row=True)
    entries = entry if chunks > 1 else o.initial_state
    dq, dk = (torch.empty(blocks, batch, length, heads, rank, n, **f32) for _ in range(2))
    dv = torch.empty(batch, length, heads, width, dtype=o.v.dtype, device=o.v.device)
    dz = torch.empty(batch, length, heads, width, dtype=z.dtype, device=o.v.device)
    ddecay, dgamma, dlate = (torch.empty(blocks, batch, heads, length, **f32) for _ in range(3))
    dD = torch.empty(blocks, batch * chunks, heads, **f32)
    dmimo = torch.empty(3, batch * chunks, heads, rank, width, **f32)
    dbegin = torch.empty(batch, heads, n, width, **f32)
    scratch = torch.empty(batch, chunks, spans, heads, n, width, **f32)
    head_backward.head_gradient[grid](
        dout, o.q, o.k, o.v, z, o.decay, o.gamma, o.late, o.q_bias, o.k_bias, o.cos, o.sin, _or(o.D, none),
        _or(o.mimo_x, none), _or(o.mimo_z, none), _or(o.mimo_o, none), _or(entries, none), _or(exits, none),
        scratch, dq, dk, dv, dz, ddecay, dgamma, dlate, dD, dmimo, dbegin,
        *rows(o.q), *rows(o.k), *rows(o.v), *rows(z), length, chunk, chunks, spans, heads, per_group, n,
        width, turns,
        HAS_D=o.D is not None, HAS_Z=o.z is not None, HAS_ENTRY=entries is not None,
        HAS_EXIT=exits is not None,
        SPAN=SPAN, **flags,
    )  # fmt: skip
    g = {"v": dv, "z": dz, "decay": ddecay.sum(0), "gamma": dgamma.sum(0), "late": dlate.sum(0)}
    g["cos"], g["sin"] = torch.empty_like(o.cos), torch.empty_like(o.sin)
    for name, d in (("q", dq), ("k", dk)):
        raw, bias = getattr(o, name), getattr(o, f"{name}_bias")
        turned = torch.empty(batch, length, heads, rank, n, **f32)
        head_backward.rope_gradient[(batch * length, heads)](
            d, raw, bias, o.cos, o.sin, turned, g["cos"], g["sin"], *rows(raw), blocks, length, heads,
            per_group,
            n, turns, ADD=name == "k", RANK=rank, STEP=flags["STEP"], OFFSET=flags["OFFSET"], NB=flags["NB"],
            num_warps=1,
        )  # fmt: skip
        grouped = turned.view(batch, length, heads // per_group, per_group, rank, n).sum(3)
        g[name] = grouped.transpose(2, 3).to(raw.dtype)
        g[f"{name}_bias"] = turned.sum((0, 1)).to(bias.dtype)
    if o.D is not None:
        g["D"] = dD.sum((0, 1)).to(o.D.dtype)
    for index, name in enumerate(("mimo_x", "mimo_z", "mimo_o")):
        parameter = getattr(o, name)
        if parameter is not None:
            g[name] = dmimo[index].sum(0).to(parameter.dtype)
    g["initial_state"] = dbegin.transpose(2, 3)
    return g


def angle_forward(angle: Tensor, dt: Tensor, begin: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """cos, sin [B, L, H, S] and the last angle [B, H, S] float32, from angle [B, L, H, S] and dt [B, H,
    L]."""
    angle = adjacent(angle)
    batch, length, heads, turns = angle.shape
    f32: dict[str, Any] = {"dtype": torch.float32, "device": angle.device}
    cos, sin = (torch.empty(batch, length, heads, turns, **f32) for _ in range(2))
    end = torch.empty(batch, heads, turns, **f32)
    first = begin.contiguous() if begin is not None else angle
    angles.angle_forward[(batch, heads)](
        angle, dt, first, cos, sin, end, *rows(angle), *dt.stride(), length, heads, turns,
        HAS_BEGIN=begin is not None, T=angle_tile(length), SB=triton.next_power_of_2(turns),
    )  # fmt: skip
    return cos, sin, end


def angle_backward(
    angle: Tensor, dt: Tensor, cos: Tensor, sin: Tensor, dcos: Tensor, dsin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dangle [B, L, H, S], ddt [B, H, L] in their dtypes and the gradient of the first angle [B, H, S]."""
    angle = adjacent(angle)
    batch, length, heads, turns = angle.shape
    like: dict[str, Any] = {"device": angle.device}
    dangle = torch.empty(batch, length, heads, turns, dtype=angle.dtype, **like)
    ddt = torch.empty(batch, heads, length, dtype=dt.dtype, **like)
    dbegin = torch.empty(batch, heads, turns, dtype=torch.float32, **like)
    angles.angle_backward[(batch, heads)](
        angle, dt, cos, sin, dcos.contiguous(), dsin.contiguous(), dangle, ddt, dbegin, *rows(angle),
        *dt.stride(), length, heads, turns, T=angle_tile(length), SB=triton.next_power_of_2(turns),
    )  # fmt: skip
    return dangle, ddt, dbegin


def angle_tile(length: int) -> int:
    """Tokens that the angle kernels sum at a time."""
    return int(min(ANGLE_TILE, triton.next_power_of_2(max(2, length))))
