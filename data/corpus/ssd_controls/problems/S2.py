"""S2: Mamba-2's SSD, backward: every gradient that dy and dfinal give, beside output and final states."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def operand(t):
    """What a product of 16-bit operands takes of t."""
    return t.to(torch.bfloat16).float()


def ssd(x, dt, B, C, z, initial, A, D, dt_bias, chunk):
    """The chunked form of Dao and Gu (2024), listing 1: x [b, l, h, p], dt [b, l, h], B, C [b, l, g, n]."""
    x, dt, B, C, z = map(operand, (x, dt, B, C, z))
    length, heads = x.shape[1:3]
    step = F.softplus(dt + dt_bias)
    B, C = (t.repeat_interleave(heads // t.shape[2], 2) for t in (B, C))
    driven = operand(x * step[..., None])
    S = initial
    rows = []
    for first in range(0, length, chunk):
        part = slice(first, first + chunk)
        log = (step[:, part] * A).cumsum(1)
        between = (log[:, :, None] - log[:, None]).permute(0, 3, 1, 2)
        seen = torch.ones(between.shape[-2:], dtype=torch.bool, device=x.device).tril()
        decay = torch.exp(between.masked_fill(~seen, -torch.inf))
        u, k, q = (t[:, part].transpose(1, 2) for t in (driven, B, C))
        log = log.transpose(1, 2)[..., None]
        y = operand(q @ k.mT * decay) @ u + torch.exp(log) * (q @ operand(S).mT)
        S = torch.exp(log[:, :, -1:]) * S + operand(torch.exp(log[:, :, -1:] - log) * u).mT @ k
        rows.append(y.transpose(1, 2))
    y = (torch.cat(rows, 1) + D * x) * F.silu(z)
    return [y.to(torch.bfloat16), S]


def gradients(run, operands, upstream):
    """Gradients of run(*operands) with respect to each operand, detached."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in operands]
        return [g.detach() for g in torch.autograd.grad(run(*leaves), leaves, [g.detach() for g in upstream])]


class Model(nn.Module):
    chunk = 32

    def __init__(self, heads):
        super().__init__()
        self.A_log = nn.Parameter(torch.linspace(-2.0, 0.5, heads))
        self.D = nn.Parameter(torch.ones(heads, 64))
        self.dt_bias = nn.Parameter(torch.linspace(-2.0, 0.0, heads))

    def forward(self, x, dt, B, C, z, initial, dy, dfinal):
        if x.shape[-1] != 64 or B.shape[-1] not in (64, 128):
            raise ValueError("declared for 64 channels and 64 or 128 states a head")

        def run(*operands):
            return ssd(*operands, self.chunk)

        operands = (x, dt, B, C, z, initial, -torch.exp(self.A_log), self.D, self.dt_bias)
        return [*run(*operands), *gradients(run, operands, [dy.to(torch.bfloat16), dfinal])]


batch = 1
length = 75
heads = 6
groups = 2
width = 64
states = 64


def get_inputs():
    return [
        torch.randn(batch, length, heads, width),
        torch.randn(batch, length, heads),
        torch.randn(batch, length, groups, states),
        torch.randn(batch, length, groups, states),
        torch.randn(batch, length, heads, width),
        torch.randn(batch, heads, width, states),
        torch.randn(batch, length, heads, width),
        torch.randn(batch, heads, width, states),
    ]


def get_init_inputs():
    return [heads]
