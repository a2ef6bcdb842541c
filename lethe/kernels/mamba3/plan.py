"""Serial or chunk-parallel: one rule, by the number of programs against the number of multiprocessors.

A serial scan runs one program for each tile of channels, which walks through the whole sequence and visits
every token once. Where those programs leave the schedulers idle, it pays to cut the sequence into chunks,
although every token is then visited twice (once for what its chunk adds to the state, once for its output).
With enough programs the serial mode is faster, because it computes each exponential once. Chunks are made as
long as the device can still be filled, since every chunk costs a state in memory. The mode concerns the
forward pass of the selective scan, whose backward pass has chunks of its own, and both passes of the heads.

Measured on an H200 (132 multiprocessors): at the head kernels (MIMO, R = 4, N = 128) 1.9 programs a
multiprocessor are enough (serial forward and backward 8,042 and 62,905 us, chunked 8,956 and 64,873), 1.0 are
not (1,421 and 8,175 against 1,061 and 7,351). At the selective scan chunks were faster at every shape
measured, up to 7.8 programs of 16 channels a multiprocessor (B = 8, L = 2048, D = 2048: 676 against 922 us),
chunks of 32 tokens up to 60 programs a multiprocessor and of 64 from 240 on; longer ones were never faster.
Where serial begins to pay is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """What a kind of kernel needs of a device."""

    starved: float
    """Programs a multiprocessor below which a serial scan leaves it idle."""
    full: int
    """Programs a multiprocessor that the chunk-parallel mode aims for."""
    longest: int
    """Most tokens in a chunk: more do not save anything."""


SCAN = Bounds(starved=16, full=96, longest=64)
"""The selective scan; programs of one warp and 16 channels."""

HEAD = Bounds(starved=1.5, full=16, longest=512)
"""The head kernels; programs of four warps or more. `starved` lies between two measured shapes."""

SHORTEST = 32
"""Fewest tokens in a chunk: fewer do not repay their state."""

MODES = ("auto", "serial", "chunked")


@dataclass(frozen=True)
class Plan:
    """How a scan of a given shape runs."""

    mode: str
    """``serial`` or ``chunked``."""
    chunk: int
    """Tokens a chunk; the whole length in serial mode."""
    chunks: int
    reason: str
    """One sentence for people."""


def choose_plan(
    tiles: int,
    length: int,
    multiprocessors: int,
    *,
    mode: str = "auto",
    chunk: int | None = None,
    bounds: Bounds = SCAN,
) -> Plan:
    """Choose for `tiles` programs of a serial scan (batch times tiles of channels) over `length` tokens.

    `mode` forces the choice, `chunk` the chunk's length; `bounds` are those of the kernels. ValueError for an
    unknown mode or chunk < 1.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; choose one of {', '.join(MODES)}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1")
    wanted = chunk if chunk is not None else _chunk(tiles, length, multiprocessors, bounds)
    chunks = -(-length // wanted)
    ratio = f"{tiles} programs for {multiprocessors} multiprocessors"
    if mode == "serial":
        return Plan("serial", length, 1, f"{ratio}; serial was asked for")
    if mode == "chunked":
        return Plan("chunked", wanted, chunks, f"{ratio}; chunks of {wanted} were asked for")
    if tiles >= bounds.starved * multiprocessors:
        return Plan("serial", length, 1, f"{ratio}: enough to fill the device without chunks")
    if chunks == 1:
        return Plan("serial", length, 1, f"{length} tokens are a single chunk")
    return Plan("chunked", wanted, chunks, f"{ratio}: {chunks} chunks of {wanted} tokens fill the device")


def _chunk(tiles: int, length: int, multiprocessors: int, bounds: Bounds) -> int:
    """The multiple of 32 that comes closest to enough programs, within the bounds."""
    fitting = length * tiles // (bounds.full * multiprocessors)
    return max(SHORTEST, min(bounds.longest, (fitting + 16) // 32 * 32))
