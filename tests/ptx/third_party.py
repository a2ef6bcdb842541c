"""Compile one of NVIDIA's CuTe DSL example kernels, capture its launch and execute it; a process of its own.

``python third_party.py EXAMPLES KERNEL SCHEDULE CHECKS``: EXAMPLES is ``examples/python/CuTeDSL`` of a
checkout of NVIDIA/cutlass, CHECKS 0 or 1. Prints a line of JSON: the fault's kind ("" for none), how often
the PTX waits for its loads from tensor memory, warp-instructions, and the largest error: for a GEMM over an
a-priori bound, for ``mamba2_ssd`` over the example's own tolerance. CuTe DSL compiles for one architecture
per process, which it reads from the environment at import.
"""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

ARCHITECTURE = {
    "dense_gemm": "sm_100a",
    "dense_gemm_persistent": "sm_100a",
    "mamba2_ssd": "sm_100a",
    "hopper_dense_gemm": "sm_90a",
}
M, N, K = 256, 256, 192
HEADS, CHUNKS, LENGTH, WIDTH, STATE = 2, 2, 128, 64, 128
TOLERANCE = {"y": (5e-2, 1e-2), "fstate": (5e-2, 1e-5)}
"""(absolute, relative) by which the example itself compares with its reference."""


class Tensor(NamedTuple):
    """An argument: its values in the kernel's order of modes, and the rank of each mode's stride."""

    values: np.ndarray
    order: tuple[int, ...]


def gemm():
    """Tensors of C = A B^T, and the error of C over a bound for fp32 accumulation and fp16 rounding."""
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((n, K, 1)).astype(np.float16) for n in (M, N))
    c = np.zeros((M, N, 1), np.float16)

    def error():
        left, right = a[..., 0].astype(float), b[..., 0].astype(float).T
        exact = left @ right
        bound = 2.0**-11 * np.abs(exact) + K * 2.0**-23 * (np.abs(left) @ np.abs(right))
        return float((np.abs(c[..., 0] - exact) / bound).max())

    return {name: Tensor(t, (1, 0, 2)) for name, t in (("a", a), ("b", b), ("c", c))}, error


def ssd():
    """Tensors of one batch of the state-space dual, and the error of its outputs over the tolerances."""
    generator = np.random.default_rng(0)

    def draw(*shape):
        return generator.normal(0, 0.5, shape)

    def modes(array, permutation, order, dtype=np.float16):
        return Tensor(np.ascontiguousarray(array, dtype).transpose(permutation), order)

    delta = np.log1p(np.exp(draw(1, HEADS, CHUNKS, LENGTH) - 4)).astype(np.float16)
    decay = -np.exp(draw(HEADS)).astype(np.float16)
    steps = np.cumsum(delta.astype(float) * decay.astype(float)[:, None, None], axis=-1)
    tensors = {
        "x": modes(draw(1, HEADS, WIDTH, CHUNKS, LENGTH), (2, 4, 3, 1, 0), (2, 0, 1, 3, 4)),
        "cumsum_delta": modes(steps, (3, 2, 1, 0), (0, 1, 2, 3), np.float32),
        "delta": modes(delta, (3, 2, 1, 0), (0, 1, 2, 3)),
        "b": modes(draw(1, 1, STATE, CHUNKS, LENGTH), (4, 2, 3, 1, 0), (0, 2, 1, 3, 4)),
        "c": modes(draw(1, 1, STATE, CHUNKS, LENGTH), (4, 2, 3, 1, 0), (0, 2, 1, 3, 4)),
        "y": modes(np.zeros((1, HEADS, WIDTH, CHUNKS, LENGTH)), (4, 2, 3, 1, 0), (0, 2, 1, 3, 4)),
        "fstate": modes(np.zeros((1, HEADS, WIDTH, STATE)), (2, 3, 1, 0), (1, 0, 2, 3)),
        "d": modes(draw(HEADS, WIDTH), (1, 0), (0, 1)),
    }

    def error():
        given = {name: t.values.astype(float) for name, t in tensors.items()}
        exact = {name: np.zeros(given[name].shape) for name in TOLERANCE}
        for head in range(HEADS):
            state = np.zeros((WIDTH, STATE))
            for chunk in range(CHUNKS):
                sums = given["cumsum_delta"][:, chunk, head, 0]
                for t, factor in enumerate(np.exp(np.diff(sums, prepend=0.0))):
                    x = given["x"][:, t, chunk, head, 0]
                    step = given["delta"][t, chunk, head, 0] * given["b"][t, :, chunk, 0, 0]
                    state = factor * state + x[:, None] * step
                    y = state @ given["c"][t, :, chunk, 0, 0] + given["d"][:, head] * x
                    exact["y"][t, :, chunk, head, 0] = y
            exact["fstate"][:, :, head, 0] = state
        return max(
            float((np.abs(given[n] - exact[n]) / (absolute + relative * np.abs(exact[n]))).max())
            for n, (absolute, relative) in TOLERANCE.items()
        )

    return tensors, error


def kernel(name, cutlass):
    """The kernel object and the compile-time arguments between its tensors and the stream."""
    if name == "hopper_dense_gemm":
        module = importlib.import_module("cute.hopper.kernel.dense_gemm.dense_gemm")
        return module.HopperWgmmaGemmKernel(cutlass.Float32, (128, 128), (1, 1)), ()
    if name == "mamba2_ssd":
        module = importlib.import_module("cute.blackwell.kernel.attention.mamba2_ssd.mamba2_ssd")
        types = (cutlass.Float16, cutlass.Float32, cutlass.Float32)
        return module.SSDKernel(*types, LENGTH, WIDTH, STATE, has_d=True, d_has_hdim=True), (HEADS,)
    module = importlib.import_module(f"cute.blackwell.kernel.dense_gemm.{name}")
    shape = (cutlass.Float32, False, (128, 128), (1, 1), True)
    if name == "dense_gemm":
        return module.DenseGemmKernel(*shape), ()
    return module.PersistentDenseGemmKernel(*shape), (2,)


def main(examples, name, schedule, checks):
    """Compile, capture, execute, compare."""
    dump = tempfile.mkdtemp()
    settings = {"CUTE_DSL_ARCH": ARCHITECTURE[name], "CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_DUMP_DIR": dump}
    os.environ.update(settings)
    sys.path[:0] = [examples]
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    from lethe.ptx import Fault, GlobalMemory, parse, run
    from lethe.ptx.launch import HostLauncher

    def fake(tensor):
        dtype = {"float16": cutlass.Float16, "float32": cutlass.Float32}[tensor.values.dtype.name]
        shape = tensor.values.shape
        return make_fake_compact_tensor(dtype, shape, stride_order=tensor.order, assumed_align=16)

    tensors, error = ssd() if name == "mamba2_ssd" else gemm()
    made, constants = kernel(name, cutlass)
    compiled = cute.compile(made, *map(fake, tensors.values()), *constants, make_fake_stream())
    text = compiled.artifacts.PTX
    ptx = text if "\n" in text else Path(text).read_text()
    compiled.export_to_c(file_path=dump, file_name="k", function_prefix="k")
    arrays = {n: t.values for n, t in tensors.items()}
    launches = HostLauncher(Path(dump) / "k.o", Path(dump) / "k.h", ptx).capture(*arrays.values())
    memory = GlobalMemory()
    addresses = {n: memory.add(array, n) for n, array in arrays.items()}
    kind, message, instructions = "", "", 0
    for launch in launches:
        try:
            report = run(
                parse(ptx),
                launch.kernel,
                grid=launch.grid,
                block=launch.block,
                params=launch.bind(addresses),
                memory=memory,
                dynamic_shared=launch.shared,
                cluster=launch.cluster,
                schedule=schedule,
                checks=checks == "1",
            )
        except Fault as fault:
            kind, message = fault.kind, str(fault)
            break
        instructions += report.instructions
    result = {
        "fault": kind,
        "message": message,
        "waits": ptx.count("tcgen05.wait::ld"),
        "instructions": instructions,
        "error": error(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
