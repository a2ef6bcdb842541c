"""Build a plan from a graph, keep it, execute it. The plan is the unit that a caller holds on to.

    plan = build(graph, target=90)          # compiles; raises Declined with the rule
    memory = allocate(plan.workspace_bytes)
    plan.execute({"x": address, ...}, memory, stream)   # compiles nothing, allocates nothing

Plans are kept in memory by metadata, and their layouts on disk beside Triton's own cache of the kernels; a
plan holds no addresses and no state, so several streams may execute it at once with a workspace each.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe.kernels.ssd import engine
from lethe.kernels.ssd.analyzer import TARGET, Declined, Finding, analyze
from lethe.kernels.ssd.graph import ITEM_BYTES, Graph, Node
from lethe.kernels.ssd.plan import Layout, layout
from lethe.kernels.ssd.tiles import Tiles, table

VARIABLE = "LETHE_PLANS"
"""Environment variable that names the folder of plans; ``~/.cache/lethe/plans`` without it."""

INTERPRETER = "triton interpreter"
POINTER_BYTES = 16


@dataclass(frozen=True)
class Plan:
    """A graph that is ready to execute."""

    node: Node
    layout: Layout
    prepared: tuple[engine.Prepared, ...]

    @property
    def engine(self) -> str:
        return self.layout.engine

    @property
    def workspace_bytes(self) -> int:
        """Bytes that every call needs for itself while it runs."""
        return self.layout.workspace_bytes

    def execute(self, pointers: Mapping[str, int], workspace: int, stream: int = 0) -> None:
        """Queue the plan's launches on `stream`.

        pointers: address of every input and output by name, on 16 bytes (dt and ddt: on an element); the
        memory behind them, and behind `workspace`, must stay until the stream is past this call. Nothing is
        allocated, compiled or synchronised, so that a call can be captured in a CUDA graph once the plan
        has run on the device. ValueError for a name that is missing or unknown, or a misaligned address.
        """
        self._check(pointers, workspace)
        regions = self.layout.regions
        for one in self.prepared:
            addresses = [
                pointers[v.name] if v.kind == "tensor" else workspace + regions[v.name][0]
                for v in one.sources
            ]
            one.run(addresses, stream)

    def _check(self, pointers: Mapping[str, int], workspace: int) -> None:
        wanted = self.node.inputs.keys() | self.node.outputs.keys()
        if pointers.keys() != wanted:
            missing, extra = sorted(wanted - pointers.keys()), sorted(pointers.keys() - wanted)
            raise ValueError(f"the plan needs exactly its tensors: missing {missing}, unknown {extra}")
        for name, address in pointers.items():
            unit = ITEM_BYTES[self.node.inputs["dt"].dtype] if name in ("dt", "ddt") else POINTER_BYTES
            _check_address(name, address, unit)
        _check_address("workspace", workspace, POINTER_BYTES)

    def explain(self) -> str:
        """Engine, tiles and launches, for people."""
        lines = [f"{self.layout.op} on {self.engine}; tiles {self.layout.tiles_from}; "
                 f"workspace {self.workspace_bytes:,} bytes"]  # fmt: skip
        lines += [f"  {it.kernel} {it.grid}, {it.warps} warps" for it in self.layout.launches]
        return "\n".join(lines)


def _check_address(name: str, address: int, unit: int) -> None:
    if not isinstance(address, int):
        raise ValueError(f"{name} is given as {type(address).__name__}; an address is an int")
    if address <= 0 or address % unit:
        raise ValueError(f"{name} is at {address:#x}; it must be at a multiple of {unit}")


_plans: dict[Any, Plan] = {}


def build(graph: Graph, target: int | None = None, tiles: Tiles | None = None) -> Plan:
    """The plan of `graph` for ``sm_<target>``; without a target, for Triton's interpreter on a CPU.

    Raises `Declined`, whose message names the rule and the reason. `tiles` overrides the measured table.
    """
    finding = analyze(graph, target)
    if not finding.accepted:
        raise Declined(finding)
    return plan_for(graph.nodes[0], target, tiles)


def plan_for(node: Node, target: int | None, tiles: Tiles | None = None) -> Plan:
    """`build` for a node that was accepted: from memory, else from disk, else new."""
    key = (node.key(), target, tiles)
    if key not in _plans:
        _plans[key] = _prepare(node, target, _laid_out(node, target, tiles))
    return _plans[key]


def forget() -> None:
    """Drop the plans that are in memory; those on disk stay."""
    _plans.clear()


def _prepare(node: Node, target: int | None, plan: Layout) -> Plan:
    if target is not None:
        return Plan(node, plan, tuple(engine.prepare_cuda(one, target) for one in plan.launches))
    if not engine.interpreted():
        raise Declined(
            Finding(False, TARGET, "without a CUDA target the kernels run in Triton's interpreter:"
                    " set TRITON_INTERPRET=1 before the first import")
        )  # fmt: skip
    if node.inputs["x"].dtype == "bfloat16" and not engine.multiplies_bfloat16():
        raise Declined(
            Finding(False, TARGET, "Triton's interpreter multiplies the bits of bfloat16 as integers;"
                    " use float16 on a CPU")
        )  # fmt: skip
    extents = {name: t.extent_bytes for name, t in (node.inputs | node.outputs).items()}  # type: ignore[operator]
    extents |= {name: nbytes for name, (_, nbytes) in plan.regions.items()}
    return Plan(node, plan, tuple(engine.prepare_interpreter(one, extents) for one in plan.launches))


def _laid_out(node: Node, target: int | None, tiles: Tiles | None) -> Layout:
    name = INTERPRETER if target is None else f"triton sm_{target}"
    if tiles is not None:
        return layout(node, name, target or 0, tiles)
    file = folder() / f"{digest(node, target)}.json"
    if (kept := _kept(file)) is not None:
        return Layout.from_json(kept)
    made = layout(node, name, target or 0)
    _keep(file, made.to_json())
    return made


def folder() -> Path:
    """Where layouts are kept."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "lethe" / "plans"


def digest(node: Node, target: int | None) -> str:
    """Name of a plan on disk: changes with the metadata, the target, the table and the engine's sources."""
    return hashlib.sha256(repr((node.key(), target, _sources(), table().read_bytes())).encode()).hexdigest()


@functools.cache
def _sources() -> str:
    here = Path(__file__).parent
    return hashlib.sha256(b"".join(f.read_bytes() for f in sorted(here.glob("*.py")))).hexdigest()


def _kept(file: Path) -> str | None:
    """What `_keep` wrote; None for a file that is not there, or of which a byte has changed since."""
    try:
        checksum, _, text = file.read_bytes().partition(b"\n")
    except OSError:
        return None
    return text.decode() if hashlib.sha256(text).hexdigest().encode() == checksum else None


def _keep(file: Path, text: str) -> None:
    """Write atomically, under a checksum; a folder that cannot be written to only costs the next process its
    laying out."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "w") as out:
            out.write(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
        os.replace(name, file)
    except OSError:
        return
