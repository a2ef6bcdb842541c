"""Gradients of gates that are one number a head: sums over channels, and over tokens for dg.

Every warp leaves the sum over its 16 channels, 64 float32, in a tile that its kind of gate does not need;
behind a barrier one warp adds them up in order and stores the result. So the sums are the same bits every
time.
"""

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90.out_fragments import Float32, Int32, choose, load_two, store_if

CHUNK = 64


def leave_sums(place, tile: int, values: list) -> None:
    """Sum a fragment over the warp's channels and put the 64 sums to ``[warp, token]`` at `tile`."""
    up = cute.arch.shuffle_sync_bfly
    for t in range(8):
        for e in range(2):
            total = values[4 * t + e] + values[4 * t + 2 + e]
            for distance in (4, 8, 16):
                total = total + up(total, distance)
            address = place.tokens + Int32(tile + 32 * t + 4 * e) + place.warp * 256
            store_if(place.row == Int32(0), address, total)


def sums(place, tile: int, warps: int) -> list:
    """Of the tokens 2 lane and 2 lane + 1, the sums over these many warps."""
    found = [Float32(0.0)] * 2
    for warp in range(warps):
        pair = load_two(place.base + place.lane * 8, tile + 256 * warp)
        found = [x + y for x, y in zip(found, pair, strict=True)]
    return found


def sums_back(place, pair: list) -> list:
    """Over all tokens from this one on."""
    down = cute.arch.shuffle_sync_down
    total = pair[0] + pair[1]
    for distance in (1, 2, 4, 8, 16):
        other = down(total, distance)
        total = total + choose(place.lane + distance < Int32(32), other, Float32(0.0))
    after = choose(place.lane < Int32(31), down(total, 1), Float32(0.0))
    return [total, after + pair[1]]


@cute.jit
def store_tokens(target: cute.Tensor, lane: Int32, start: Int32, valid: Int32, head: Int32, first, second):
    """The tokens 2 lane and 2 lane + 1 of a chunk to [B, L, H, 1]."""
    heads = target.shape[2]
    row = 2 * lane
    flat = cute.make_tensor(target.iterator, cute.make_layout((cutlass.Int32(1) << 30,)))
    if row < valid:
        flat[(start + row) * heads + head] = first.to(target.element_type)
    if row + 1 < valid:
        flat[(start + row + 1) * heads + head] = second.to(target.element_type)
