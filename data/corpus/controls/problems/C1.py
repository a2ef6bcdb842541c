"""C1: selective scan, forward. dt is given before softplus."""
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


class Model(nn.Module):
    def __init__(self, width, states):
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))

    def forward(self, u, dt, B, C):
        return scan(u, F.softplus(dt), -torch.exp(self.A_log), B, C, self.D)


batch = 1
length = 11
width = 34
states = 4


def get_inputs():
    return [
        torch.randn(batch, length, width),
        torch.randn(batch, length, width) - 2,
        torch.randn(batch, length, states),
        torch.randn(batch, length, states),
    ]


def get_init_inputs():
    return [width, states]
