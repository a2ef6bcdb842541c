"""`out` without arithmetic: the loader as it is, consumers that only say that they are done, zeros for dg."""

from cutlass import cute

from lethe.evidence.gdn_probes import variants
from lethe.kernels.gdn.sm90 import out
from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_fragments import Float32
from lethe.kernels.gdn.sm90.out_spec import DK, Spec
from lethe.kernels.gdn.sm90.out_values import arrive

VARIANTS = variants("out_bytes", out.VARIANTS)


def kernel(dk: int, **options) -> "Bytes":
    """The probe of one variant."""
    assert dk == DK
    return Bytes(Spec(**options))


class Bytes(out.Out):
    """What stands in the tiles of inputs is stored as their gradients."""

    def chunk(self, place, operands, barriers, where: tuple, gates: tuple, states: list, scale) -> None:
        """Wait for every set of tiles, give it back at once."""
        _, _, phase, start, valid, head = where
        for number in range(at.LOADED):
            cute.arch.mbarrier_wait(barriers + number, phase)
        cute.arch.sync_warp()
        for number in range(at.LOADED, at.BARRIERS):
            arrive(barriers + number)
        if self.spec.gate == "channel":
            self.wide(place, start, valid, head).store(gates[2], [Float32(0.0)] * 32)
