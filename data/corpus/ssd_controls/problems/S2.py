"""S2: Mamba-2's SSD, backward: every gradient that dy and dfinal give, beside output and final states."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def operand(t):
    """What a product of 16-bit operands takes of t."""
    return t.to(torch.bfloat16).float()


class Rounded(torch.autograd.Function):
    """`operand` of what a product takes; what comes back is a float32 sum."""

    @staticmethod
    def forward(ctx, t):
        return operand(t)

    @staticmethod
    def backward(ctx, g):
        return g


class Returned(torch.autograd.Function):
    """t as it is; what comes back is kept in 16 bits, or meets a product that takes as many."""

    @staticmethod
    def forward(ctx, t):
        return t.clone()

    @staticmethod
    def backward(ctx, g):
        return operand(g)


class Read(torch.autograd.Function):
    """q S^T, of a state in 16 bits; what comes back to it is a product that takes q in as many."""

    @staticmethod
    def forward(ctx, q, S):
        ctx.save_for_backward(q, S)
        return q @ operand(S).mT

    @staticmethod
    def backward(ctx, g):
        q, S = ctx.saved_tensors
        return g @ operand(S), g.mT @ operand(q)


class Kept(torch.autograd.Function):
    """e^c S; for c the product of the state that enters and the adjoint of the one that leaves, as kept."""

    @staticmethod
    def forward(ctx, S, c):
        ctx.save_for_backward(S, c)
        return torch.exp(c) * S

    @staticmethod
    def backward(ctx, g):
        S, c = ctx.saved_tensors
        return torch.exp(c) * g, torch.exp(c) * (S * operand(g)).sum((-2, -1), keepdim=True)


def ssd(x, dt, B, C, z, initial, A, D, dt_bias, chunk):
    """The chunked form of Dao and Gu (2024), listing 1: x [b, l, h, p], dt [b, l, h], B, C [b, l, g, n]."""
    x, dt, B, C, z = map(operand, (x, dt, B, C, z))
    length, heads = x.shape[1:3]
    S = initial
    step = F.softplus(dt + dt_bias)
    share = heads // B.shape[2]
    rows = []
    for first in range(0, length, chunk):
        part = slice(first, first + chunk)
        log = (step[:, part] * A).cumsum(1)
        between = (log[:, :, None] - log[:, None]).permute(0, 3, 1, 2)
        seen = torch.ones(between.shape[-2:], dtype=torch.bool, device=x.device).tril()
        between = torch.where(seen & seen.mT, between.detach(), between)  # no step lies between t and t
        decay = torch.exp(between.masked_fill(~seen, -torch.inf))
        u, k, q = (t[:, part].transpose(1, 2) for t in (x, B, C))
        pairs = Returned.apply(q @ k.mT).repeat_interleave(share, 1)
        k, q = (t.repeat_interleave(share, 1) for t in (k, q))
        log, w = (t.transpose(1, 2)[..., None] for t in (log, step[:, part]))
        last = log[:, :, -1:]
        y = Rounded.apply(pairs * decay * w.mT) @ u + Read.apply(torch.exp(log) * q, S)
        S = Kept.apply(S, last) + Returned.apply(u.mT @ Rounded.apply(torch.exp(last - log) * w * k))
        rows.append(y.transpose(1, 2))
    y = Returned.apply(torch.cat(rows, 1) + D * x) * F.silu(z)
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
