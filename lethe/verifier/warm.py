"""A kernel that the fork server interprets once: no suspect pays for the interpreter's first launch.

It calls nothing that is itself a jit function (``tl.sum``, ``tl.max``): after those the interpreter
leaves its patches of ``triton.language`` behind, and no suspect could compile any more.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def _warm(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    tl.store(y_ptr + at, tl.maximum(tl.exp(x), 0.0) / 2.0, mask=mask)


def warm() -> Any:
    """Launch `_warm` in the interpreter (TRITON_INTERPRET=1) on a few elements."""
    import torch

    x = torch.ones(16)
    y = torch.empty_like(x)
    _warm[(1,)](x, y, 16, BLOCK=16)
    return y
