"""Kernel ``forward``: the states of `scan` in one direction, and the outputs of every chunk beside them.

What a step adds is in `scan_outputs`; the rest is `scan`. A stage also holds Qh (as prep writes it without
dO), A and a. With ``saves`` the states are stored for the backward pass, otherwise only o and the final
states leave the kernel.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute

from lethe.kernels.gdn.declare import Argument, Variant
from lethe.kernels.gdn.sm90.scan import Scan
from lethe.kernels.gdn.sm90.scan_consumer import CHUNK


def _arguments(io: str, dk: int, dv: int, erase: bool, packed: bool, saves: bool) -> tuple[Argument, ...]:
    chunk, ends = ("slots", "H"), ("H", dk, dv)
    W = (*chunk, CHUNK, dk) if erase else ("slots_W", "H", CHUNK, dk)
    S = (*chunk, dv, dk) if saves else ("slots_S", "H", dv, dk)
    return (
        Argument("Kt", "float16", (*chunk, CHUNK, dk)),
        Argument("W", "float16", W, optional=not erase),
        Argument("U", "float16", (*chunk, CHUNK, dv)),
        Argument("Qh", "float16", (*chunk, CHUNK, dk)),
        Argument("A", "float16", (*chunk, CHUNK, CHUNK)),
        Argument("decay", "float32", (*chunk, dk)),
        Argument("maxima", "float32", (*chunk, 4)),
        Argument("a", "float32", (*chunk, CHUNK)),
        Argument("S0", "float32", ("N_S0", *ends), optional=True),
        Argument("cu_seqlens", "int32", ("cuts",), optional=not packed),
        Argument("S", "float16", S, optional=not saves, output=True),
        Argument("powers", "int32", (*chunk, 2), output=True),
        Argument("final", "float32", ("N_final", *ends), optional=True, output=True),
        Argument("o", io, ("B", "L", "H", dv), output=True),
        Argument("scale", "float32"),
        Argument("sequences", "int32"),
    )


def _variant(**options) -> Variant:
    declared = {k: v for k, v in options.items() if k != "groups"}
    return Variant("forward", options, _arguments(**declared))


VARIANTS = tuple(
    _variant(io=io, dk=dk, dv=dv, erase=erase, packed=packed, saves=saves, groups=1)
    for io in ("float16", "bfloat16")
    for dk in (128, 64)
    for dv in (128, 64)
    for erase in (True, False)
    for packed in (False, True)
    for saves in (False, True)
)


def kernel(**options) -> "Forward":
    """The kernel of one variant."""
    return Forward(**options)


class Forward(Scan):
    """``io``: dtype of o; ``saves``: store S; the rest as in `Scan`."""

    outputs = True

    def __init__(self, io: str, dk: int, dv: int, erase: bool, packed: bool, saves: bool, groups: int):
        self.saves = saves
        super().__init__(dk, dv, erase, packed, "forward", groups)

    def tiles(self, way: int) -> tuple[str, ...]:
        """With the operands of the outputs, after those that the recurrence waits for."""
        *keys, values = super().tiles(way)
        return (*keys, "Qh", "A", values)

    @cute.jit
    def __call__(
        self,
        Kt: cute.Tensor,
        W: cute.Tensor,
        U: cute.Tensor,
        Qh: cute.Tensor,
        A: cute.Tensor,
        decay: cute.Tensor,
        maxima: cute.Tensor,
        a: cute.Tensor,
        S0: cute.Tensor,
        cu_seqlens: cute.Tensor,
        S: cute.Tensor,
        powers: cute.Tensor,
        final: cute.Tensor,
        o: cute.Tensor,
        scale: cutlass.Float32,
        sequences: cutlass.Int32,
        stream: cuda.CUstream,
    ):
        tensors = {"Kt": Kt, "W": W, "U": U, "Qh": Qh, "A": A, "S": S}
        vectors, written = (decay, maxima, a), (o, scale)
        self.launch(tensors, vectors, (S0,), cu_seqlens, powers, (final,), sequences, written, stream)
