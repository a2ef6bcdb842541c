"""Chunks of 64 tokens and the slots that they live in, for batches and for packed sequences alike.

Every chunk-shaped workspace, here and in the native kernels, is ``[slots, H, 64, d]`` (states ``[slots, H,
dk, dv]``). A batch gives its rows ``ceil(L / 64)`` slots each. Packed sequences need no prefix sum over their
chunk counts: sequence n starts at slot ``cu_seqlens[n] // 64 + n``, and since ``ceil(l / 64) <= (a + l) // 64
- a // 64 + 1`` for a sequence of l tokens at a, the next one starts behind its last chunk. So a kernel finds
its sequence by bisection in `cu_seqlens`, ``L // 64 + N`` slots always suffice, whatever the lengths, and
nothing about the launch depends on the values: it can be captured in a CUDA graph. A slot may stay empty.

The last chunk of a sequence is padded with zeros; with g = 0 there the rows of T are those of the identity
and the state passes through, so no stage treats it apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

CHUNK = 64
"""Tokens in a chunk: the M of one wgmma, and a triangular inverse that fits the registers of a warp group."""


@dataclass(frozen=True)
class Chunks:
    """Where every token of [B, L] lies among the slots."""

    batch: int
    length: int
    first: tuple[int, ...]
    """Slot of each sequence's first chunk."""
    count: tuple[int, ...]
    """Chunks of each sequence; 0 for an empty one."""
    tokens: Tensor
    """[slots, 64] index into the B * L tokens, or B * L for padding."""

    @property
    def steps(self) -> int:
        """Chunks of the longest sequence: steps of the scan."""
        return max(self.count, default=0)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """(sequences, slots) of the sequences that have a chunk number `step`."""
        active = [n for n, c in enumerate(self.count) if c > step]
        device = self.tokens.device
        slots = [self.first[n] + step for n in active]
        return torch.tensor(active, device=device), torch.tensor(slots, device=device)

    def pack(self, x: Tensor) -> Tensor:
        """[B, L, H, d] to [slots, H, 64, d], padded with zeros."""
        flat = x.reshape(self.batch * self.length, *x.shape[2:])
        flat = torch.cat([flat, flat.new_zeros(1, *flat.shape[1:])])
        return flat[self.tokens].transpose(1, 2)

    def unpack(self, y: Tensor) -> Tensor:
        """[slots, H, 64, d] back to [B, L, H, d]."""
        flat = y.new_empty(self.batch * self.length + 1, y.shape[1], y.shape[3])
        flat[self.tokens] = y.transpose(1, 2)
        return flat[:-1].reshape(self.batch, self.length, *flat.shape[1:])


def slot_count(batch: int, length: int, sequences: int | None) -> int:
    """Slots of a workspace: by the shapes alone. `sequences` is None for a batch, else N of cu_seqlens."""
    return batch * -(-length // CHUNK) if sequences is None else length // CHUNK + sequences


def cut(batch: int, length: int, cu_seqlens: Tensor | None, device: torch.device) -> Chunks:
    """The chunks of a batch [B, L], or of the sequences packed in it.

    Reads `cu_seqlens` on the host; ValueError unless it rises from 0 to L.
    """
    if cu_seqlens is None:
        per_row = -(-length // CHUNK)
        spans = [(n * per_row, n * length, (n + 1) * length) for n in range(batch)]
        slots = slot_count(batch, length, None)
    else:
        cuts = cu_seqlens.tolist()
        if cuts[0] != 0 or cuts[-1] != length or sorted(cuts) != cuts:
            raise ValueError(f"cu_seqlens is {cuts}; it must rise from 0 to L={length}")
        spans = [(a // CHUNK + n, a, z) for n, (a, z) in enumerate(pairwise(cuts))]
        slots = slot_count(batch, length, len(cuts) - 1)
    tokens = torch.full((slots * CHUNK,), batch * length, dtype=torch.long)
    for slot, a, z in spans:
        tokens[slot * CHUNK : slot * CHUNK + z - a] = torch.arange(a, z)
    return Chunks(
        batch,
        length,
        tuple(slot for slot, _, _ in spans),
        tuple(-(-(z - a) // CHUNK) for _, a, z in spans),
        tokens.reshape(slots, CHUNK).to(device),
    )
