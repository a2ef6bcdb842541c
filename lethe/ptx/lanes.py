"""Picking the active lanes out of arrays of shape [warps, 32]."""

from __future__ import annotations

import numpy as np

from lethe.ptx.emit import Array


def lanes_of(mask: Array | None, like: Array) -> Array:
    """Flat values of the active lanes."""
    return like.reshape(-1) if mask is None else like[mask]


def active(rows: tuple[int, int], mask: Array | None) -> list[tuple[int, int]]:
    """(row in the batch, lane) of the active threads."""
    if mask is not None and len(mask) == 1:
        return [(0, lane) for lane in mask[0].nonzero()[0].tolist()]
    if mask is None:
        return [(r, lane) for r in range(rows[1] - rows[0]) for lane in range(32)]
    return [(int(r), int(lane)) for r, lane in zip(*np.nonzero(mask), strict=True)]
