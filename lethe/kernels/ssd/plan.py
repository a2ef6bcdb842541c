"""From an accepted node to launches: sizes, tiles, the workspace's layout, the arguments of every kernel.

All of it is decided from metadata when a plan is built; nothing here imports a GPU module. Arguments name
where they come from (`Value`): a tensor of the caller, a region of the workspace, or a number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lethe.kernels.ssd.graph import ITEM_BYTES, Node, row_major, sequence_count, slots
from lethe.kernels.ssd.tiles import ALL_REGISTERS, Tiles, fitted, lookup

ALIGNMENT = 256
"""Bytes on which a region of the workspace begins."""

WIDE = 1024
ROWS = 32
COLUMNS = 32
"""Block of the last launch: elements of dB and dC, and of a [slots, heads] sum."""


@dataclass(frozen=True)
class Sizes:
    """Numbers that a node's dims come to."""

    batch: int
    length: int
    heads: int
    groups: int
    width: int
    n: int
    sequences: int
    varlen: bool
    chunk: int
    tile: int

    @property
    def ratio(self) -> int:
        """Tiles a chunk."""
        return self.chunk // self.tile

    @property
    def tiles(self) -> int:
        """Tiles of a sequence of the batch; unused in a packed one."""
        return -(-self.length // self.tile)

    @property
    def chunks(self) -> int:
        return -(-self.length // self.chunk)

    @property
    def slots(self) -> int:
        return slots(self.length, self.sequences, self.tile, self.varlen)

    @property
    def chunk_slots(self) -> int:
        return slots(self.length, self.sequences, self.chunk, self.varlen)

    @property
    def per_group(self) -> int:
        return self.heads // self.groups

    @property
    def state(self) -> int:
        """Elements of one head's state."""
        return self.width * self.n


@dataclass(frozen=True)
class Value:
    """An argument: ``tensor`` or ``workspace`` (by `name`, with dtype), ``number``, or ``none``."""

    kind: str
    name: str = ""
    dtype: str = ""
    number: float = 0


_NONE = Value("none")


@dataclass(frozen=True)
class Launch:
    """One kernel of a plan. `constants` are its compile-time arguments, `values` the others; `registers` is
    what a thread may take."""

    kernel: str
    grid: tuple[int, int, int]
    values: Mapping[str, Value]
    constants: Mapping[str, Any]
    warps: int
    registers: int = ALL_REGISTERS


@dataclass(frozen=True)
class Layout:
    """What a plan will do, without any code: the part of it that is written to disk."""

    op: str
    engine: str
    """Who runs it, and for which target: ``triton sm_90``, or ``triton interpreter``."""
    tiles: Tiles
    tiles_from: str
    regions: Mapping[str, tuple[int, int]]
    """Offset and bytes of each region of the workspace."""
    workspace_bytes: int
    launches: tuple[Launch, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """What `to_json` wrote, which the caller has made sure of."""
        raw = json.loads(text)
        launches = tuple(
            Launch(
                one["kernel"], tuple(one["grid"]), {k: Value(**v) for k, v in one["values"].items()},
                one["constants"], one["warps"], one["registers"],
            )
            for one in raw["launches"]
        )  # fmt: skip
        regions = {name: (place[0], place[1]) for name, place in raw["regions"].items()}
        return cls(
            raw["op"], raw["engine"], Tiles(**raw["tiles"]), raw["tiles_from"], regions,
            raw["workspace_bytes"], launches,
        )  # fmt: skip


def sizes_of(node: Node, tile: int) -> Sizes:
    """The sizes of an accepted node, with tiles of `tile` tokens."""
    batch, length, heads, width = node.inputs["x"].dims
    _, _, groups, n = node.inputs["B"].dims
    chunk = node.attributes.chunk_size
    varlen = "cu_seqlens" in node.inputs
    return Sizes(batch, length, heads, groups, width, n, sequence_count(node.inputs), varlen, chunk, tile)


def layout(node: Node, engine: str, target: int, tiles: Tiles | None = None) -> Layout:
    """Lay an accepted node out for an engine. `tiles` overrides the table (for the search that fills it)."""
    chunk, n = node.attributes.chunk_size, node.inputs["B"].dims[3]
    if tiles is None:
        tiles, source = lookup(op=node.op, chunk=chunk, n=n, gated="z" in node.inputs, target=target)
    else:
        tiles, source = fitted(tiles, chunk, n), "given"
    work = _Work(node, sizes_of(node, tiles.tile), tiles)
    launches = work.forward() if node.op == "SSD" else work.backward()
    return Layout(node.op, engine, tiles, source, work.regions, work.used, launches)


class _Work:
    """Collects the regions of the workspace while the launches are written down."""

    def __init__(self, node: Node, sizes: Sizes, tiles: Tiles) -> None:
        self.node, self.sizes, self.tiles = node, sizes, tiles
        self.regions: dict[str, tuple[int, int]] = {}
        self.dtypes: dict[str, str] = {}
        self.used = 0

    def region(self, name: str, elements: int, dtype: str) -> Value:
        nbytes = elements * ITEM_BYTES[dtype]
        self.regions[name] = (self.used, nbytes)
        self.used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return Value("workspace", name, dtype)

    def tensor(self, name: str) -> Value:
        t = self.node.inputs.get(name) or self.node.outputs.get(name)
        return _NONE if t is None else Value("tensor", name, t.dtype)

    def has(self, name: str) -> bool:
        return name in self.node.inputs or name in self.node.outputs

    def pick(self, used: bool, **names: str) -> dict[str, Value]:
        """Tensors by argument; absent where the launch does not use them, so that more launches are alike."""
        return {argument: self.tensor(name) if used else _NONE for argument, name in names.items()}

    def strides(self, name: str, axes: str, used: bool = True) -> dict[str, Value]:
        """``x_sb, x_sl, x_sh`` and their like; zero for a tensor that is not there or not used."""
        t = self.node.inputs.get(name) or self.node.outputs.get(name)
        steps = t.strides if t is not None and used else (0,) * 4
        return {f"{name}_s{axis}": _int(step) for axis, step in zip(axes, steps, strict=False)}

    def all_strides(self) -> dict[str, Value]:
        return self.strides("x", "blh") | self.strides("B", "blg") | self.strides("C", "blg")

    def dy(self, used: bool = True) -> dict[str, Value]:
        """The gradient of the output with its strides."""
        return {**self.pick(used, dy_ptr="dy"), **self.strides("dy", "blh", used)}

    def numbers(self, *names: str) -> dict[str, Value]:
        s = self.sizes
        known = {
            "sequences": s.sequences, "length": s.length, "tiles": s.tiles, "chunks": s.chunks,
            "heads": s.heads, "per_group": s.per_group, "tokens_all": s.batch * s.length, "slots": s.slots,
        }  # fmt: skip
        return {name: _int(known[name]) for name in names}

    def limits(self) -> dict[str, Value]:
        low, high = self.node.attributes.dt_limit
        return {"low": Value("number", dtype="fp32", number=low)} | {
            "high": Value("number", dtype="fp32", number=high)
        }

    def flags(self) -> dict[str, Any]:
        """Compile-time arguments that several kernels share."""
        s, D = self.sizes, self.node.inputs.get("D")
        return {
            "T": s.tile, "P": s.width, "N": s.n, "VARLEN": s.varlen,
            "SOFTPLUS": self.node.attributes.dt_softplus, "HAS_BIAS": self.has("dt_bias"),
            "HAS_D": D is not None, "D_WIDE": D is not None and len(D.dims) == 2,
        }  # fmt: skip

    def steps(self) -> dict[str, Value]:
        count = self.sizes.slots * self.sizes.heads * self.sizes.tile
        return {
            "step_ptr": self.region("steps", count, "float32"),
            "decay_ptr": self.region("decay", count, "float32"),
        }

    def scan(
        self, *, forward: bool, resume: bool, save: bool, own: dict[str, Value],
        dy: dict[str, Value] | None = None,
    ) -> Launch:  # fmt: skip
        """The states, the adjoints of the states from `dy`, or both."""
        s, t = self.sizes, self.tiles
        reverse = dy is not None
        pieces = (s.width // t.scan_p) * (s.n // t.scan_n)
        flags = self.flags()
        for absent in ("HAS_D", "D_WIDE"):
            del flags[absent]
        constants = flags | {
            "BP": t.scan_p, "BN": t.scan_n, "RATIO": s.ratio, "FORWARD": forward, "REVERSE": reverse,
            "RESUME": resume, "HAS_BEGIN": self.has("initial_states"),
            "HAS_DFINAL": self.has("dfinal_states"), "HAS_FINAL": self.has("final_states"),
            "HAS_DBEGIN": self.has("dinitial_states"), "SAVE": save, "STATES": "states_ptr" in own,
            "STAGES": t.scan_stages,
        }  # fmt: skip
        begin = forward and not resume
        values = {
            **self.pick(forward, x_ptr="x", B_ptr="B"), **self.pick(reverse, C_ptr="C"),
            "dt_ptr": self.tensor("dt"), "A_ptr": self.tensor("A"), "bias_ptr": self.tensor("dt_bias"),
            "cu_ptr": self.tensor("cu_seqlens"), **self.pick(begin, begin_ptr="initial_states"),
            **self.pick(resume, resume_ptr="checkpoints"), **self.pick(save, checkpoint_ptr="checkpoints"),
            "dfinal_ptr": self.tensor("dfinal_states"), "states_ptr": _NONE, "adjoints_ptr": _NONE,
            "final_ptr": self.tensor("final_states"), "dbegin_ptr": self.tensor("dinitial_states"), **own,
            **self.numbers("sequences", "length", "tiles", "chunks", "heads", "per_group"), **self.limits(),
            **self.strides("x", "blh", forward), **self.strides("B", "blg", forward),
            **self.strides("C", "blg", reverse), **self.strides("dt", "bl"), **(dy or self.dy(False)),
        }  # fmt: skip
        first = max(s.sequences, s.chunk_slots) if resume else s.sequences
        grid = (first, s.heads * pieces, 2 if forward and reverse else 1)
        return Launch("scan", grid, values, constants, t.scan_warps)

    def stored_states(self) -> Value:
        """Where the states of all tiles are kept between two launches: rounded to what the products take."""
        s = self.sizes
        return self.region("states", s.slots * s.heads * s.state, self.node.inputs["x"].dtype)

    def forward(self) -> tuple[Launch, ...]:
        steps = self.steps()
        saved = self.has("checkpoints")
        same = saved and self.sizes.ratio == 1
        states = self.tensor("checkpoints") if same else self.stored_states()
        scan = self.scan(
            forward=True, resume=False, save=saved and not same, own={**steps, "states_ptr": states}
        )
        return (scan, self.output(states, steps, "y"))

    def output(self, states: Value, steps: dict[str, Value], name: str) -> Launch:
        """The launch that writes ``y``, or ``dz`` in a backward pass."""
        s, t = self.sizes, self.tiles
        flags, back = self.flags(), name == "dz"
        for absent in ("SOFTPLUS", "HAS_BIAS"):
            del flags[absent]
        to = self.strides(name, "blh").values()
        values = {
            "x_ptr": self.tensor("x"), "B_ptr": self.tensor("B"), "C_ptr": self.tensor("C"),
            "D_ptr": self.tensor("D"), "z_ptr": self.tensor("z"), **self.dy(back),
            "cu_ptr": self.tensor("cu_seqlens"), "states_ptr": states, **steps, "y_ptr": self.tensor(name),
            **self.numbers("sequences", "length", "tiles", "heads", "per_group"),
            "block_heads": _int(t.output_heads), **self.all_strides(), **self.strides("z", "blh"),
            **dict(zip(("y_sb", "y_sl", "y_sh"), to, strict=True)), "D_sh": self.skip_stride(),
        }  # fmt: skip
        blocks = -(-s.per_group // t.output_heads)
        constants = flags | {"HAS_Z": self.has("z"), "HAS_DY": back, "STAGES": t.output_stages}
        grid = (s.slots, s.groups * blocks, 1)
        return Launch("output", grid, values, constants, t.output_warps, t.output_registers)

    def skip_stride(self) -> Value:
        D = self.node.inputs.get("D")
        return _int(0 if D is None else D.strides[0])

    def gate(self) -> tuple[Launch, dict[str, Value]]:
        """The launch that takes the gate off dy, and what it leaves, with its strides."""
        s, x = self.sizes, self.node.inputs["x"]
        gated = self.region("gated dy", s.batch * s.length * s.heads * s.width, x.dtype)
        steps = zip(("dy_sb", "dy_sl", "dy_sh"), row_major(x.dims), strict=False)
        values = {
            "z_ptr": self.tensor("z"), **self.dy(), "gated_ptr": gated,
            **self.numbers("length", "tiles", "heads"), **self.strides("z", "blh"),
        }  # fmt: skip
        grid = (s.batch * s.tiles * s.heads, 1, 1)
        launch = Launch("gate", grid, values, {"T": s.tile, "P": s.width}, 4)
        return launch, {"dy_ptr": gated, **{axis: _int(step) for axis, step in steps}}

    def backward(self) -> tuple[Launch, ...]:
        s, t = self.sizes, self.tiles
        steps = self.steps()
        io = self.node.inputs["x"].dtype
        reused = self.has("checkpoints")
        ready = reused and s.ratio == 1
        states = self.tensor("checkpoints") if ready else self.stored_states()
        adjoints = self.region("adjoints", s.slots * s.heads * s.state, io)
        own = {**steps, "adjoints_ptr": adjoints} | ({} if ready else {"states_ptr": states})
        first, last, dy = [], [], self.dy()
        if self.has("z"):
            gate, dy = self.gate()
            first, last = [gate], [self.output(states, steps, "dz")]
        scan = self.scan(forward=not ready, resume=reused and not ready, save=False, own=own, dy=dy)
        blocks = -(-s.per_group // t.gradient_heads)
        size = s.batch * s.length * s.groups * s.n
        D = self.node.inputs.get("D")
        skips = 0 if D is None else s.heads * (s.width if len(D.dims) == 2 else 1)
        sums = s.slots * s.heads
        parts = {
            "dB_ptr": self.region("dB parts", blocks * size, "float32"),
            "dC_ptr": self.region("dC parts", blocks * size, "float32"),
            "dA_ptr": self.region("dA parts", sums, "float32"),
            "dbias_ptr": self.region("dbias parts", sums, "float32") if self.has("dt_bias") else _NONE,
            "dD_ptr": self.region("dD parts", s.slots * skips, "float32") if skips else _NONE,
        }
        values = {
            "x_ptr": self.tensor("x"), "dt_ptr": self.tensor("dt"), "A_ptr": self.tensor("A"),
            "bias_ptr": self.tensor("dt_bias"), "B_ptr": self.tensor("B"), "C_ptr": self.tensor("C"),
            "D_ptr": self.tensor("D"), "cu_ptr": self.tensor("cu_seqlens"), "states_ptr": states,
            "adjoints_ptr": adjoints, **steps, "dx_ptr": self.tensor("dx"), "ddt_ptr": self.tensor("ddt"),
            **parts,
            **self.numbers("sequences", "length", "tiles", "heads", "per_group", "tokens_all"),
            "block_heads": _int(t.gradient_heads),
            **self.limits(), **self.all_strides(), **self.strides("dt", "bl"), **dy,
            "D_sh": self.skip_stride(),
        }  # fmt: skip
        constants = self.flags() | {"STAGES": t.gradient_stages}
        grad = Launch("gradient", (s.slots, s.groups * blocks, 1), values, constants, t.gradient_warps)
        return (*first, scan, *last, grad, self.finish(parts, blocks, size, skips))

    def finish(self, parts: dict[str, Value], blocks: int, size: int, skips: int) -> Launch:
        heads = -(-self.sizes.heads // COLUMNS)
        wide = -(-size // WIDE)
        values = {
            "dB_part": parts["dB_ptr"], "dC_part": parts["dC_ptr"], "dA_part": parts["dA_ptr"],
            "dbias_part": parts["dbias_ptr"], "dD_part": parts["dD_ptr"],
            "dB_ptr": self.tensor("dB"), "dC_ptr": self.tensor("dC"), "dA_ptr": self.tensor("dA"),
            "dbias_ptr": self.tensor("ddt_bias"), "dD_ptr": self.tensor("dD"),
            "blocks": _int(blocks), "size": _int(size), **self.numbers("slots", "heads"),
            "skips": _int(skips), "wide_programs": _int(wide), "head_programs": _int(heads),
        }  # fmt: skip
        constants = {
            "HAS_BIAS": self.has("dt_bias"), "HAS_D": bool(skips), "WIDE": WIDE, "ROWS": ROWS,
            "COLUMNS": COLUMNS,
        }  # fmt: skip
        return Launch("finish", (wide + heads + -(-skips // COLUMNS), 1, 1), values, constants, 4)


def _int(number: int) -> Value:
    return Value("number", dtype="i32" if -(2**31) <= number < 2**31 else "i64", number=number)
