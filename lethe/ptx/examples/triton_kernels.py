"""Five small Triton kernels, and how each is compiled and recorded for sm_90a and sm_100a.

They cover what CuTe's kernels do not: reductions and scans by shuffles and shared memory, atomics, masks,
cp.async, and what Triton's own lowering of ``tl.dot`` makes of wgmma and tcgen05.
Needs triton to build, not to run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

from lethe.ptx.examples.build import steady
from lethe.ptx.examples.record import FOLDER, Record, save
from lethe.ptx.examples.tensors import TensorSpec
from lethe.ptx.launch import Launch
from lethe.ptx.triton_launch import compile_kernel, launch_of


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    """One program per row; columns beyond the end read minus infinity."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=-float("inf"))
    numerator = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * columns + column, numerator / tl.sum(numerator, 0), mask=inside)


@triton.jit
def layer_norm(x, weight, bias, y, columns, BLOCK: tl.constexpr):
    """One program per row: mean, variance, scale and shift."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0.0)
    centred = tl.where(inside, values - tl.sum(values, 0) / columns, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + 1e-5)
    scaled = centred * scale * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(y + row * columns + column, scaled + tl.load(bias + column, mask=inside, other=0.0), mask=inside)


@triton.jit
def cumulative(x, y, columns, BLOCK: tl.constexpr):
    """Running sum along a row, one program per row."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0.0)
    tl.store(y + row * columns + column, tl.cumsum(values, 0), mask=inside)


@triton.jit
def histogram(x, counts, size, BLOCK: tl.constexpr):
    """Count values in [0, 32) with global atomics."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    value = tl.load(x + index, mask=inside, other=0)
    tl.atomic_add(counts + value, 1, mask=inside)


@triton.jit
def chain(a, b, vt, o, rows_b, DEPTH: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """O = sum over blocks of half(A B_j^T) V_j, both products by tl.dot."""
    row, k, d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, DEPTH), tl.arange(0, WIDTH)
    tile_a = tl.load(a + row[:, None] * DEPTH + k[None, :])
    total = tl.zeros((M, WIDTH), tl.float32)
    for start in range(0, rows_b, N):
        n = start + tl.arange(0, N)
        tile_b = tl.load(b + n[:, None] * DEPTH + k[None, :])
        tile_v = tl.load(vt + d[:, None] * rows_b + n[None, :])
        score = tl.dot(tile_a, tile_b.T).to(tile_v.dtype)
        total += tl.dot(score, tile_v.T)
    tl.store(o + row[:, None] * WIDTH + d[None, :], total)


@dataclass(frozen=True)
class TritonExample:
    """``numbers``: runtime integers by argument name; ``constants``: constexprs; ``options``: num_warps and
    the like."""

    name: str
    about: str
    function: Any
    tensors: tuple[TensorSpec, ...]
    numbers: Mapping[str, int]
    constants: Mapping[str, int]
    grid: tuple[int, int, int]
    options: Mapping[str, int]


ROWS, COLUMNS = 8, 500
EXAMPLES = (
    TritonExample(
        "softmax",
        "softmax of 8 rows of 500, masked",
        softmax,
        (TensorSpec("x", (ROWS, COLUMNS)), TensorSpec("y", (ROWS, COLUMNS), role="output")),
        {"columns": COLUMNS},
        {"BLOCK": 512},
        (ROWS, 1, 1),
        {"num_warps": 4},
    ),
    TritonExample(
        "layer_norm",
        "layer norm of 8 rows of 500, masked",
        layer_norm,
        (
            TensorSpec("x", (ROWS, COLUMNS)),
            TensorSpec("weight", (COLUMNS,)),
            TensorSpec("bias", (COLUMNS,)),
            TensorSpec("y", (ROWS, COLUMNS), role="output"),
        ),
        {"columns": COLUMNS},
        {"BLOCK": 512},
        (ROWS, 1, 1),
        {"num_warps": 4},
    ),
    TritonExample(
        "cumulative",
        "running sum of 4 rows of 1000, masked",
        cumulative,
        (TensorSpec("x", (4, 1000)), TensorSpec("y", (4, 1000), role="output")),
        {"columns": 1000},
        {"BLOCK": 1024},
        (4, 1, 1),
        {"num_warps": 4},
    ),
    TritonExample(
        "histogram",
        "histogram of 2000 values by global atomics",
        histogram,
        (
            TensorSpec("x", (2000,), "int32", draw="indices"),
            TensorSpec("counts", (32,), "int32", "both", "zeros"),
        ),
        {"size": 2000},
        {"BLOCK": 512},
        (4, 1, 1),
        {"num_warps": 4},
    ),
    TritonExample(
        "chain",
        "two GEMMs by tl.dot",
        chain,
        (
            TensorSpec("a", (128, 64), "float16"),
            TensorSpec("b", (128, 64), "float16"),
            TensorSpec("vt", (64, 128), "float16"),
            TensorSpec("o", (128, 64), role="output"),
        ),
        {"rows_b": 128},
        {"DEPTH": 64, "WIDTH": 64, "M": 128, "N": 64},
        (1, 1, 1),
        {"num_warps": 4, "num_stages": 2},
    ),
)
PTX_VERSION = 88  # the oldest that knows sm_100a's instructions here, so that more drivers accept it
POINTER = {"float16": "*fp16", "float32": "*fp32", "int32": "*i32"}


def record_example(example: TritonExample, capability: int) -> Record:
    """Compile one kernel for one architecture and record its launch."""
    signature = {t.name: POINTER[t.dtype] for t in example.tensors} | dict.fromkeys(example.numbers, "i32")
    divisible = [t.name for t in example.tensors] + [
        n for n, value in example.numbers.items() if value % 16 == 0
    ]
    triton.knobs.compilation.disable_line_info = True  # else the PTX names this machine's folders
    options = {**example.options, "ptx_version": PTX_VERSION}
    compiled = compile_kernel(
        example.function, signature, example.constants, capability, divisible, **options
    )
    ptx = compiled.asm["ptx"]
    blank = Record(example.name, "", ptx, Launch("", (1, 1, 1), (1, 1, 1), 0, ()), example.tensors, "", {})
    launch = launch_of(compiled, {**blank.draw(), **example.numbers}, example.grid)
    source = Path(__file__)
    origin = {
        "source": source.name,
        "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "compiler": f"triton {importlib.metadata.version('triton')}",
        "arch": f"sm_{capability}a",
    }
    name = f"triton_{example.name}_sm{capability}"
    return Record(name, example.about, ptx, steady(launch), example.tensors, example.name, origin)


def build(names: Iterable[str] = (), folder: Path = FOLDER) -> None:
    """Compile and record for sm_90a and sm_100a (all without ``names``)."""
    wanted = set(names)
    for example in EXAMPLES:
        for capability in (90, 100):
            if not wanted or f"triton_{example.name}_sm{capability}" in wanted:
                record = record_example(example, capability)
                save(record, folder)
                print(
                    f"{record.name}: {len(record.ptx.splitlines())} lines of PTX, grid {record.launch.grid}"
                )
