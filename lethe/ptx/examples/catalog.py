"""The CuTe kernels that are compiled and recorded: which class, which shapes, which architecture.

Nothing here needs nvidia-cutlass-dsl; `lethe.ptx.examples.build` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lethe.ptx.examples.tensors import TensorSpec


@dataclass(frozen=True)
class CuteExample:
    """``module`` and ``kernel``: a class of this package; ``options``: its keywords beyond the dtype."""

    name: str
    about: str
    module: str
    kernel: str
    arch: str
    dtype: str
    tensors: tuple[TensorSpec, ...]
    oracle: str
    options: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


def _gemm(m: int, n: int, k: int, dtype: str, b_major: str = "k") -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("a", (m, k), dtype),
        TensorSpec("b", (n, k), dtype, contiguous_first=b_major == "n"),
        TensorSpec("c", (m, n), role="output"),
    )


def _chain(m: int, n: int, depth: int, width: int, dtype: str) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("a", (m, depth), dtype),
        TensorSpec("b", (n, depth), dtype),
        TensorSpec("vt", (width, n), dtype),
        TensorSpec("o", (m, width), role="output"),
    )


def _scan(tokens: int, dtype: str) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("q", (tokens, 64), dtype),
        TensorSpec("k", (tokens, 64), dtype),
        TensorSpec("v", (tokens, 128), dtype),
        TensorSpec("decay", (tokens // 128,), draw="decay"),
        TensorSpec("y", (tokens, 128), role="output"),
        TensorSpec("state", (128, 64), role="output"),
    )


GEMM90, GEMM100 = ("gemm_sm90", "GemmSm90", "sm_90a"), ("gemm_sm100", "GemmSm100", "sm_100a")
DEFECT = "lifecycle_defect_sm100"

EXAMPLES = (
    CuteExample(
        "gemm_sm100", "dense GEMM, tile 128x64", *GEMM100, "float16", _gemm(256, 128, 256, "float16"), "gemm"
    ),
    CuteExample(
        "gemm_sm100_deep",
        "dense GEMM, tile 128x64, long in k: nearly all of it is the loop",
        *GEMM100,
        "float16",
        _gemm(128, 64, 2048, "float16"),
        "gemm",
    ),
    CuteExample(
        "gemm_sm100_wide",
        "dense GEMM, bfloat16, tile 128x256, two stages",
        *GEMM100,
        "bfloat16",
        _gemm(128, 256, 256, "bfloat16"),
        "gemm",
        {"tile_n": 256, "stages": 2},
    ),
    CuteExample(
        "chain_sm100",
        "two GEMMs, the second with A in tensor memory",
        "chain_sm100",
        "ChainSm100",
        "sm_100a",
        "float16",
        _chain(128, 192, 64, 64, "float16"),
        "chain",
    ),
    CuteExample(
        "chain_sm100_wide",
        "two GEMMs, bfloat16, depth and width 128",
        "chain_sm100",
        "ChainSm100",
        "sm_100a",
        "bfloat16",
        _chain(256, 128, 128, 128, "bfloat16"),
        "chain",
        {"depth": 128, "width": 128},
    ),
    CuteExample(
        "scan_sm100",
        "chunked linear recurrence, state in tensor memory",
        "scan_sm100",
        "ScanSm100",
        "sm_100a",
        "float16",
        _scan(384, "float16"),
        "scan",
    ),
    CuteExample(
        "lifecycle_once_per_gemm",
        "wrong on purpose: 512 columns allocated and relinquished once per GEMM",
        DEFECT,
        "OncePerGemm",
        "sm_100a",
        "float16",
        _gemm(128, 128, 64, "float16"),
        "pair",
        fault="tmem",
    ),
    CuteExample(
        "lifecycle_once_per_kernel",
        "the same two GEMMs with one allocation",
        DEFECT,
        "OncePerKernel",
        "sm_100a",
        "float16",
        _gemm(128, 128, 64, "float16"),
        "pair",
    ),
    CuteExample(
        "gemm_sm90",
        "dense GEMM, one warp group, tile 64x64",
        *GEMM90,
        "float16",
        _gemm(128, 128, 256, "float16"),
        "gemm",
    ),
    CuteExample(
        "gemm_sm90_bf16",
        "dense GEMM, bfloat16, tile 64x128",
        *GEMM90,
        "bfloat16",
        _gemm(128, 128, 320, "bfloat16"),
        "gemm",
        {"tile_n": 128},
    ),
    CuteExample(
        "gemm_sm90_two_groups",
        "dense GEMM, two warp groups, tile 128x128, two stages",
        *GEMM90,
        "float16",
        _gemm(128, 256, 192, "float16"),
        "gemm",
        {"tile_n": 128, "groups": 2, "stages": 2},
    ),
    CuteExample(
        "gemm_sm90_n_major",
        "dense GEMM, B with n contiguous",
        *GEMM90,
        "float16",
        _gemm(64, 128, 256, "float16", "n"),
        "gemm",
        {"b_major": "n"},
    ),
    CuteExample(
        "gemm_sm90_wide",
        "dense GEMM, bfloat16, tile 64x256, B with n contiguous",
        *GEMM90,
        "bfloat16",
        _gemm(64, 256, 256, "bfloat16", "n"),
        "gemm",
        {"tile_n": 256, "b_major": "n", "stages": 2},
    ),
    CuteExample(
        "chain_sm90",
        "two GEMMs, the second with A in registers",
        "chain_sm90",
        "ChainSm90",
        "sm_90a",
        "float16",
        _chain(128, 192, 64, 64, "float16"),
        "chain",
    ),
)
