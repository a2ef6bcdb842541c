"""What `forward` adds to a step of `scan`: o^T of the chunk, in tensor memory between its two products.

``o^T = s S^T Qh^T + a N^T + N^T A^T``: the first term with X^T, the last one with the update of the state;
between them a warp scales what is there and adds a N^T, in float32 (`sm90.scan_outputs`).
"""

from typing import Any

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import scan_outputs as hopper
from lethe.kernels.gdn.sm90.scan_consumer import CHUNK
from lethe.kernels.gdn.sm100 import tensor
from lethe.kernels.gdn.sm100.scan_map import OUTPUT


class Outputs(hopper.Outputs):
    """Of one warp. ``written``: (o [B, L, H, dv], scale)."""

    def __init__(self, converter: Any, lane: Any, power: Any, written: tuple):
        self.c, self.k, self.power = converter, converter.k, power
        self.o, self.scale = written
        self.place = converter.own + cutlass.Int32(OUTPUT)
        self.sums = cute.make_rmem_tensor(cute.make_layout(CHUNK // 2), cutlass.Float32)
        vector = converter.ring.vectors[2]
        view = cute.make_tensor(vector.iterator, cute.make_layout((2, 4, CHUNK // 8, self.k.stages)))
        self.diagonal = view[None, lane % 4, None, None]

    def add_diagonal(self, written: cute.Tensor, stage) -> None:
        """Scale S^T Qh^T and add a N^T; ``written``: N in float32."""
        factors = cute.make_rmem_tensor(cute.make_layout((2, CHUNK // 8)), cutlass.Float32)
        cute.autovec_copy(self.diagonal[None, None, stage], factors)
        found = tensor.load(self.place, CHUNK)
        mixed = [self.scale * x + factors[i % 2, i // 4] * written[i] for i, x in enumerate(found)]
        tensor.put(self.place, mixed)

    def collect(self) -> None:
        """The finished outputs to registers."""
        for i, x in enumerate(tensor.load(self.place, CHUNK)):
            self.sums[i] = x
