"""Probes: the kernels for sm_90a with one thing changed, to be timed and never to compute with.

    python -m lethe.evidence.gdn_probes STAGE OPTIONS --folder FOLDER

``<stage>_near``  the same work at a few chunks' addresses, which stay in the L2 cache: what the processors
                  need when the memory behind that cache has next to nothing to do
``<stage>_bytes`` the same loads and stores by the same roles, without what is computed between them

A probe is a subclass of what is shipped, in a module of this package that offers what a stage's module offers
(`lethe.kernels.gdn.sm90`), and shares the code that it does not change. No shipped library depends on one.
`scan` has no ``bytes``: its loader and its stores already run by themselves, a ring ahead of the chain.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.kernels.gdn.architecture import SM90, Architecture
from lethe.kernels.gdn.declare import Variant

HERE = Path(__file__).parent
STAGES = ("prep_near", "scan_near", "out_near", "prep_bytes", "out_bytes")


@dataclass(frozen=True)
class Probes(Architecture):
    """Where `build` and `launch` find probes in place of stages."""

    def module(self, stage: str) -> str:
        """Name of the module of a probe."""
        return f"{__name__}.{stage}"

    def libraries(self) -> Path:
        """No checkout keeps any."""
        return HERE / "libraries"

    def source_hash(self, stage: str) -> str:
        """What a library of this probe depends on: its module, and all that the stage's own depends on."""
        text = (HERE / f"{stage}.py").read_bytes()
        return hashlib.sha256(text + SM90.source_hash(stage.split("_")[0]).encode()).hexdigest()


PROBES = Probes(SM90.name, SM90.capability, "probes")


def variants(stage: str, of: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variants of a stage as those of its probe."""
    return tuple(Variant(stage, v.options, v.arguments) for v in of)


def build(variant: Variant, folder: Path) -> None:
    """Compile one probe, in a process of its own: the compiler reads its target when it is imported."""
    with tempfile.TemporaryDirectory() as dump:
        settings = {"CUTE_DSL_ARCH": SM90.name, "CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_DUMP_DIR": dump}
        command = [sys.executable, "-m", __name__, variant.stage, json.dumps(dict(variant.options))]
        done = subprocess.run(
            [*command, "--folder", str(folder)],
            env={**os.environ, **settings},
            cwd=provenance.ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])


def compile_one(stage: str, options: Mapping[str, Any], folder: Path) -> None:
    """Inside that process."""
    from lethe.kernels.gdn.build import compile_variants

    compile_variants(PROBES, stage, options, folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Compile a probe."""
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}", description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("options", help="of the stage's variant, JSON")
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args(argv)
    compile_one(given.stage, json.loads(given.options), given.folder)
    return 0
