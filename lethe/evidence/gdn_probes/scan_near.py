"""`scan` at the addresses of one sequence and a few heads."""

import cutlass

from lethe.evidence.gdn_probes import variants
from lethe.kernels.gdn.sm90 import scan

HEADS = 2
"""With 32 chunks 9 MB."""

VARIANTS = variants("scan_near", scan.VARIANTS)


def kernel(**options) -> "Near":
    """The probe of one variant."""
    return Near(**options)


class Near(scan.Scan):
    """Every sequence is the first one, every head one of the first few."""

    def chunks(self, n, h, column, decay, cu_seqlens, sequences):
        """The chunks of another sequence and head."""
        return scan.Scan.chunks(self, cutlass.Int32(0), h % HEADS, column, decay, cu_seqlens, sequences)
