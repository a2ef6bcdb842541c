"""Compile one of NVIDIA's CuTe DSL example kernels, capture its launch and execute it; a process of its own.

``python third_party.py EXAMPLES KERNEL SCHEDULE CHECKS``: EXAMPLES is ``examples/python/CuTeDSL`` of a
checkout of NVIDIA/cutlass, CHECKS 0 or 1. Prints a line of JSON: the fault's kind ("" for none), how often
the PTX waits for its loads from tensor memory, and the largest error over an a-priori bound. CuTe DSL
compiles for one architecture per process, which it reads from the environment at import.
"""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

ARCHITECTURE = {"dense_gemm": "sm_100a", "dense_gemm_persistent": "sm_100a", "hopper_dense_gemm": "sm_90a"}
M, N, K = 256, 256, 192


def kernel(name, cutlass):
    """The kernel object and the compile-time arguments between its tensors and the stream."""
    if name == "hopper_dense_gemm":
        module = importlib.import_module("cute.hopper.kernel.dense_gemm.dense_gemm")
        return module.HopperWgmmaGemmKernel(cutlass.Float32, (128, 128), (1, 1)), ()
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
    import numpy as np
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    from lethe.ptx import Fault, GlobalMemory, parse, run
    from lethe.ptx.launch import HostLauncher

    def fake(*shape):
        return make_fake_compact_tensor(
            cutlass.Float16, (*shape, 1), stride_order=(1, 0, 2), assumed_align=16
        )

    made, constants = kernel(name, cutlass)
    compiled = cute.compile(made, fake(M, K), fake(N, K), fake(M, N), *constants, make_fake_stream())
    text = compiled.artifacts.PTX
    ptx = text if "\n" in text else Path(text).read_text()
    compiled.export_to_c(file_path=dump, file_name="k", function_prefix="k")
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((n, K)).astype(np.float16) for n in (M, N))
    c = np.zeros((M, N), np.float16)
    launches = HostLauncher(Path(dump) / "k.o", Path(dump) / "k.h", ptx).capture(a, b, c)
    memory = GlobalMemory()
    addresses = {"a": memory.add(a, "a"), "b": memory.add(b, "b"), "c": memory.add(c, "c")}
    kind = ""
    for launch in launches:
        try:
            run(
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
            kind = fault.kind
    exact = a.astype(float) @ b.T.astype(float)
    bound = 2.0**-11 * np.abs(exact) + K * 2.0**-23 * (np.abs(a).astype(float) @ np.abs(b.T).astype(float))
    waits = ptx.count("tcgen05.wait::ld")
    print(json.dumps({"fault": kind, "waits": waits, "error": float((np.abs(c - exact) / bound).max())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
