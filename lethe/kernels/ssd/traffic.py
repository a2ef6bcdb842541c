"""What each launch of a plan must move and compute: the prediction that times are held against.

Imports no GPU module. Bytes count every tensor once a launch, in and out; what programs of one launch share
(B and C, read again by every block of heads) is taken to come from the L2 cache. Operations count the matrix
products alone, two for a multiply-add. DESIGN.md has the table for the shape of the speed target.
"""

from __future__ import annotations

from lethe.kernels.ssd.graph import ITEM_BYTES, Node
from lethe.kernels.ssd.plan import Layout, Sizes, sizes_of

STREAM_TB_S = 4.3
"""Bytes a second that an H200 streams (SPEC section 6)."""
TENSOR_TFLOP_S = 790.0
"""bfloat16 operations a second of an H200 (SPEC section 6)."""


def traffic(node: Node, layout: Layout) -> dict[str, int]:
    """Bytes of each launch by kernel."""
    reads, found = _named(node, layout), {}
    for launch in layout.launches:
        touched = {v.name for v in launch.values.values() if v.kind in ("tensor", "workspace")}
        found[launch.kernel] = sum(reads[name] for name in touched)
    return found


def _named(node: Node, layout: Layout) -> dict[str, int]:
    """Bytes behind every tensor and region by name."""
    tensors = {**node.inputs, **node.outputs}
    found = {name: _elements(t.dims) * ITEM_BYTES[t.dtype] for name, t in tensors.items()}
    return found | {name: nbytes for name, (_, nbytes) in layout.regions.items()}


def _elements(dims: tuple[int, ...]) -> int:
    count = 1
    for d in dims:
        count *= d
    return count


def operations(node: Node, layout: Layout) -> dict[str, int]:
    """Floating-point operations of the matrix products of each launch by kernel."""
    s = sizes_of(node, layout.tiles.tile)
    programs = s.slots * s.heads
    square, wide = s.tile * s.tile, s.tile * s.state
    found = {}
    for launch in layout.launches:
        found[launch.kernel] = 2 * programs * _products(launch.kernel, s, layout, square, wide)
    return found


def _products(kernel: str, s: Sizes, layout: Layout, square: int, wide: int) -> int:
    """Multiply-adds of one tile of one head."""
    if kernel == "scan":
        flags = next(x.constants for x in layout.launches if x.kernel == "scan")
        return wide * (int(flags["FORWARD"]) + int(flags["REVERSE"]))
    if kernel == "output":
        return square * s.width + wide + square * s.n // min(layout.tiles.output_heads, s.per_group)
    if kernel == "gradient":
        shared = 2 * square * s.n // min(layout.tiles.gradient_heads, s.per_group)
        return 2 * square * s.width + square * s.n + 3 * wide + shared
    return 0


def floor_us(node: Node, layout: Layout) -> dict[str, float]:
    """The longer of streaming its bytes and computing its products, for each launch, in microseconds."""
    moved, computed = traffic(node, layout), operations(node, layout)
    return {
        kernel: max(moved[kernel] / STREAM_TB_S, computed[kernel] / TENSOR_TFLOP_S) / 1e6 for kernel in moved
    }
