"""What the kernels are timed against computes the same; a loop stands in for the official scan."""

from __future__ import annotations

import torch

from lethe.kernels.mamba3 import baselines
from lethe.kernels.mamba3.cases import Case, operands
from lethe.references.mamba3_block import BlockInputs, fused_block_forward


class Stand:
    """``selective_scan_cuda.fwd`` in float64: [B, D, L], B and C of one group, softplus, skip and gate."""

    @staticmethod
    def fwd(u, dt, A, B, C, D, z, bias, softplus):
        assert softplus and u.is_contiguous() and B.shape[1] == C.shape[1] == 1
        dt = torch.nn.functional.softplus(dt + bias[:, None])
        h, rows = torch.zeros(*u.shape[:2], A.shape[1], dtype=u.dtype), []
        for t in range(u.shape[-1]):
            h = torch.exp(dt[..., t, None] * A) * h + (dt * u)[..., t, None] * B[:, 0, None, :, t]
            rows.append((h * C[:, 0, None, :, t]).sum(-1))
        out = torch.stack(rows, -1) + D[:, None] * u
        return out, h, out * torch.nn.functional.silu(z)


def test_the_block_beside_ours_computes_the_block() -> None:
    o = operands(Case("block", 2, 37, 8, states=4), "cpu", torch.float64)
    o = {name: t.double() for name, t in o.items()}
    run, leaves = baselines.block(Stand, baselines.across(o))
    with torch.no_grad():
        found = run().transpose(1, 2)
    fields = {f: o[f] for f in BlockInputs._fields}
    # both float64: two orders of sums over 37 tokens, 4 states and 4 taps
    torch.testing.assert_close(found, fused_block_forward(BlockInputs(**fields)), rtol=1e-12, atol=1e-12)
    assert len(leaves) == len(o) and all(t.requires_grad for t in leaves)
