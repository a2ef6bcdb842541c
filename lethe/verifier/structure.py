"""Nested containers of tensors as a flat list plus a JSON-able skeleton.

References and candidates take and return tensors, scalars and nested tuples,
lists and dicts of them. `flatten` takes such a value apart so that tensors can
travel by shared memory and the skeleton as JSON; `unflatten` puts it together.
Dicts are walked by sorted key, so that the order of insertion means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Skeleton = Any
"""JSON value: ``{"t": i}`` stands for tensor i; containers and scalars are tagged."""

MAX_DEPTH = 32


def bytes_of(t: Tensor) -> Tensor:
    """The bytes of each element, uint8 of shape (numel, element size), on the CPU in row-major order.

    Also for a dimension of size one with an odd stride, which ``view`` refuses although it is contiguous.
    """
    import torch

    flat = t.detach().cpu().contiguous().as_strided((t.numel(),), (1,))
    return flat.view(torch.uint8).reshape(t.numel(), t.element_size())


class StructureError(TypeError):
    """The value holds something that is not a tensor, scalar, None or container of them."""


def flatten(value: Any) -> tuple[list[Tensor], Skeleton]:
    """Split `value` into its tensors (in traversal order) and a skeleton.

    Raises StructureError for anything that cannot travel (objects, sets, functions).
    """
    import torch

    tensors: list[Tensor] = []

    def walk(x: Any, depth: int) -> Skeleton:
        if depth > MAX_DEPTH:
            raise StructureError(f"containers nested deeper than {MAX_DEPTH}")
        if isinstance(x, torch.Tensor):
            tensors.append(x)
            return {"t": len(tensors) - 1}
        if x is None or isinstance(x, (bool, str)):
            return {"c": x}
        if isinstance(x, int):
            return {"i": str(x)}
        if isinstance(x, float):
            return {"f": x.hex()}
        if isinstance(x, complex):
            return {"z": [x.real.hex(), x.imag.hex()]}
        if isinstance(x, torch.Size):
            return {"tuple": [walk(int(y), depth + 1) for y in x]}
        if isinstance(x, torch.dtype):
            return {"dtype": str(x).removeprefix("torch.")}
        if isinstance(x, tuple):
            return {"tuple": [walk(y, depth + 1) for y in x]}
        if isinstance(x, list):
            return {"list": [walk(y, depth + 1) for y in x]}
        if isinstance(x, dict):
            if not all(isinstance(k, str) for k in x):
                raise StructureError("a dict with keys that are not strings")
            return {"dict": [[k, walk(x[k], depth + 1)] for k in sorted(x)]}
        raise StructureError(f"a value of type {type(x).__name__}")

    return tensors, walk(value, 0)


def unflatten(tensors: list[Tensor], skeleton: Skeleton) -> Any:
    """Inverse of `flatten`. Raises StructureError on a skeleton that is not well formed."""
    import torch

    def walk(s: Any, depth: int) -> Any:
        if depth > MAX_DEPTH or not isinstance(s, dict) or len(s) != 1:
            raise StructureError("not a skeleton")
        ((tag, v),) = s.items()
        if tag == "t":
            if type(v) is not int or not 0 <= v < len(tensors):
                raise StructureError("skeleton names a tensor that did not arrive")
            return tensors[v]
        if tag == "c" and (v is None or isinstance(v, (bool, str))):
            return v
        if tag == "i":
            return int(v)
        if tag == "f":
            return float.fromhex(v)
        if tag == "z":
            return complex(float.fromhex(v[0]), float.fromhex(v[1]))
        if tag == "dtype":
            dtype = getattr(torch, str(v), None)
            if not isinstance(dtype, torch.dtype):
                raise StructureError("skeleton names a dtype that torch does not have")
            return dtype
        if tag == "tuple":
            return tuple(walk(y, depth + 1) for y in v)
        if tag == "list":
            return [walk(y, depth + 1) for y in v]
        if tag == "dict":
            return {str(k): walk(y, depth + 1) for k, y in v}
        raise StructureError(f"skeleton has an unknown tag {tag!r}")

    try:
        return walk(skeleton, 0)
    except StructureError:
        raise
    except (TypeError, ValueError, IndexError) as e:
        raise StructureError(f"not a skeleton: {e}") from e


def paths(skeleton: Skeleton, root: str = "out") -> list[str]:
    """A readable path for each tensor, in order: ``["out[0]", "out[1]['mask']"]``."""
    found: dict[int, str] = {}

    def walk(s: Any, path: str) -> None:
        ((tag, v),) = s.items()
        if tag == "t":
            found[v] = path
        elif tag in ("tuple", "list"):
            for i, y in enumerate(v):
                walk(y, f"{path}[{i}]")
        elif tag == "dict":
            for k, y in v:
                walk(y, f"{path}[{k!r}]")

    walk(skeleton, root)
    return [found[i] for i in sorted(found)]


def map_tensors(value: Any, f: Callable[[Tensor], Any]) -> Any:
    """Apply `f` to each tensor of a nested value, keeping containers and scalars."""
    tensors, skeleton = flatten(value)
    return unflatten([f(t) for t in tensors], skeleton)
