"""C3 in chunks."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from lethe.kernels.mamba3 import head_scan

CHUNK = 4


def gradients(run, operands, upstream):
    """Gradients of run(*operands) with respect to each operand, detached."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in operands]
        return [g.detach() for g in torch.autograd.grad(run(*leaves), leaves, upstream.detach())]


class ModelNew(nn.Module):
    def __init__(self, heads, states, width, ranks):
        super().__init__()
        self.q_bias = nn.Parameter(torch.randn(heads, ranks, states))
        self.k_bias = nn.Parameter(torch.randn(heads, ranks, states))
        self.D = nn.Parameter(torch.ones(heads))
        self.mimo_x = nn.Parameter(torch.randn(heads, ranks, width))
        self.mimo_z = nn.Parameter(torch.randn(heads, ranks, width))
        self.mimo_o = nn.Parameter(torch.randn(heads, ranks, width))

    def forward(self, q, k, v, rate, step, trap, angle, z, dout):
        def run(q, k, v, rate, step, trap, angle, z, q_bias, k_bias, D, mimo_x, mimo_z, mimo_o):
            dt = F.softplus(step)
            options = {"trap": trap, "D": D, "z": z, "mimo_x": mimo_x, "mimo_z": mimo_z, "mimo_o": mimo_o}
            q, k, adt = q[:, :, :, None], k[:, :, :, None], -F.softplus(rate) * dt
            how = {"pairwise": False, "mode": "chunked", "chunk": CHUNK}
            return head_scan(q, k, v, adt, dt, q_bias, k_bias, angle, **options, **how)[0]

        parameters = (self.q_bias, self.k_bias, self.D, self.mimo_x, self.mimo_z, self.mimo_o)
        operands = (q, k, v, rate, step, trap, angle, z, *parameters)
        return [run(*operands), *gradients(run, operands, dout)]
