"""A recorded launch: PTX, one captured launch, and the tensors it was captured with, as two small files.

``<name>.ptx.gz`` is the module's text as the compiler wrote it; ``<name>.json`` is the launch (grid, block,
shared bytes, every parameter's bytes with the places where addresses stand), the tensors, the oracle's name,
and where it came from: generator source and its sha256, compiler and version, architecture. `Record.inputs`
draws tensors, so that a machine without the compiler executes exactly what the compiler produced.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lethe.ptx.examples.oracles import HALF, ORACLES, Result
from lethe.ptx.examples.tensors import Array, TensorSpec, Values, to_float
from lethe.ptx.launch import Launch, Parameter, Pointer, address_of

FOLDER = Path(__file__).with_name("recorded")


@dataclass(frozen=True)
class Record:
    """One kernel, ready to run. ``fault``: the kind of fault that a kernel wrong on purpose must raise."""

    name: str
    about: str
    ptx: str
    launch: Launch
    tensors: tuple[TensorSpec, ...]
    oracle: str
    origin: Mapping[str, str]
    fault: str = ""

    @property
    def half(self) -> float:
        """Unit roundoff of the 16-bit dtype of the inputs (float32's if there is none)."""
        return max(HALF.get(t.dtype, HALF["float32"]) for t in self.tensors)

    def draw(self, seed: int = 0, values: Values = "normal") -> dict[str, Array]:
        """Fresh arrays for every tensor, by name."""
        generator = np.random.default_rng(seed)
        return {t.name: t.array(generator, values) for t in self.tensors}

    def parameters(self, arrays: Mapping[str, Array]) -> list[bytes]:
        """Parameter bytes with these arrays' host addresses."""
        return self.launch.bind({name: address_of(array) for name, array in arrays.items()})

    def expected(self, arrays: Mapping[str, Array]) -> Result:
        """The oracle's value and bound for every output, computed from the inputs among ``arrays``."""
        inputs = {t.name: to_float(arrays[t.name], t.dtype) for t in self.tensors if t.role != "output"}
        return ORACLES[self.oracle](inputs, self.half)

    def worst(self, arrays: Mapping[str, Array], expected: Result) -> float:
        """Largest error of the outputs over the bound: at most 1 when the kernel is right; inf for NaN."""
        worst = 0.0
        dtypes = {t.name: t.dtype for t in self.tensors}
        for name, (value, bound) in expected.items():
            got = to_float(arrays[name], dtypes[name])
            if not np.isfinite(got).all():
                return float("inf")
            off = np.abs(got - value.reshape(got.shape))
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(off == 0, 0.0, off / bound.reshape(got.shape))
            worst = max(worst, float(ratio.max()))
        return worst


def names(folder: Path = FOLDER) -> list[str]:
    """Every recorded example, sorted."""
    return sorted(path.stem for path in folder.glob("*.json"))


def save(record: Record, folder: Path = FOLDER) -> None:
    """Write both files; the same record gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / f"{record.name}.ptx.gz").open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
    ):
        packed.write(record.ptx.encode())
    launch = record.launch
    parameters = [
        {"bytes": p.data.hex(), "pointers": [q._asdict() for q in p.pointers]} for p in launch.parameters
    ]
    described = {
        "name": record.name,
        "about": record.about,
        "origin": dict(record.origin),
        "oracle": record.oracle,
        "fault": record.fault,
        "kernel": launch.kernel,
        "grid": launch.grid,
        "block": launch.block,
        "cluster": launch.cluster,
        "shared": launch.shared,
        "tensors": [asdict(t) for t in record.tensors],
        "parameters": parameters,
    }
    (folder / f"{record.name}.json").write_text(json.dumps(described, indent=1) + "\n")


def load(name: str, folder: Path = FOLDER) -> Record:
    """Read one example; FileNotFoundError lists those there are."""
    path = folder / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(f"no recorded example '{name}'; there are {', '.join(names(folder))}")
    described: dict[str, Any] = json.loads(path.read_text())
    launch = Launch(
        described["kernel"],
        tuple(described["grid"]),
        tuple(described["block"]),
        described["shared"],
        tuple(
            Parameter(bytes.fromhex(p["bytes"]), tuple(Pointer(**q) for q in p["pointers"]))
            for p in described["parameters"]
        ),
        tuple(described["cluster"]),
    )
    tensors = tuple(TensorSpec(**{**t, "shape": tuple(t["shape"])}) for t in described["tensors"])
    ptx = gzip.decompress((folder / f"{name}.ptx.gz").read_bytes()).decode()
    return Record(
        name,
        described["about"],
        ptx,
        launch,
        tensors,
        described["oracle"],
        described["origin"],
        described["fault"],
    )
