"""C2 in chunks."""
import torch
import torch.nn as nn

from lethe.kernels.mamba3 import selective_scan

CHUNK = 4


def gradients(run, operands, upstream):
    """Gradients of run(*operands) with respect to each operand, detached."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in operands]
        return [g.detach() for g in torch.autograd.grad(run(*leaves), leaves, upstream.detach())]


class ModelNew(nn.Module):
    def __init__(self, width, states):
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))

    def forward(self, u, dt, B, C, dy):
        def run(u, dt, A, B, C, D):
            return selective_scan(u, dt, A, B, C, D, softplus=True, mode="chunked", chunk=CHUNK)[0]

        operands = (u, dt, -torch.exp(self.A_log), B, C, self.D)
        return [run(*operands), *gradients(run, operands, dy)]
