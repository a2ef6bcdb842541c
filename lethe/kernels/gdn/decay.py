"""Products with a decay between rows: ``X_ij = sum_d x_id y_jd e^{G_id - G_jd}`` for i >= j; the adjoint.

Only the difference ``G_i - G_j`` with i >= j is bounded by 0. ``e^{-G}`` alone overflows float32 once a chunk
decays by 88 nats (KDA's gates reach 320), and a clamp breaks the entries beside the diagonal. So the triangle
is cut dyadically: a square of side 32, two of 16, four of 8, ... Within a square all columns j precede all
rows i, and with r = G at the first of its rows both factors ``e^{G_i - r}`` and ``e^{r - G_j}`` are at most
1, for *every* decay. Each square is a plain product of scaled operands, and the sizes add up to the triangle.

Tensor cores take 16 rows at least. ``block=16`` stops there and takes the diagonal blocks with their middle
row as reference: exponents stay within 8 max|g|, which float32 and bfloat16 hold for |g| <= 10 and float16
for |g| <= 1.3. ``block=1`` goes down to the diagonal itself, where no exponent is left. NaN stays NaN: no
mask is multiplied in, and a row meets only rows before it.

A decay that is one number a head (last axis of G is 1) needs none of this: ``(x y^T) * e^{G_i - G_j}`` with
the mask inside the exponent.

`scaled` is a hook ``(operand, tensor) -> tensor`` by which `lethe.kernels.gdn.precision` rounds the operands
``x`` and ``y`` as a tensor core would read them; the adjoint also rounds ``dX`` by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Rounding = Callable[[str, Tensor], Tensor]


def exact(_operand: str, x: Tensor) -> Tensor:
    """Round nothing."""
    return x


@dataclass(frozen=True)
class _Square:
    """A set of equal squares below the diagonal, or the diagonal blocks; b counts the blocks of the level."""

    size: int
    row: int
    """Offset of the rows in units of `size`, within `period` blocks."""
    period: int
    reference: int
    """Row of the square whose G is subtracted."""

    def name(self, operand: str) -> str:
        """The diagonal blocks are told apart: their factors are not bounded by 1."""
        return operand if self.period == 2 else f"{operand}.diagonal"

    def rows(self, x: Tensor) -> Tensor:
        """[..., C, d] to [..., b, size, d]: the rows of the squares."""
        return x.unflatten(-2, (-1, self.period, self.size))[..., self.row, :, :]

    def columns(self, x: Tensor) -> Tensor:
        return x.unflatten(-2, (-1, self.period, self.size))[..., 0, :, :]

    def blocks(self, X: Tensor) -> Tensor:
        """View [..., b, size, size] of the squares of X [..., C, C]."""
        split = (-1, self.period, self.size)
        tiles = X.unflatten(-1, split).unflatten(-4, split)
        return tiles[..., :, self.row, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _squares(chunk: int, block: int) -> Iterator[_Square]:
    size = chunk // 2
    while size >= block:
        yield _Square(size, row=1, period=2, reference=0)
        size //= 2
    yield _Square(block, row=0, period=1, reference=block // 2)


def _factors(square: _Square, G: Tensor) -> tuple[Tensor, Tensor]:
    """e^{G_i - r} of the rows and e^{r - G_j} of the columns."""
    rows, columns = square.rows(G), square.columns(G)
    r = rows[..., square.reference : square.reference + 1, :]
    return (rows - r).exp(), (r - columns).exp()


def ratios(G: Tensor) -> Tensor:
    """e^{G_i - G_j} [..., C, C] for i >= j, else 0, of a decay [..., C, 1] that is one number a head."""
    later = torch.ones(G.shape[-2], G.shape[-2], dtype=torch.bool, device=G.device).triu(1)
    return (G - G.mT).masked_fill(later, float("-inf")).exp()


def decayed(
    x: Tensor, y: Tensor, G: Tensor, *, strict: bool, block: int = 1, scaled: Rounding = exact
) -> Tensor:
    """X [..., C, C], lower triangular (strictly if `strict`), of x, y [..., C, d] and G [..., C, d or 1]."""
    below = -1 if strict else 0
    if G.shape[-1] == 1:
        return (scaled("x", x) @ scaled("y", y).mT * ratios(G)).tril(below)
    X = x.new_zeros(*x.shape[:-1], x.shape[-2])
    for square in _squares(x.shape[-2], block):
        of_rows, of_columns = _factors(square, G)
        left = scaled(square.name("x"), square.rows(x) * of_rows)
        right = scaled(square.name("y"), square.columns(y) * of_columns)
        found = left @ right.mT
        square.blocks(X).copy_(found.tril(below) if square.period == 1 else found)
    return X


def decayed_adjoint(
    dX: Tensor, x: Tensor, y: Tensor, G: Tensor, *, block: int = 1, scaled: Rounding = exact
) -> tuple[Tensor, Tensor]:
    """(dx, dy) given dX [..., C, C], which must be lower triangular."""
    if G.shape[-1] == 1:
        weighted = scaled("dX", dX * ratios(G))
        return weighted @ scaled("y", y), weighted.mT @ scaled("x", x)
    dx, dy = torch.zeros_like(x), torch.zeros_like(y)
    for square in _squares(x.shape[-2], block):
        of_rows, of_columns = _factors(square, G)
        left = scaled(square.name("x"), square.rows(x) * of_rows)
        right = scaled(square.name("y"), square.columns(y) * of_columns)
        tile = scaled(square.name("dX"), square.blocks(dX))
        square.rows(dx).add_(tile @ right * of_rows)
        square.columns(dy).add_(tile.mT @ left * of_columns)
    return dx, dy
