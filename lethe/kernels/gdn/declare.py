"""What a stage says about its kernels: arguments by name, dtype and shape, and compile-time options; and for
which members of the family there are kernels.

Plain data without torch and without the DSL: `build` writes it into the manifest, `launch` reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DTYPES = ("float16", "bfloat16", "float32", "int32")
SCALARS = {"float32": "f", "int32": "i"}
"""Dtypes that a scalar may have."""

KINDS = (
    ("channel", "channel", "channel"),
    ("channel", "head", "head"),
    ("head", "head", "head"),
    ("none", "head", "head"),
    ("channel", "none", "none"),
    ("head", "none", "head"),
    ("none", "none", "none"),
)
"""How g, b and w come in GDN-2, KDA, GDN, DeltaNet, GLA, SSD and linear attention (`members`), in this order:
one a channel, one number a head, or absent. Kernels are compiled for these and no others."""


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel.

    ``shape``: sizes, each an int or the name of a size that is known at run time (equal names are equal sizes
    within one call); None makes it a scalar. ``optional``: may be None at the call, and arrives with first
    size 0; its first size then needs a name that no other tensor has. ``output``: the kernel writes it.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None = None
    optional: bool = False
    output: bool = False

    def __post_init__(self) -> None:
        known = DTYPES if self.shape is not None else tuple(SCALARS)
        if self.dtype not in known:
            raise ValueError(f"argument {self.name} has dtype {self.dtype}; choose {', '.join(known)}")


@dataclass(frozen=True)
class Variant:
    """One kernel to compile: ``kernel(**options)`` of the stage's module. ``name`` is made of both."""

    stage: str
    options: Mapping[str, Any]
    arguments: tuple[Argument, ...] = field(default=())

    @property
    def name(self) -> str:
        """A C identifier, the library's file name: ``scan_dk128_dv64_erase1``."""
        spelled = (f"{k}{int(v) if isinstance(v, bool) else v}" for k, v in sorted(self.options.items()))
        return "_".join([self.stage, *spelled])


def as_json(variant: Variant) -> dict[str, Any]:
    """The variant as the manifest holds it."""
    arguments = [
        {
            "name": a.name,
            "dtype": a.dtype,
            "shape": None if a.shape is None else list(a.shape),
            "optional": a.optional,
            "output": a.output,
        }
        for a in variant.arguments
    ]
    return {"stage": variant.stage, "options": dict(variant.options), "arguments": arguments}


def from_json(described: Mapping[str, Any]) -> Variant:
    """The inverse of `as_json`."""
    arguments = tuple(
        Argument(**{**a, "shape": None if a["shape"] is None else tuple(a["shape"])})
        for a in described["arguments"]
    )
    return Variant(described["stage"], dict(described["options"]), arguments)
