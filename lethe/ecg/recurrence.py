"""The two blocks in plain torch operators, for machines without a GPU; the kernels' equals to rounding.

On a CPU the Triton kernels run in Triton's interpreter, which is made for testing and a thousand times too
slow to train with. `PlainMamba` and `PlainMamba3` have the parameters of `MambaBlock` and `Mamba3Block` and
compute the same functions:

* the selective scan as a loop over the tokens, with its adjoint written out (`selective_scan`);
* the head scan in its quadratic form: decays depend on the head alone, so the recurrence is one masked
  product of queries and keys (Dao and Gu 2024, section 3).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lethe.kernels.mamba3.block import MambaBlock
from lethe.kernels.mamba3.block3 import Mamba3Block, heavy_tail


class _SelectiveScan(torch.autograd.Function):
    """The scan and its adjoint, a token at a time over [B, D, N] tiles that stay in a core's cache.

    Every tile of a token is touched a dozen times; written out for the whole sequence, as operators with
    their own autograd would, each of those passes goes through main memory and takes ten times as long.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        length, batch, width = u.shape
        h, y = u.new_empty(length, batch, width, A.shape[1]), torch.empty_like(u)
        weighed, decay = dt * u, u.new_empty(batch, width, A.shape[1])
        for t in range(length):
            torch.mul(weighed[t, :, :, None], B[t, :, None], out=h[t])
            if t:
                torch.mul(dt[t, :, :, None], A, out=decay)
                h[t].addcmul_(decay.exp_(), h[t - 1])
            torch.bmm(h[t], C[t, :, :, None], out=y[t, :, :, None])
        ctx.save_for_backward(u, dt, A, B, C, h)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        u, dt, A, B, C, h = ctx.saved_tensors
        weighed, dweighed, ddt = dt * u, torch.empty_like(u), torch.zeros_like(dt)
        dA, dB, dC = torch.zeros_like(A), torch.empty_like(B), torch.empty_like(C)
        g, decay = torch.zeros_like(h[0]), torch.empty_like(h[0])
        for t in reversed(range(u.shape[0])):
            g.addcmul_(dy[t, :, :, None], C[t, :, None])
            torch.bmm(dy[t, :, None], h[t], out=dC[t, :, None])
            torch.bmm(g, B[t, :, :, None], out=dweighed[t, :, :, None])
            torch.bmm(weighed[t, :, None], g, out=dB[t, :, None])
            if t:
                torch.mul(dt[t, :, :, None], A, out=decay)
                g.mul_(decay.exp_())
                torch.mul(g, h[t - 1], out=decay)  # the adjoint of dt_t A
                dA.add_(torch.einsum("bdn,bd->dn", decay, dt[t]))
                torch.sum(decay.mul_(A), -1, out=ddt[t])
        return dweighed * dt, ddt.addcmul_(dweighed, u), dA, dB, dC


def selective_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """y [B, L, D] with h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t and y_t = C_t . h_t, differentiable.

    u, dt [B, L, D], A [D, N], B, C [B, L, N], all float32.
    """
    u, dt, B, C = (t.transpose(0, 1).contiguous() for t in (u, dt, B, C))
    y: Tensor = _SelectiveScan.apply(u, dt, A, B, C)
    return y.transpose(0, 1)


def _wide(t: Tensor) -> Tensor:
    """float32, as the kernels compute; float64 stays, for comparisons."""
    return t if t.dtype == torch.float64 else t.float()


class PlainMamba(MambaBlock):
    """`MambaBlock` with ``select="input"`` in torch operators; float32 between the projections or float64."""

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, L, d_model] to the same. Raises ValueError with ``select="conv"``."""
        if self.x_proj is not None:
            raise ValueError("the torch path has select='input', the block that C5 and C6 compute")
        sizes = [self.d_inner, self.d_inner, self.dt_rank, self.d_state, self.d_state]
        x, z, low, B, C = self.in_proj(hidden).split(sizes, -1)
        u = _wide(F.silu(self.conv1d(x.transpose(1, 2))[..., : hidden.shape[1]])).transpose(1, 2)
        dt = F.softplus(_wide(F.linear(low, self.dt_proj.weight)) + self.dt_proj.bias)
        y = selective_scan(u, dt, -torch.exp(self.A_log), _wide(B), _wide(C)) + self.D * u
        return self.out_proj((y * F.silu(_wide(z))).to(x.dtype))


def rotate_pairs(t: Tensor, theta: Tensor) -> Tensor:
    """t [..., N] with its pairs (2i, 2i+1) turned by theta [..., S], S <= N/2; the others pass."""
    theta = F.pad(theta, (0, t.shape[-1] // 2 - theta.shape[-1]))
    a, b, cos, sin = t[..., 0::2], t[..., 1::2], theta.cos(), theta.sin()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class PlainMamba3(Mamba3Block):
    """`Mamba3Block` of one rank and one group in torch operators; [B, H, L, L] weights between the tokens."""

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, L, d_model] to the same. Raises ValueError for several ranks or groups."""
        if self.rank != 1 or self.ngroups != 1:
            raise ValueError("the torch path has one rank and one group; the kernels have more")
        batch, length, _ = hidden.shape
        z, x, B, C, step, rate, trap, angle = self.in_proj(hidden).split(self._split(), -1)
        x, z = (_wide(t).reshape(batch, length, self.nheads, self.headdim) for t in (x, z))
        dt = F.softplus(_wide(step) + self.dt_bias)
        lam = torch.sigmoid(_wide(trap))
        decay = torch.cumsum((-heavy_tail(_wide(rate))).clamp(max=-self.A_floor) * dt, 1).transpose(1, 2)
        turn = math.pi * torch.tanh(_wide(angle))[:, :, None] * dt[..., None]
        q = rotate_pairs(_wide(self.C_norm(C))[:, :, None] + self.C_bias[:, 0], torch.cumsum(turn, 1))
        k = rotate_pairs(_wide(self.B_norm(B))[:, :, None] + self.B_bias[:, 0], torch.cumsum(turn, 1))
        now, late = lam * dt, F.pad(((1 - lam) * dt)[:, 1:], (0, 0, 0, 1))
        past = torch.ones(length, length, dtype=torch.bool, device=hidden.device).tril(-1)
        gap = decay[..., :, None] - decay[..., None, :]
        reach = torch.exp(gap.masked_fill(~past, -math.inf)) * (now + late).transpose(1, 2)[:, :, None]
        reach = reach + torch.diag_embed(now.transpose(1, 2))
        weights = torch.einsum("bthn,bshn->bhts", q, k) * reach
        y = torch.einsum("bhts,bshp->bthp", weights, x) + self.D[:, None] * x
        return self.out_proj((y * F.silu(z)).reshape(batch, length, self.d_inner).to(hidden.dtype))
