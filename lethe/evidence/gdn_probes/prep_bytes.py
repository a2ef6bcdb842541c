"""`prep` without arithmetic: the copies of the inputs in the order of its phases, and stores of that size."""

import cutlass
from cutlass import cute, memory

from lethe.evidence.gdn_probes import variants
from lethe.kernels.gdn.sm90 import prep
from lethe.kernels.gdn.sm90.prep_chunk import SQUARE, THREADS, Place
from lethe.kernels.gdn.sm90.prep_memory import CHUNK, Rows, locate

Int32, Int64 = cutlass.Int32, cutlass.Int64
VARIANTS = variants(
    "prep_bytes", [v for v in prep.VARIANTS if v.options["adjoint"] and not v.options["packed"]]
)


def kernel(**options) -> "Bytes":
    """The probe of one variant."""
    return Bytes(**options)


class Bytes(prep.Prep):
    """What is stored is what happens to stand in a tile of that size."""

    @cute.kernel
    def kernel(self, inputs: tuple, cu_seqlens: cute.Tensor, outputs: tuple, scale: cutlass.Float32):
        head, slot, _ = cute.arch.block_idx()
        heads = Int32(inputs[0].shape[2])
        first, rows = locate(Int32(inputs[0].shape[1]), slot)
        base = memory.SmemAllocator().allocate(self.bytes, 1024)
        if rows > 0:
            where = (first, cutlass.min(rows, Int32(CHUNK)), head, slot)
            move(Place(self, base, where, heads), inputs, outputs)


def move(place: Place, inputs: tuple, outputs: tuple) -> None:
    """q, k, b, g; dO, v, w; then everything out."""
    of, at, (q, k, v, g, b, w, do), (Kt, W, U, P, _, A, T, *_) = place.of, place.at, inputs, outputs
    erases, square = of.erase != "none", Rows(place.thread, CHUNK, THREADS)
    for name, tensor in [("Q", q), ("K", k)] + [("B", b)] * (of.erase == "channel"):
        place.load(place.keys, at[name], tensor)
    if of.gate == "channel":
        place.load(Rows(place.thread, 2 * of.dk, THREADS), at["G"], g)
    arrived()
    place.load(place.values, at["DO"], do)
    place.load(place.values, at["G"], v)
    if of.write == "channel":
        place.load(place.values, at["G"] + 128 * of.dv, w)
    place.keys.store(place.target(Kt, 128 * of.dk), at["K"])
    if erases:
        place.keys.store(place.target(W, 128 * of.dk), at["Q"])
    arrived()
    square.store(place.target(A, SQUARE), at["K"])
    if erases:
        square.store(place.target(T, SQUARE), at["K"])
    for half, name in enumerate("QK"):
        place.keys.store(place.target(P, 2 * of.dk * of.dv) + Int64(half * of.dk * of.dv), at[name])
    place.values.store(place.target(U, 128 * of.dv), at["G"])


def arrived() -> None:
    """All copies, of all threads."""
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
