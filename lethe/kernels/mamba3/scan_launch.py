"""Launches of the scan kernels: tiles, buffers, the order of the passes. Tensors in, tensors out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from lethe.kernels.mamba3 import scan_backward, scan_ends, scan_forward, states
from lethe.kernels.mamba3.checks import adjacent


@dataclass(frozen=True)
class Operands:
    """The tensors of one scan as the operators receive them; None leaves an option out.

    u, dt, z, weight, skip [B, L, D]; A [D, N]; B, C [B, L, N]; D, dt_bias, conv_bias [D]; conv_weight
    [D, K]; initial_state [B, D, N].
    """

    u: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    dt_bias: Tensor | None
    weight: Tensor | None
    skip: Tensor | None
    conv_weight: Tensor | None
    conv_bias: Tensor | None
    initial_state: Tensor | None
    softplus: bool

    def dense(self) -> Operands:
        """The same with every last axis adjacent; what is indexed without strides is made contiguous."""

        def whole(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.contiguous()

        return Operands(
            adjacent(self.u), adjacent(self.dt), self.A.t().contiguous(), adjacent(self.B), adjacent(self.C),
            whole(self.D), None if self.z is None else adjacent(self.z), whole(self.dt_bias),
            whole(self.weight),
            whole(self.skip), whole(self.conv_weight), whole(self.conv_bias),
            None if self.initial_state is None else self.initial_state.float().transpose(1, 2).contiguous(),
            self.softplus,
        )  # fmt: skip

    @property
    def taps(self) -> int:
        return 0 if self.conv_weight is None else self.conv_weight.shape[1]


def rows(t: Tensor) -> tuple[int, int]:
    """Strides of the batch and of the token."""
    return t.stride(0), t.stride(1)


def state_block(n: int) -> int:
    """The next power of two."""
    return int(triton.next_power_of_2(n))


@dataclass(frozen=True)
class Tile:
    """Tile of a kernel: `lanes` segments of `rows` tokens each, `channels` channels."""

    rows: int
    lanes: int
    channels: int
    warps: int = 1
    registers: int | None = None
    """Most registers a thread may use; None leaves it to the compiler."""

    @property
    def tokens(self) -> int:
        """Tokens of a segment: those of a backward chunk, or a step of a forward one."""
        return self.rows * self.lanes

    def options(self) -> dict[str, Any]:
        """Launch arguments of a kernel with this tile."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        shape = {"ROWS": self.rows, "LANES": self.lanes, "BLOCK": self.channels}
        return {**shape, "num_warps": self.warps, **limit}


WIDE_TILE = Tile(8, 1, 64)
"""Forward, where its programs fill a device: no lanes to join, and each B and C serves two channels."""

NARROW_TILE = Tile(8, 4, 16)
"""Forward, elsewhere: the same elements in four times as many programs. `tune` times others."""

SERIAL_TILE = Tile(16, 4, 16)
"""Forward without chunks: half the steps through the sequence. On an H200 a third faster than the narrow."""

WIDE_PROGRAMS = 1024
"""Programs of the wide tile that fill a device: eight for each of 128 multiprocessors. An estimate."""

BACKWARD_TILE = Tile(8, 4, 16)
"""Chunks of 32 tokens. On an H200 no limit of registers was faster than 200 or 168; `tune` times others."""


def serial_tiles(batch: int, width: int) -> int:
    """Programs that a serial scan of this shape launches, with the narrow tile."""
    return batch * triton.cdiv(width, NARROW_TILE.channels)


def forward_tile(batch: int, width: int, chunks: int) -> Tile:
    """The forward tile for so many chunks."""
    if chunks == 1:
        return SERIAL_TILE
    wide = batch * triton.cdiv(width, WIDE_TILE.channels) * chunks >= WIDE_PROGRAMS
    return WIDE_TILE if wide else NARROW_TILE


def shortened(tile: Tile, tokens: int) -> Tile:
    """`tile` with no more rows than so many tokens need: a power of two, or what `tile` has."""
    return replace(tile, rows=min(tile.rows, state_block(triton.cdiv(tokens, tile.lanes))))


def combine(
    local: Tensor,
    total: Tensor,
    rate: Tensor | None,
    begin: Tensor | None,
    *,
    reverse: bool,
    by_row: bool = False,
) -> tuple[Tensor, Tensor]:
    """Entries [B, NC, ...] and the state after all chunks [B, ...].

    `local` is [B, NC, N, D] with total [B, NC, D] and rate [N, D]; or, by row, [B, NC, H, X] with total
    [B, NC, H] a log-decay.
    """
    batch, chunks = local.shape[:2]
    size = local[0, 0].numel()
    entry, end = torch.empty_like(local), torch.empty_like(local[:, 0])
    group = min(64, max(2, state_block(chunks)))
    block = 64 if local.device.type == "cpu" else max(16, 2048 // group)
    states.combine_chunks[(batch, triton.cdiv(size, block))](
        local, total, local if rate is None else rate, local if begin is None else begin, entry, end,
        chunks, total.shape[2], size // total.shape[2], size,
        HAS_RATE=rate is not None, HAS_BEGIN=begin is not None, REVERSE=reverse, BY_ROW=by_row, GROUP=group,
        BLOCK=block, num_warps=4,
    )  # fmt: skip
    return entry, end


def forward(
    o: Operands, chunk: int, tile: Tile | None = None, by_state: bool | None = None
) -> tuple[Tensor, Tensor]:
    """y [B, L, D]; the final state [B, N, D] float32.

    Chunks of `chunk` tokens, rounded up to whole segments of `tile`, run in parallel; `tile` is that of
    `forward_tile` unless given, shortened where a chunk has fewer tokens. With `by_state` B and C are first
    rewritten by state, as float32: two launches that the narrow tile goes without unless told.
    """
    o = o.dense()
    batch, length, width = o.u.shape
    n = o.A.shape[0]
    chunk = min(chunk, length)
    tile = shortened(tile or forward_tile(batch, width, triton.cdiv(length, chunk)), chunk)
    by_state = tile.lanes == 1 if by_state is None else by_state
    segments = triton.cdiv(chunk, tile.tokens)
    chunks = triton.cdiv(length, segments * tile.tokens)
    grid = (batch, triton.cdiv(width, tile.channels), chunks)
    f32: dict[str, Any] = {"dtype": torch.float32, "device": o.u.device}
    flags: dict[str, Any] = {
        "HAS_WEIGHT": o.weight is not None, "SOFTPLUS": o.softplus, "HAS_BIAS": o.dt_bias is not None,
        "HAS_CONV": o.conv_weight is not None,
        "RAGGED": length % (segments * tile.tokens) != 0, **tile.options(),
    }  # fmt: skip
    u, none = o.u, o.u
    Bs, Cs = (_by_state(t, length).transpose(1, 2) if by_state else t for t in (o.B, o.C))
    entry = o.initial_state
    if chunks > 1:
        local = torch.empty(batch, chunks, n, width, **f32)
        total = torch.empty(batch, chunks, width, **f32)
        scan_forward.chunk_state[grid](
            u, o.dt, _or(o.weight, none), o.A, Bs, _or(o.dt_bias, none), _or(o.conv_weight, none),
            _or(o.conv_bias, none), local, total, *rows(u), *rows(o.dt), *Bs.stride(),
            length, segments, chunks, width, n, o.taps, **flags,
        )  # fmt: skip
        entry, _ = combine(local, total, o.A, o.initial_state, reverse=False)
    y = torch.empty(batch, length, width, dtype=u.dtype, device=u.device)
    final = torch.empty(batch, n, width, **f32)
    # The chunks' own sums are no longer needed: the states wait there between two segments.
    carry = local if chunks > 1 else final
    z = _or(o.z, none)
    scan_forward.scan_output[grid](
        u, o.dt, _or(o.weight, none), _or(o.skip, none), z, o.A, Bs, Cs, _or(o.D, none), _or(o.dt_bias, none),
        _or(o.conv_weight, none), _or(o.conv_bias, none), _or(entry, final), carry, y, final,
        *rows(u), *rows(o.dt), *rows(z), *Bs.stride(), *Cs.stride(),
        length, segments, chunks, width, n, o.taps, 0,
        HAS_D=o.D is not None, HAS_Z=o.z is not None, HAS_ENTRY=entry is not None, **flags,
    )  # fmt: skip
    return y, final


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """A pointer that is never read where an option is absent."""
    return stand_in if tensor is None else tensor


def backward(o: Operands, dy: Tensor, dfinal: Tensor | None, tile: Tile | None = None) -> dict[str, Tensor]:
    """Gradients by the names of `Operands`, float32 partial sums already added in a fixed order.

    dfinal [B, N, D] float32 or None; `tile` instead of `BACKWARD_TILE`. The states that its chunks meet are
    computed anew: cheaper than keeping them since the forward pass, whose chunks are others.
    """
    A_dtype, o, dy = o.A.dtype, o.dense(), adjacent(dy)
    batch, length, width = o.u.shape
    n = o.A.shape[0]
    tile = tile or BACKWARD_TILE
    chunks = triton.cdiv(length, tile.tokens)
    blocks = triton.cdiv(width, tile.channels)
    grid = (batch, blocks, chunks)
    fused = o.conv_weight is not None
    f32: dict[str, Any] = {"dtype": torch.float32, "device": o.u.device}
    u, none = o.u, o.u
    z, weight, bias = _or(o.z, none), _or(o.weight, none), _or(o.dt_bias, none)
    conv, conv_bias = _or(o.conv_weight, none), _or(o.conv_bias, none)
    strides = (*rows(dy), *rows(u), *rows(o.dt), *rows(z))
    Bs, Cs = (_by_state(t, chunks * tile.tokens) for t in (o.B, o.C))
    common: dict[str, Any] = {
        "HAS_WEIGHT": o.weight is not None, "SOFTPLUS": o.softplus, "HAS_BIAS": o.dt_bias is not None,
        "HAS_CONV": fused, "HAS_Z": o.z is not None, **tile.options(),
    }  # fmt: skip
    entries, exits = o.initial_state, dfinal
    if chunks > 1:
        local, back = (torch.empty(batch, chunks, n, width, **f32) for _ in range(2))
        total = torch.empty(batch, chunks, width, **f32)
        scan_ends.chunk_ends[grid](
            dy, u, o.dt, weight, z, o.A, Bs, Cs, bias, conv, conv_bias, local, back, total, *strides,
            length, chunks, width, n, o.taps, **common,
        )  # fmt: skip
        entries, _ = combine(local, total, o.A, o.initial_state, reverse=False)
        exits, _ = combine(back, total, o.A, dfinal, reverse=True)
    like: dict[str, Any] = {"device": u.device}
    du = torch.empty(batch, length, width, dtype=torch.float32 if fused else u.dtype, **like)
    ddt = torch.empty(batch, length, width, dtype=o.dt.dtype, **like)
    dz = torch.empty(batch, length, width, dtype=o.z.dtype, **like) if o.z is not None else du
    dweight, dskip = (
        torch.empty(batch, length, width, **f32) if o.weight is not None else du for _ in range(2)
    )
    dA = torch.empty(batch * chunks, n, width, **f32)
    dB, dC = (torch.empty(blocks, batch, n, chunks * tile.tokens, **f32) for _ in range(2))
    dD, dbias = (torch.empty(batch * chunks, width, **f32) for _ in range(2))
    dconv = torch.empty(5 if fused else 0, batch * chunks, width, **f32)
    dbegin = torch.empty(batch, n, width, **f32)
    scan_backward.scan_gradient[grid](
        dy, u, o.dt, weight, _or(o.skip, none), z, o.A, Bs, Cs, _or(o.D, none), bias, conv, conv_bias,
        _or(entries, none), _or(exits, none),
        du, ddt, dweight, dskip, dz, dA, dB, dC, dD, dbias, dconv, dbegin, *strides,
        length, chunks, width, n, o.taps, 0, HAS_D=o.D is not None, HAS_ENTRY=entries is not None,
        HAS_EXIT=exits is not None, RAGGED=length % tile.tokens != 0, **common,
    )  # fmt: skip
    dB, dC = (part.sum(0)[..., :length].transpose(1, 2) for part in (dB, dC))
    g = {
        "u": du, "dt": ddt, "A": dA.sum(0).t().to(A_dtype), "B": dB.to(o.B.dtype),
        "C": dC.to(o.C.dtype), "initial_state": dbegin.transpose(1, 2),
    }  # fmt: skip
    if o.D is not None:
        g["D"] = dD.sum(0).to(o.D.dtype)
    if o.z is not None:
        g["z"] = dz
    if o.dt_bias is not None:
        g["dt_bias"] = dbias.sum(0).to(o.dt_bias.dtype)
    if o.weight is not None:
        g["weight"], g["skip"] = dweight, dskip
    if o.conv_weight is not None and o.conv_bias is not None:
        lags = dconv.sum(1)
        g["conv_weight"] = lags[: o.taps].flip(0).t().to(o.conv_weight.dtype)
        g["conv_bias"] = lags[4].to(o.conv_bias.dtype)
        g["u"] = _input_gradient(du, o.conv_weight, u.dtype)
    return g


def _by_state(t: Tensor, padded: int) -> Tensor:
    """B or C [B, L, N] as float32 [B, N, padded], zero beyond the sequence: a thread reads neighbours."""
    batch, length, n = t.shape
    make = torch.empty if padded == length else torch.zeros
    out = make(batch, n, padded, dtype=torch.float32, device=t.device)
    out[..., :length].copy_(t.transpose(1, 2))
    return out


def _input_gradient(dconv: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    batch, length, width = dconv.shape
    dx = torch.empty(batch, length, width, dtype=dtype, device=dconv.device)
    grid = (batch, triton.cdiv(length, 16), triton.cdiv(width, 64))
    scan_backward.conv_gradient[grid](dconv, weight, dx, length, width, weight.shape[1], ROWS=16, BLOCK=64)
    return dx
