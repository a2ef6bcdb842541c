"""T - I for T = (I + M)^{-1}, M strictly lower triangular: substitution in 16 rows, then two levels of
products.

With T written as I + T', two neighbouring blocks join as ``T21' = -(X + T22' X)``, ``X = M21 + M21 T11'``:
the unit diagonals never meet a product, so what is rounded is only what differs from the identity. A sum of
powers of M would need products alone, but its terms grow far beyond their sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lethe.kernels.gdn.decay import Rounding, exact

BLOCK = 16
"""Rows that one warp solves by substitution: the M of mma.sync."""


def _diagonal(X: Tensor, size: int) -> Tensor:
    """View [..., C / size, size, size] of the diagonal blocks."""
    tiles = X.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    return tiles.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def inverse_minus_identity(M: Tensor, rounding: Rounding = exact) -> Tensor:
    """T - I [..., C, C] for C a power of two times 16; reads M below the diagonal only.

    `rounding` sees the operands ``M``, ``T`` and ``X`` of the products.
    """
    blocks = _diagonal(M, BLOCK)
    identity = torch.eye(BLOCK, dtype=M.dtype, device=M.device)
    solved = torch.linalg.solve_triangular(identity + blocks, -blocks, upper=False, unitriangular=True)
    T = torch.zeros_like(M)
    _diagonal(T, BLOCK).copy_(solved)
    size = BLOCK
    while size < M.shape[-1]:
        upper, lower = _diagonal(T, 2 * size)[..., :size, :size], _diagonal(T, 2 * size)[..., size:, size:]
        below = _diagonal(M, 2 * size)[..., size:, :size]
        X = below + rounding("M", below) @ rounding("T", upper)
        joined = -(X + rounding("T", lower) @ rounding("X", X))
        _diagonal(T, 2 * size)[..., size:, :size].copy_(joined)
        size *= 2
    return T
