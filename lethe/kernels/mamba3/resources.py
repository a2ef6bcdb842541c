"""What the six kernels need of a GPU, found without one: registers, spills, shared and tensor memory.

Each kernel is compiled by Triton for a target architecture (`triton.compile` with a ``GPUTarget``) at a
realistic specialisation (bfloat16 in and out, widths and strides divisible by 16), and the ptxas that Triton
bundles reports what it used. No driver is touched.
``python -m lethe.kernels.mamba3.resources`` prints the whole matrix as JSON lines,
``... C1 C2`` only those kernels, ``... C1:1`` only that number of warps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from lethe.kernels.mamba3 import (
    angles,
    head_backward,
    head_forward,
    scan_backward,
    scan_ends,
    scan_forward,
    states,
)
from lethe.kernels.mamba3.head_launch import MIMO_BACKWARD_WARPS
from lethe.kernels.mamba3.head_launch import WARPS as HEAD_WARPS
from lethe.kernels.mamba3.scan_launch import BACKWARD_TILE, NARROW_TILE, WIDE_TILE, Tile
from lethe.kernels.ptxas import reported
from lethe.kernels.triton_report import used

TARGETS = (80, 90, 100, 103, 120)
WARPS = (2, 4, 8)
KERNELS = ("C1", "C2", "C3", "C4", "C5", "C6")

SCAN, ENDS, DEFAULT = NARROW_TILE.warps, BACKWARD_TILE.warps, 4

LAUNCHED = {
    "chunk_state": SCAN, "scan_output": SCAN, "chunk_ends": ENDS, "scan_gradient": ENDS,
    "conv_gradient": DEFAULT, "combine_chunks": DEFAULT, "angle_forward": DEFAULT, "angle_backward": DEFAULT,
    "head_chunk": HEAD_WARPS, "head_output": HEAD_WARPS, "head_adjoint": MIMO_BACKWARD_WARPS,
    "head_gradient": MIMO_BACKWARD_WARPS, "rope_gradient": 1,
}  # fmt: skip
"""Warps with which each function is launched."""

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 103: 227 * 1024, 120: 99 * 1024}
"""Shared memory that a block may use (CUDA programming guide, technical specifications)."""

TMEM_COLUMNS = 512
BLOCK_REGISTERS = 65536

STATES, HEAD_STATES, RANK, PAIR_BLOCK = 16, 128, 4, 64
"""N of the scan kernels, an argument; N, R and N/2 of the head kernels (the official defaults)."""


@dataclass(frozen=True)
class Need:
    """One compiled function of one kernel. Bytes, except registers (a thread) and tensor-memory columns."""

    kernel: str
    function: str
    target: str
    num_warps: int
    registers: int
    stack_bytes: int
    spill_bytes: int
    """Spill stores and loads a thread, added up."""
    shared_bytes: int
    tmem_columns: int

    def exceeds(self) -> list[str]:
        """Sentences about the limits that this kernel breaks; empty when it fits."""
        limit = SHARED_BYTES[int(self.target.removeprefix("sm_"))]
        block = -(-self.registers // 8) * 8 * 32 * self.num_warps
        checks = (
            ("registers a thread", self.registers, 255),
            ("registers a block", block, BLOCK_REGISTERS),
            ("bytes of shared memory", self.shared_bytes, limit),
            ("tensor-memory columns", self.tmem_columns, TMEM_COLUMNS),
        )
        return [
            f"{self.function} needs {need} {what} of {have}" for what, need, have in checks if need > have
        ]


def _scan_flags(fused: bool) -> dict[str, Any]:
    return {"HAS_WEIGHT": False, "SOFTPLUS": fused, "HAS_BIAS": fused, "HAS_CONV": fused, "HAS_D": True,
            "HAS_Z": fused, "HAS_ENTRY": True, "HAS_EXIT": True, "RAGGED": False,
            "B_sl": 1, "C_sl": 1}  # fmt: skip


def specialisations(kernel: str, warps: int) -> list[tuple[Any, dict[str, Any]]]:
    """The functions of C1 .. C6 with their compile-time arguments at `warps` warps. KeyError if unknown.

    A tile of the scan grows with the warps by its channels. With a number that is not in `WARPS`, only what
    is launched so.
    """
    fused = _scan_flags(kernel in ("C5", "C6"))

    def wider(tile: Tile) -> dict[str, Any]:
        return {**fused, **dataclasses.replace(tile, channels=tile.channels * warps).options()}

    wide, narrow, backward = (wider(tile) for tile in (WIDE_TILE, NARROW_TILE, BACKWARD_TILE))
    forward = [(f, o) for o in (wide, narrow) for f in (scan_forward.chunk_state, scan_forward.scan_output)]
    head = {"PADDED": False, "HAS_D": True, "HAS_Z": True, "HAS_ENTRY": True, "HAS_EXIT": True,
            "MIMO": kernel == "C3",
            "RANK": RANK if kernel == "C3" else 1, "STEP": 1 if kernel == "C3" else 2,
            "OFFSET": PAIR_BLOCK if kernel == "C3" else 1, "NB": PAIR_BLOCK, "PB": 16, "SPAN": 8,
            "ADD": True, "T": 64, "SB": 32, "HAS_BEGIN": True}  # fmt: skip
    join = {"HAS_RATE": True, "HAS_BEGIN": True, "REVERSE": False, "BY_ROW": False, "GROUP": 64, "BLOCK": 32}
    table: dict[str, list[tuple[Any, dict[str, Any]]]] = {
        "C1": [*forward, (states.combine_chunks, join)],
        "C2": [(scan_ends.chunk_ends, backward), (scan_backward.scan_gradient, backward)],
        "C3": [(head_backward.head_adjoint, head), (head_backward.head_gradient, head),
               (head_backward.rope_gradient, head), (angles.angle_backward, head)],
        "C4": [(angles.angle_forward, head), (head_forward.head_chunk, head), (head_forward.head_output,
        head)],
        "C5": forward,
        "C6": [(scan_ends.chunk_ends, backward), (scan_backward.scan_gradient, backward),
               (scan_backward.conv_gradient, {"ROWS": 16, "BLOCK": 64})],
    }  # fmt: skip
    found = table[kernel]
    return found if warps in WARPS else [(f, o) for f, o in found if LAUNCHED[f.fn.__name__] == warps]


FLOAT32 = {
    "A_ptr", "D_ptr", "dt_bias_ptr", "conv_ptr", "conv_bias_ptr", "weight_ptr", "skip_ptr", "local_ptr",
    "back_ptr", "total_ptr", "Bs_ptr", "Cs_ptr", "rate_ptr", "begin_ptr", "entry_ptr", "exit_ptr",
    "end_ptr", "final_ptr", "scratch_ptr", "dweight_ptr", "dskip_ptr", "dA_ptr", "dB_ptr", "dC_ptr",
    "dD_ptr", "dbias_ptr", "dconv_ptr", "dbegin_ptr", "decay_ptr", "gamma_ptr", "late_ptr", "bias_ptr",
    "q_bias_ptr", "k_bias_ptr", "cos_ptr", "sin_ptr", "mimo_x_ptr", "mimo_z_ptr", "mimo_o_ptr", "dq_ptr",
    "dk_ptr", "ddecay_ptr", "dgamma_ptr", "dlate_ptr", "dmimo_ptr", "d_ptr", "draw_ptr", "dcos_ptr",
    "dsin_ptr", "carry_ptr",
}  # fmt: skip
"""Pointers to parameters, states and sums; every other pointer is bfloat16."""


def _compile(function: Any, constants: dict[str, Any], target: int, warps: int) -> Any:
    from triton.compiler import ASTSource

    names = function.arg_names
    constexprs = {name: constants[name] for name in names if name in constants}
    signature, aligned = {}, {}
    for index, name in enumerate(names):
        if name in constexprs:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*fp32" if name in FLOAT32 else "*bf16"
            aligned[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32"
            if name in ("width", "n", "none") or re.search(r"_s[blrhgn]$", name):
                aligned[(index,)] = [["tt.divisibility", 16]]
    triton.knobs.nvidia.dump_ptxas_log = True
    source = ASTSource(function, signature, constexprs, aligned)
    limit = {"maxnreg": constants["maxnreg"]} if "maxnreg" in constants else {}
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": warps, **limit})


def needs(kernel: str, target: int, warps: int) -> list[Need]:
    """What each function of `kernel` (``"C1"`` .. ``"C6"``) needs on ``sm_<target>`` with `warps` warps.

    Raises RuntimeError in a process that interprets Triton, KeyError for an unknown kernel.
    """
    rows = []
    for function, constants in specialisations(kernel, warps):
        if not isinstance(function, triton.runtime.JITFunction):
            raise RuntimeError("this process interprets Triton; compile in one without TRITON_INTERPRET")
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            compiled = _compile(function, constants, target, warps)
        # Nothing was assembled, and so nothing reported, where the kernel came out of Triton's cache.
        registers, stack, spill = reported(log.getvalue()) or used(compiled)
        columns = getattr(compiled.metadata, "tmem_size", 0) or 0
        name = function.fn.__name__
        shared = compiled.metadata.shared
        rows.append(Need(kernel, name, f"sm_{target}", warps, registers, stack, spill, shared, columns))
    return rows


def cells(kernels: Iterable[str] = KERNELS) -> Iterator[tuple[str, int, int]]:
    """Kernel, target and warps of every cell: `WARPS`, and those of launches where they are others.

    A kernel may be named with one number of warps, as ``"C1:1"``.
    """
    for kernel, _, only in (name.partition(":") for name in kernels):
        for warps in [int(only)] if only else sorted({*WARPS, *LAUNCHED.values()}):
            for target in TARGETS if specialisations(kernel, warps) else ():
                yield kernel, target, warps


def matrix(kernels: Iterable[str] = KERNELS) -> Iterator[Need]:
    """What every cell needs; tens of minutes of one processor, unless Triton's cache holds the kernels."""
    for cell in cells(kernels):
        yield from needs(*cell)


if __name__ == "__main__":
    for row in matrix(sys.argv[1:] or KERNELS):
        sys.stdout.write(json.dumps(dataclasses.asdict(row) | {"exceeds": row.exceeds()}) + "\n")
        sys.stdout.flush()
