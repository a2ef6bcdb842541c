"""What `out` is compiled for, and which tensors it then has."""

from dataclasses import dataclass
from typing import Any

import cutlass

from lethe.kernels.gdn.declare import KINDS, Argument, Variant

CHUNK, DK = 64, 128
HANDED = ("S", "D", "A", "T")
"""Tensors by slot; the others are by token."""

DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16}


@dataclass(frozen=True)
class Spec:
    """``gate``, ``erase``, ``write`` (g, b, w): channel, head or none; ``io``: dtype of all inputs but g."""

    io: str
    dv: int
    gate: str
    erase: str
    write: str
    packed: bool

    @property
    def dtype(self) -> Any:
        """The DSL's dtype of the inputs."""
        return DTYPES[self.io]

    @property
    def erases(self) -> bool:
        """Is there a b, and so T, dM and dp?"""
        return self.erase != "none"

    @property
    def decays(self) -> bool:
        """Is there a g?"""
        return self.gate != "none"

    @property
    def panels(self) -> int:
        """Panels of 64 columns of a tile of values."""
        return self.dv // 64

    @property
    def scalars(self) -> tuple[str, ...]:
        """Gates that are one number a head."""
        kinds = {"g": self.gate, "b": self.erase, "w": self.write}
        return tuple(name for name, kind in kinds.items() if kind == "head")

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """Tiles by the barrier that they are loaded on (`out_memory`), as they become free."""
        wide = [
            n for n, kind in zip("gbw", (self.gate, self.erase, self.write), strict=True) if kind == "channel"
        ]
        return (
            ("S", "D", "do", *(n for n in "g" if n in wide)),
            ("v", *(n for n in "w" if n in wide)),
            ("A", *(n for n in "T" if self.erases)),
            ("k", *(n for n in "b" if n in wide)),
            ("q",),
        )

    @property
    def stored(self) -> tuple[tuple[str, ...], ...]:
        """Gradients in tiles: those that stand in the second set, and those in the last two."""
        return tuple(
            tuple(f"d{name}" for name in names) for names in (self.sets[1], self.sets[3] + self.sets[4])
        )

    def arguments(self) -> tuple[Argument, ...]:
        """The declaration of this variant."""

        def there(
            name: str, dtype: str, shape: tuple, is_there: bool = True, output: bool = False
        ) -> Argument:
            return Argument(
                name, dtype, shape if is_there else (f"no_{name}", *shape[1:]), not is_there, output
            )

        tokens, chunk, io = ("B", "L", "H"), ("slots", "H"), self.io
        keys, values = DK, self.dv
        gates = (
            ("g", "float32", keys, self.gate),
            ("b", io, keys, self.erase),
            ("w", io, values, self.write),
        )

        def of_gates(prefix: str) -> list[Argument]:
            return [
                there(
                    prefix + n,
                    dtype,
                    (*tokens, width if kind == "channel" else 1),
                    kind != "none",
                    bool(prefix),
                )
                for n, dtype, width, kind in gates
            ]

        rows = [("q", keys), ("k", keys), ("v", values)]
        return (
            *(there(n, io, (*tokens, d)) for n, d in rows),
            *of_gates(""),
            there("do", io, (*tokens, values)),
            *(there(n, "float16", (*chunk, values, keys)) for n in "SD"),
            there("A", "float16", (*chunk, CHUNK, CHUNK)),
            there("T", "float16", (*chunk, CHUNK, CHUNK), self.erases),
            there("a", "float32", (*chunk, CHUNK)),
            there("powers", "int32", (*chunk, 2)),
            there("cu_seqlens", "int32", ("cuts",), self.packed),
            *(there(f"d{n}", io, (*tokens, d), True, True) for n, d in rows),
            *of_gates("d"),
            Argument("scale", "float32"),
            Argument("programs", "int32"),
        )


def variants() -> tuple[Variant, ...]:
    """One for every member, dtype, d_v, and for batches and packed sequences."""
    found = []
    for gate, erase, write in KINDS:
        gates = {"gate": gate, "erase": erase, "write": write}
        for io in DTYPES:
            for dv in (128, 64):
                for packed in (False, True):
                    options = {"io": io, "dv": dv, "packed": packed, **gates}
                    found.append(Variant("out", {**options, "dk": DK}, Spec(**options).arguments()))
    return tuple(found)
