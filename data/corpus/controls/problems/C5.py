"""C5: the fused Mamba block, forward."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def scan(u, dt, A, B, C, D):
    """h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t and y_t = C_t . h_t + D u_t, one token after another."""
    h = torch.zeros(u.shape[0], *A.shape, dtype=u.dtype, device=u.device)
    rows = []
    for t in range(u.shape[1]):
        step = dt[:, t, :, None]
        h = torch.exp(step * A) * h + step * u[:, t, :, None] * B[:, t, None, :]
        rows.append((h * C[:, t, None, :]).sum(-1))
    return torch.stack(rows, 1) + D * u


def block(x, dt, A, B, C, D, z, weight, bias, dt_bias):
    """Causal convolution, SiLU, softplus step, scan, skip and SiLU gate."""
    taps = weight.shape[1]
    past = F.pad(x, (0, 0, taps - 1, 0))
    conv = bias + sum(weight[:, j] * past[:, j : j + x.shape[1]] for j in range(taps))
    return scan(F.silu(conv), F.softplus(dt + dt_bias), A, B, C, D) * F.silu(z)


class Model(nn.Module):
    def __init__(self, width, states):
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))
        self.weight = nn.Parameter(torch.randn(width, 4) / 2)
        self.bias = nn.Parameter(torch.randn(width) / 10)
        self.dt_bias = nn.Parameter(torch.randn(width) - 2)

    def forward(self, x, dt, B, C, z):
        A = -torch.exp(self.A_log)
        return block(x, dt, A, B, C, self.D, z, self.weight, self.bias, self.dt_bias)


batch = 1
length = 11
width = 34
states = 4


def get_inputs():
    return [
        torch.randn(batch, length, width),
        torch.randn(batch, length, width),
        torch.randn(batch, length, states),
        torch.randn(batch, length, states),
        torch.randn(batch, length, width),
    ]


def get_init_inputs():
    return [width, states]
