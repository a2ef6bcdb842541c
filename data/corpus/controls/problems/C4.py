"""C4: the Mamba-3 head, one rank: data-dependent rotation, trapezoidal scan, skip and gate."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotated(t, theta):
    """Turn the pairs (2i, 2i+1) by theta [..., N/2]."""
    a, b = t[..., 0::2], t[..., 1::2]
    return torch.stack((a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos()), -1).flatten(-2)


class Model(nn.Module):
    def __init__(self, heads, states):
        super().__init__()
        self.q_bias = nn.Parameter(torch.randn(heads, states))
        self.k_bias = nn.Parameter(torch.randn(heads, states))
        self.D = nn.Parameter(torch.ones(heads))

    def forward(self, q, k, v, rate, step, trap, angle, z):
        dt = F.softplus(step)
        lam = torch.sigmoid(trap)
        decay = torch.exp(-F.softplus(rate) * dt)
        theta = torch.zeros_like(angle[:, 0])
        S = torch.zeros(v.shape[0], v.shape[2], v.shape[3], q.shape[-1], dtype=v.dtype, device=v.device)
        before = torch.zeros_like(S)
        rows = []
        for t in range(v.shape[1]):
            theta = theta + math.pi * torch.tanh(angle[:, t]) * dt[:, :, t, None]
            query = rotated(q[:, t, None] + self.q_bias, theta)
            key = rotated(k[:, t, None] + self.k_bias, theta)
            now = v[:, t, :, :, None] * key[:, :, None, :]
            a, g = decay[:, :, t, None, None], (lam * dt)[:, :, t, None, None]
            S = a * S + ((1 - lam) * dt)[:, :, t, None, None] * a * before + g * now
            before = now
            y = (S * query[:, :, None, :]).sum(-1) + self.D[:, None] * v[:, t]
            rows.append(y * F.silu(z[:, t]))
        return torch.stack(rows, 1)


batch = 1
length = 11
heads = 2
width = 18
states = 4


def get_inputs():
    return [
        torch.randn(batch, length, states),
        torch.randn(batch, length, states),
        torch.randn(batch, length, heads, width),
        torch.randn(batch, heads, length),
        torch.randn(batch, heads, length) - 1,
        torch.randn(batch, heads, length),
        torch.randn(batch, length, heads, states // 2),
        torch.randn(batch, length, heads, width),
    ]


def get_init_inputs():
    return [heads, states]
