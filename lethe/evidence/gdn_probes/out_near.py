"""`out` at the addresses of a few slots."""

from lethe.evidence.gdn_probes import variants
from lethe.kernels.gdn.sm90 import out
from lethe.kernels.gdn.sm90.out_spec import DK, Spec

SLOTS = 4
"""With 16 heads 21 MB of inputs, gradients, states and squares."""

VARIANTS = variants("out_near", out.VARIANTS)


def kernel(dk: int, **options) -> "Near":
    """The probe of one variant."""
    assert dk == DK
    return Near(Spec(**options))


class Near(out.Out):
    """Every slot is one of the first few."""

    def locate(self, slot, cu_seqlens, length):
        """The chunk of another slot."""
        return out.Out.locate(self, slot % SLOTS, cu_seqlens, length)

    def sources(self, number: int, to: tuple):
        """Of what comes by slot, that of another slot."""
        loads, a, work, start, head = to
        return out.Out.sources(self, number, (loads, a, work % (SLOTS * a.shape[1]), start, head))
