"""C3: the Mamba-3 head with two ranks, backward: the gradients that dout gives, beside the output itself."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotated(t, theta):
    """Turn the pairs (i, i + N/2) by theta [..., N/2]."""
    a, b = t.chunk(2, -1)
    return torch.cat((a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos()), -1)


def head(q, k, v, rate, step, trap, angle, z, q_bias, k_bias, D, mimo_x, mimo_z, mimo_o):
    """q, k [B, L, R, N]; v, z [B, L, H, P]; rate, step, trap [B, H, L]; angle [B, L, H, N/2]."""
    dt = F.softplus(step)
    lam = torch.sigmoid(trap)
    decay = torch.exp(-F.softplus(rate) * dt)
    theta = torch.zeros_like(angle[:, 0])
    S = torch.zeros(v.shape[0], v.shape[2], v.shape[3], q.shape[-1], dtype=v.dtype, device=v.device)
    before = torch.zeros_like(S)
    rows = []
    for t in range(v.shape[1]):
        theta = theta + math.pi * torch.tanh(angle[:, t]) * dt[:, :, t, None]
        query = rotated(q[:, t, None] + q_bias, theta[:, :, None])
        key = rotated(k[:, t, None] + k_bias, theta[:, :, None])
        x = v[:, t, :, None] * mimo_x
        now = (x[..., :, None] * key[..., None, :]).sum(2)
        a, g = decay[:, :, t, None, None], (lam * dt)[:, :, t, None, None]
        S = a * S + ((1 - lam) * dt)[:, :, t, None, None] * a * before + g * now
        before = now
        y = (S[:, :, None] * query[..., None, :]).sum(-1) + D[:, None, None] * x
        rows.append((y * F.silu(z[:, t, :, None] * mimo_z) * mimo_o).sum(2))
    return torch.stack(rows, 1)


def gradients(run, operands, upstream):
    """Gradients of run(*operands) with respect to each operand, detached."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in operands]
        return [g.detach() for g in torch.autograd.grad(run(*leaves), leaves, upstream.detach())]


class Model(nn.Module):
    def __init__(self, heads, states, width, ranks):
        super().__init__()
        self.q_bias = nn.Parameter(torch.randn(heads, ranks, states))
        self.k_bias = nn.Parameter(torch.randn(heads, ranks, states))
        self.D = nn.Parameter(torch.ones(heads))
        self.mimo_x = nn.Parameter(torch.randn(heads, ranks, width))
        self.mimo_z = nn.Parameter(torch.randn(heads, ranks, width))
        self.mimo_o = nn.Parameter(torch.randn(heads, ranks, width))

    def forward(self, q, k, v, rate, step, trap, angle, z, dout):
        parameters = (self.q_bias, self.k_bias, self.D, self.mimo_x, self.mimo_z, self.mimo_o)
        operands = (q, k, v, rate, step, trap, angle, z, *parameters)
        return [head(*operands), *gradients(head, operands, dout)]


batch = 1
length = 11
heads = 2
width = 18
states = 4
ranks = 2


def get_inputs():
    return [
        torch.randn(batch, length, ranks, states),
        torch.randn(batch, length, ranks, states),
        torch.randn(batch, length, heads, width),
        torch.randn(batch, heads, length),
        torch.randn(batch, heads, length) - 1,
        torch.randn(batch, heads, length),
        torch.randn(batch, length, heads, states // 2),
        torch.randn(batch, length, heads, width),
        torch.randn(batch, length, heads, width),
    ]


def get_init_inputs():
    return [heads, states, width, ranks]
