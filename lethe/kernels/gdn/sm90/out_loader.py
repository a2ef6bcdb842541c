"""The loader warp of `out`: tiles of the next chunk in, gradients of the last one out.

Loads and stores are TMA on ``[tokens, channels, heads]`` views of the inputs and gradients, so a chunk may
begin at any token. A chunk that ends early is stored row by row, since what follows it is another sequence.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90 import parts
from lethe.kernels.gdn.sm90.out_fragments import Int32, asm, choose, copy_out, store_float
from lethe.kernels.gdn.sm90.out_values import arrive

CHUNK = 64
PLACES = {"g": at.SMALL_G, "b": at.SMALL_B, "w": at.SMALL_W}
"""Gates that are one number a head, in shared memory."""


class Tile(NamedTuple):
    """A tile in shared memory (bytes from the base) and the tensor that it is copied from or to."""

    offset: int
    dtype: Any
    rows: int
    columns: int


def by_head(x: cute.Tensor) -> cute.Tensor:
    """[B, L, H, d] as (B L, d, H)."""
    batch, length, heads, d = x.shape
    return cute.make_tensor(
        x.iterator, cute.make_layout((batch * length, d, heads), stride=(heads * d, 1, d))
    )


def by_slot(x: cute.Tensor) -> cute.Tensor:
    """[slots, H, rows, columns] as (rows, columns, slots H)."""
    slots, heads, rows, columns = x.shape
    layout = cute.make_layout((rows, columns, slots * heads), stride=(columns, 1, rows * columns))
    return cute.make_tensor(x.iterator, layout)


def atom(tile: Tile, tensor: cute.Tensor, store: bool = False) -> tuple:
    """(copy atom, tensor of coordinates) of a tile."""
    operation = cpasync.CopyBulkTensorTileS2GOp() if store else cpasync.CopyBulkTensorTileG2SOp()
    layout = at.panels(tile.rows, tile.columns, tile.dtype)
    made = cpasync.make_tiled_tma_atom(operation, tensor, layout, (tile.rows, tile.columns))
    return made[0], made[1]


def bytes_of(tiles: Sequence[Tile]) -> int:
    """What their loads deliver."""
    return sum(t.rows * t.columns * t.dtype.width // 8 for t in tiles)


def views(base: cute.Pointer, tile: Tile, copy: tuple, row, batch) -> tuple:
    """(shared, global) of one tile, whose first row is `row` of head or slot `batch`."""
    layout = at.panels(tile.rows, tile.columns, tile.dtype)
    pointer = cute.recast_ptr(base + tile.offset, layout.inner, tile.dtype)
    moved = cute.domain_offset((row, 0), copy[1][None, None, batch])
    there = cute.local_tile(moved, (tile.rows, tile.columns), (0, 0))
    return parts.partition(copy[0], cute.make_tensor(pointer, layout.outer), there)


def load(base: cute.Pointer, tile: Tile, copy: tuple, row, batch, barrier: cute.Pointer) -> None:
    """Start the load of a tile; its bytes count on the barrier."""
    here, there = views(base, tile, copy, row, batch)
    cute.copy(copy[0], there, here, tma_bar_ptr=barrier)


def announce(base: cute.Pointer, tile: Tile, copy: tuple, row, batch) -> None:
    """Ask for a tile in the L2 cache."""
    cute.prefetch(copy[0], views(base, tile, copy, row, batch)[1])


def load_row(base: cute.Pointer, offset: int, source: cute.Tensor, number, barrier: cute.Pointer) -> None:
    """64 float32, the row of this number of a dense tensor."""
    address = (source.iterator + number * CHUNK).toint()
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], 256, [$2];"
    with cute.arch.elect_one():
        asm(text, "", [(base + offset).toint(), address, barrier.toint()], "rlr", True)


def load_scalars(base: cute.Pointer, barrier: cute.Pointer, names, tensors, start, valid, head) -> None:
    """Gates that are one number a head, zero past the end, to shared memory as float32; arrives once."""
    if not names:
        return
    lane = cute.arch.lane_idx()
    for name, (source, _) in zip(names, tensors, strict=True):
        heads = source.shape[2]
        flat = cute.make_tensor(source.iterator, cute.make_layout((Int32(1) << 30,)))
        for half in range(2):
            token = lane + 32 * half
            row = start + cutlass.min(token, valid - 1)
            value = choose(token < valid, flat[row * heads + head].to(cutlass.Float32), cutlass.Float32(0.0))
            store_float(base.toint() + Int32(PLACES[name]) + token * 4, value)
    cute.arch.sync_warp()
    arrive(barrier)


@cute.jit
def store(
    base: cute.Pointer,
    tiles: cutlass.Constexpr,
    copies: tuple,
    outputs: tuple,
    start: Int32,
    valid: Int32,
    head: Int32,
):
    """Store tiles of a chunk with `valid` tokens, and close the group of their stores."""
    if valid == CHUNK:
        for n in cutlass.range_constexpr(len(tiles)):
            here, there = views(base, tiles[n], copies[n], start, head)
            cute.copy(copies[n][0], here, there)
    else:
        lane = cute.arch.lane_idx()
        for n in cutlass.range_constexpr(len(tiles)):
            tile, output = tiles[n], outputs[n]
            chunks = tile.columns * tile.dtype.width // 128
            per = 128 // tile.dtype.width
            chunk = lane % chunks
            heads = output.shape[2]
            for row in cutlass.range(lane // chunks, valid, 32 // chunks, unroll=1):
                shared = (base + tile.offset).toint() + (chunk // 8) * 8192 + row * 128
                shared = shared + (((chunk % 8) ^ (row & 7)) << 4)
                element = cutlass.Int64((start + row) * heads + head) * tile.columns + chunk * per
                copy_out((output.iterator + element).toint(), shared)
        cute.arch.sync_warp()
        cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.cp_async_bulk_commit_group()
