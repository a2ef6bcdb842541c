"""Which machine ran a campaign, written into its folder, so that its record can be made on any other.

The record then names that machine's device and versions, not those of the machine that wrote it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lethe import provenance

FILE = "machine.json"


def note(folder: Path, kind: str) -> None:
    """Write down in `folder` what runs here. Raises RuntimeError for ``"cuda"`` where there is none."""
    found = {"device": asdict(provenance.device(kind)), "versions": provenance.versions()}
    folder.mkdir(parents=True, exist_ok=True)
    provenance.write_atomically(folder / FILE, json.dumps(found, indent=1) + "\n")


def device(folder: Path, kind: str) -> provenance.Device:
    """The device that `note` described, or this machine's where the folder says nothing.

    Raises RuntimeError where it says nothing, `kind` is ``"cuda"``, and there is none here either.
    """
    noted = _noted(folder)
    return provenance.device(kind) if noted is None else provenance.Device(**noted["device"])


def record(path: Path, folder: Path, on: provenance.Device, **options: Any) -> None:
    """`provenance.record` of what ran `on` the machine of `folder`, with that machine's versions."""
    provenance.record(path, on=on, **options)
    noted = _noted(folder)
    if noted is None:
        return
    here, there = (
        '"versions": ' + json.dumps(v, indent=1, sort_keys=True).replace("\n", "\n ")
        for v in (provenance.versions(), noted["versions"])
    )
    provenance.write_atomically(path, path.read_text().replace(here, there, 1))


def _noted(folder: Path) -> dict[str, Any] | None:
    file = folder / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
