"""Run a compiled variant for sm_100a in `lethe.ptx`: as `sm90.emulate`, from this package's builder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lethe.kernels.gdn.sm90.declare import Variant, from_json
from lethe.kernels.gdn.sm90.emulate import Emulated
from lethe.kernels.gdn.sm100.build import build, cache


def load(stage: str, folder: Path | None = None, **options: Any) -> Emulated:
    """The variant of these options, compiled if it is missing or its sources changed."""
    folder = folder or cache()
    build(stage, options, folder)
    manifest = folder / f"{Variant(stage, options).name}.json"
    return Emulated(from_json(json.loads(manifest.read_text())), folder)
