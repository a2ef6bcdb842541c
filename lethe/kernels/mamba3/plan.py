"""Serial or chunk-parallel: one rule, by the number of programs against the number of multiprocessors.

A serial scan runs one program for each tile of channels, whatever the length. Where those programs leave the
schedulers idle, it pays to cut the sequence into chunks, although every token is then visited twice (once
for what its chunk adds to the state, once for its output). With enough programs the serial mode is faster,
because it computes each exponential once. Chunks are made as long as the device can still be filled, since
every chunk costs a state in memory.

Where the two meet depends on the kernel, so a caller may name its own bound. Measured on an H200 (132
multiprocessors): at the head kernels (MIMO, R = 4, N = 128) 1.9 programs a multiprocessor are enough (serial
forward and backward 8,042 and 62,905 us, chunked 8,956 and 64,873), 1.0 are not (1,421 and 8,175 against
1,061 and 7,351). At the selective scan, chunks were faster at every measured shape, up to 3.9 programs of 32
channels a multiprocessor (B = 8, L = 2048, D = 2048: 907 against 1,860 us).
"""

from __future__ import annotations

from dataclasses import dataclass

STARVED = 8.0
"""Programs a multiprocessor below which a serial selective scan leaves it idle: an estimate, see above."""

HEAD_STARVED = 1.5
"""The same of the head kernels, whose programs have four warps or more: between two measured shapes."""

FULL = 16
"""Programs a multiprocessor (one warp each) that the chunk-parallel mode aims for."""

SHORTEST, LONGEST = 32, 512
"""Tokens in a chunk: fewer do not repay their state, more do not save anything."""

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
    starved: float = STARVED,
) -> Plan:
    """Choose for `tiles` programs of a serial scan (batch times tiles of channels) over `length` tokens.

    `mode` forces the choice, `chunk` the chunk's length; `starved` is the number of programs a
    multiprocessor below which a serial scan is cut. ValueError for an unknown mode or chunk < 1.
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; choose one of {', '.join(MODES)}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; it must be at least 1")
    wanted = chunk if chunk is not None else _chunk(tiles, length, multiprocessors)
    chunks = -(-length // wanted)
    ratio = f"{tiles} programs for {multiprocessors} multiprocessors"
    if mode == "serial":
        return Plan("serial", length, 1, f"{ratio}; serial was asked for")
    if mode == "chunked":
        return Plan("chunked", wanted, chunks, f"{ratio}; chunks of {wanted} were asked for")
    if tiles >= starved * multiprocessors:
        return Plan("serial", length, 1, f"{ratio}: enough to fill the device without chunks")
    if chunks == 1:
        return Plan("serial", length, 1, f"{length} tokens are a single chunk")
    return Plan("chunked", wanted, chunks, f"{ratio}: {chunks} chunks of {wanted} tokens fill the device")


def _chunk(tiles: int, length: int, multiprocessors: int) -> int:
    """The multiple of 32 that comes closest to FULL programs a multiprocessor, within the bounds."""
    fitting = length * tiles // (FULL * multiprocessors)
    return max(SHORTEST, min(LONGEST, (fitting + 16) // 32 * 32))
