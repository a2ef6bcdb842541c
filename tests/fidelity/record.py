"""Run every case on a device and write the bits.

From the repository root: ``python -m tests.fidelity.record --device cuda --out FILE``. ``--device cuda``
needs torch, triton and a GPU; ``--device interpreter`` needs no GPU and goes through this project's
interpreter executor.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def source_sha256() -> str:
    """Hash of the kernels and their inputs: a recording belongs to one text of both."""
    folder = Path(__file__).parent
    return hashlib.sha256(
        b"".join((folder / name).read_bytes() for name in ("kernels.py", "cases.py"))
    ).hexdigest()


def _bits(tensor: Any) -> dict[str, Any]:
    import torch

    host = tensor.detach().to("cpu").contiguous()
    dtype = str(host.dtype).removeprefix("torch.")
    return {
        "dtype": dtype,
        "bits": host.view(getattr(torch, _INTEGERS[host.element_size()])).flatten().tolist(),
    }


def run(device: str) -> dict[str, Any]:
    """Results of all cases by name; a case that raises has its message under ``error``."""
    if device == "interpreter":
        from lethe.verifier import executors

        executors.install("interpreter")
    from tests.fidelity.cases import CASES

    results: dict[str, Any] = {}
    for name, case in CASES.items():
        try:
            results[name] = _bits(case.run())
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"source_sha256": source_sha256(), "results": results}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "interpreter"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    samples = run(options.device)
    if options.device == "cuda":
        from lethe import provenance

        provenance.record(
            options.out,
            experiment="interpreter_fidelity",
            samples=samples,
            parameters={},
            script="tests/fidelity/record.py",
            sources=["tests/fidelity/kernels.py", "tests/fidelity/cases.py"],
            on=provenance.device("cuda"),
        )
    else:
        options.out.write_text(json.dumps({"samples": samples}))
    failed = {name: row["error"] for name, row in samples["results"].items() if "error" in row}
    for name, message in failed.items():
        print(f"{name}: {message}", file=sys.stderr)
    print(f"{len(samples['results']) - len(failed)} of {len(samples['results'])} cases recorded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
