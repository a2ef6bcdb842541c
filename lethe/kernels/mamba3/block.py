"""`MambaBlock`: a Mamba-1-shaped layer on the selective scan and the fused block."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lethe.kernels.mamba3.checks import check_floats
from lethe.kernels.mamba3.scan import fused_block, selective_scan


def check_counts(**sizes: int) -> None:
    """Raise ValueError naming the first size of a layer that is below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")


def initial_step_bias(
    size: int, low: float, high: float, floor: float, device: torch.device | None
) -> Tensor:
    """A bias [size], float32, whose softplus is log-uniform in [low, high] and at least `floor`.

    The initialisation of Gu and Dao (2023), section 3.6.
    """
    spread = torch.rand(size, device=device) * (math.log(high) - math.log(low)) + math.log(low)
    step = torch.exp(spread).clamp(min=floor)
    return step + torch.log(-torch.expm1(-step))


class MambaBlock(nn.Module):
    """A Mamba block: project, convolve, scan, gate, project back; [B, L, d_model] to the same.

    The rates are ``A = -exp(A_log)``: negative for every value that an optimiser may reach, so a decay
    never exceeds one. Two ways to obtain the step, B and C:

    * ``select="conv"``: from the convolved stream, as Mamba-1 does (`selective_scan`; C1/C2). The parameters
      have the names and shapes of the reference layer.
    * ``select="input"``: from the layer's input beside x and z, as Mamba-2 does; everything between the two
      projections is then one operator (`fused_block`; C5/C6).

    Args: d_state N; d_conv <= 4 taps; expand: inner width over d_model; dt_rank: rank of the step's
    projection, ``ceil(d_model / 16)`` if None; dt_min, dt_max, dt_floor: initial steps, log-uniform between
    the first two, at least the last; mode, chunk: see `plan`; dtype: of the projections and the convolution
    (A_log and D are float32).

    Raises: ValueError for another `select` or `d_conv`, or a size below 1; an unknown `mode` is refused by
    the first call.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        select: str = "conv",
        *,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_floor: float = 1e-4,
        mode: str = "auto",
        chunk: int | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if select not in ("conv", "input"):
            raise ValueError(f"select is {select!r}; choose conv or input")
        if not 1 <= d_conv <= 4:
            raise ValueError(f"d_conv is {d_conv}; the kernels have up to 4 taps")
        check_counts(d_model=d_model, d_state=d_state, inner_width=expand * d_model)
        if dt_rank is not None:
            check_counts(dt_rank=dt_rank)
        self.d_model, self.d_state, self.select, self.mode, self.chunk = d_model, d_state, select, mode, chunk
        self.d_inner = expand * d_model
        self.dt_rank = math.ceil(d_model / 16) if dt_rank is None else dt_rank
        at: dict[str, Any] = {"device": device, "dtype": dtype}
        small = self.dt_rank + 2 * d_state
        outward = 2 * self.d_inner + (small if select == "input" else 0)
        self.in_proj = nn.Linear(d_model, outward, bias=False, **at)
        self.conv1d = nn.Conv1d(
            self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1, **at
        )
        self.x_proj = nn.Linear(self.d_inner, small, bias=False, **at) if select == "conv" else None
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner, **at)
        with torch.no_grad():
            bound = self.dt_rank**-0.5
            self.dt_proj.weight.uniform_(-bound, bound)
            self.dt_proj.bias.copy_(initial_step_bias(self.d_inner, dt_min, dt_max, dt_floor, device))
        rates = torch.arange(1, d_state + 1, device=device, dtype=torch.float32).repeat(self.d_inner, 1)
        self.A_log = nn.Parameter(rates.log())
        self.D = nn.Parameter(torch.ones(self.d_inner, device=device))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False, **at)

    @property
    def A(self) -> Tensor:
        """Rates [D, N], never positive."""
        return -torch.exp(self.A_log.float())

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, L, d_model] to the same shape and dtype, which is that of the layer's projections.

        Raises: TypeError unless float32, float16 or bfloat16, ValueError for another width, and without a GPU
        where Triton is not interpreted.
        """
        check_floats(hidden=hidden)
        if hidden.dim() != 3 or hidden.shape[2] != self.d_model:
            raise ValueError(
                f"hidden has shape {tuple(hidden.shape)}, expected (B, L, d_model={self.d_model})"
            )
        projected = self.in_proj(hidden)
        step_bias = self.dt_proj.bias
        if self.x_proj is None:
            sizes = [self.d_inner, self.d_inner, self.dt_rank, self.d_state, self.d_state]
            x, z, low, B, C = projected.split(sizes, -1)
            dt = F.linear(low, self.dt_proj.weight)
            weight = self.conv1d.weight.squeeze(1)
            assert self.conv1d.bias is not None
            y = fused_block(
                x,
                dt,
                self.A,
                B,
                C,
                self.D,
                z,
                weight,
                self.conv1d.bias,
                step_bias,
                mode=self.mode,
                chunk=self.chunk,
            )
        else:
            x, z = projected.chunk(2, -1)
            x = F.silu(self.conv1d(x.transpose(1, 2))[..., : hidden.shape[1]]).transpose(1, 2)
            low, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], -1)
            dt = F.linear(low, self.dt_proj.weight)
            y, _ = selective_scan(
                x,
                dt,
                self.A,
                B,
                C,
                self.D,
                z=z,
                dt_bias=step_bias,
                softplus=True,
                mode=self.mode,
                chunk=self.chunk,
            )
        return self.out_proj(y)
