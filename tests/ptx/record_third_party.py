"""Record how NVIDIA's CuTe DSL examples fare.

``python tests/ptx/record_third_party.py EXAMPLES REVISION OUT``:
EXAMPLES is ``examples/python/CuTeDSL`` of a checkout of NVIDIA/cutlass at REVISION. Every kernel is compiled,
captured and executed by ``third_party.py``: as early as possible without checks, and late with them. The
result is a file of `lethe.provenance`; a build reads it and does not repeat it.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

from lethe import provenance

HERE = Path(__file__).parent
KERNELS = ("dense_gemm", "dense_gemm_persistent", "mamba2_ssd", "hopper_dense_gemm")
RUNS = (("early", "0"), ("late", "1"))
ORACLES = {
    "mamba2_ssd": "token-serial recurrence in fp64; error over the example's own tolerance, atol 5e-2 and "
    "rtol 1e-2 (y), 1e-5 (final state)",
}
GEMM = "fp64 product; error over fp16 rounding plus K 2^-23 of the absolute product"


def execute(examples, kernel, schedule, checks):
    """One run in a process of its own."""
    command = [sys.executable, str(HERE / "third_party.py"), examples, kernel, schedule, checks]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    found["error"] = None if found["fault"] else found["error"]
    return {"kernel": kernel, "schedule": schedule, "checks": checks == "1", **found}


def main(examples, revision, out):
    """Run everything, write the record."""
    samples = [
        {**execute(examples, kernel, *run), "oracle": ORACLES.get(kernel, GEMM)}
        for kernel in KERNELS
        for run in RUNS
    ]
    provenance.record(
        Path(out),
        experiment="ptx_third_party",
        samples=samples,
        parameters={
            "repository": "github.com/NVIDIA/cutlass",
            "revision": revision,
            "nvidia-cutlass-dsl": importlib.metadata.version("nvidia-cutlass-dsl"),
        },
        script="tests/ptx/record_third_party.py",
        sources=["tests/ptx/third_party.py", "lethe/ptx/machine.py", "lethe/ptx/launch.py"],
        on=provenance.device("cpu"),
        command="python tests/ptx/record_third_party.py EXAMPLES REVISION OUT",
    )
    print(f"{len(samples)} rows in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
