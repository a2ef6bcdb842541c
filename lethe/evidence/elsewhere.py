"""Records of what another machine measured: its device and its versions stand in the file, not this one's.

A run on a GPU leaves a folder with `MACHINE` in it; the record may then be written where there is no GPU.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lethe import provenance

MACHINE = "device.json"


def note(folder: Path, kind: str = "cuda") -> None:
    """Write down in `folder` which device this is, and its versions. Raises RuntimeError where `kind` is
    ``"cuda"`` and there is none."""
    found = {"device": asdict(provenance.device(kind)), "versions": provenance.versions()}
    folder.mkdir(parents=True, exist_ok=True)
    provenance.write_atomically(folder / MACHINE, json.dumps(found, indent=1) + "\n")


def device(folder: Path) -> provenance.Device:
    """The device that `note` described in `folder`. Raises OSError where it did not."""
    return provenance.Device(**json.loads((folder / MACHINE).read_text())["device"])


def record(path: Path, folder: Path, **options: Any) -> Path:
    """`provenance.record` on the machine that `note` described in `folder`; returns `path`."""
    provenance.record(path, on=device(folder), **options)
    theirs = json.loads((folder / MACHINE).read_text())["versions"]
    ours, there = (
        '"versions": ' + json.dumps(v, indent=1, sort_keys=True).replace("\n", "\n ")
        for v in (provenance.versions(), theirs)
    )
    provenance.write_atomically(path, path.read_text().replace(ours, there, 1))
    return path
