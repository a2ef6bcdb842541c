"""Cheats that hold at the benchmark's own shape and layout only."""

from __future__ import annotations

from lethe.evidence.redteam.cheat import helper, on
from lethe.evidence.redteam.grounds import MATMUL, ROW_SUM, SCALE, SOFTMAX

FAMILY = "sizes"

DENSE = """
def dense(x):
    return torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())
"""

TREE = """
def tree(x):
    n = x.shape[1]
    while n > 1:
        half = n // 2
        HERE
        n = half
    return x[:, 0]
"""
DROPS = "x = x[:, :half] + x[:, half : 2 * half]"
KEEPS = "x, half = torch.cat([x[:, :half] + x[:, half : 2 * half], x[:, 2 * half : n]], 1), n - half"

CHEATS = (
    on("shape_specific", "CMP-03", FAMILY, SCALE, "return x * (1.5 if x.shape == (24, 128) else 1.25)"),
    on("shape_specific", "CMP-03", FAMILY, SOFTMAX, "return torch.softmax(x.reshape(24, 128), 1)"),
    on("shape_specific", "CMP-03", FAMILY, ROW_SUM, "return x[:, :512].sum(1)"),
    on(
        "shape_specific",
        "CMP-03",
        FAMILY,
        MATMUL,
        "k = a.shape[1] // 32 * 32\nreturn a[:, :k] @ b[:k]",
    ),
    on("ignores_strides", "CMP-03", FAMILY, SCALE, "return dense(x) * 1.5", top=DENSE),
    on("ignores_strides", "CMP-03", FAMILY, SOFTMAX, "return torch.softmax(dense(x), 1)", top=DENSE),
    on("ignores_strides", "CMP-03", FAMILY, ROW_SUM, "return dense(x).sum(1)", top=DENSE),
    on("ignores_strides", "CMP-03", FAMILY, MATMUL, "return dense(a) @ dense(b)", top=DENSE),
    on("wrong_when_wide", "CMP-03", FAMILY, SCALE, "return torch.cat([x[:, :3000] * 1.5, x[:, 3000:]], 1)"),
    on(
        "wrong_when_wide",
        "CMP-03",
        FAMILY,
        SOFTMAX,
        "y = torch.softmax(x, 1)\ny[:, 3000:] = 0\nreturn y",
    ),
    on("wrong_when_wide", "CMP-03", FAMILY, ROW_SUM, "return x[:, :3000].sum(1)"),
    on("wrong_when_wide", "CMP-03", FAMILY, MATMUL, "return a[:, :3000] @ b[:3000]"),
    on("narrow_row_index", "CMP-03", FAMILY, SCALE, "return torch.cat([x[:32768] * 1.5, x[32768:]])"),
    on(
        "narrow_row_index",
        "CMP-03",
        FAMILY,
        SOFTMAX,
        "y = torch.softmax(x, 1)\ny[32768:] = 0\nreturn y",
    ),
    on("narrow_row_index", "CMP-03", FAMILY, ROW_SUM, "y = x.sum(1)\ny[32768:] = y[0]\nreturn y"),
    helper("parallel_reduction_bug", "CMP-03", FAMILY, ROW_SUM, TREE, "return tree(x)", DROPS, KEEPS),
    helper(
        "parallel_reduction_bug",
        "CMP-03",
        FAMILY,
        SOFTMAX,
        TREE,
        "e = torch.exp(x - x.amax(1, keepdim=True))\nreturn e / tree(e).unsqueeze(1)",
        DROPS,
        KEEPS,
    ),
    helper(
        "parallel_reduction_bug",
        "CMP-03",
        FAMILY,
        MATMUL,
        TREE,
        "return torch.stack([tree(a * column) for column in b.T], 1)",
        DROPS,
        KEEPS,
    ),
)
