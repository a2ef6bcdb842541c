"""C1 in chunks."""
import torch
import torch.nn as nn

from lethe.kernels.mamba3 import selective_scan

CHUNK = 4


class ModelNew(nn.Module):
    def __init__(self, width, states):
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))

    def forward(self, u, dt, B, C):
        A = -torch.exp(self.A_log)
        return selective_scan(u, dt, A, B, C, self.D, softplus=True, mode="chunked", chunk=CHUNK)[0]
