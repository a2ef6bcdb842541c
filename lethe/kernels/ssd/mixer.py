"""`Mamba2Mixer`: the Mamba-2 layer on the engine, with the parameters of the official one.

Names and shapes of the parameters are those of ``mamba_ssm.modules.mamba2.Mamba2`` (Dao and Gu 2024), so that
its ``state_dict`` loads here and the other way round. The convolution, the gated normalisation and the
projections are PyTorch's; everything between them is `ssd`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lethe.kernels.ssd.operator import ssd


class GatedRMSNorm(nn.Module):
    """``x / rms(x) * weight`` over groups of channels, the gate ``silu(z)`` applied before or after."""

    def __init__(self, width: int, groups: int, norm_before_gate: bool, eps: float = 1e-5, **at: Any) -> None:
        super().__init__()
        self.groups, self.norm_before_gate, self.eps = groups, norm_before_gate, eps
        self.weight = nn.Parameter(torch.ones(width, **at))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """x, z [B, L, width]; computed in float32, returned in the dtype of x."""
        y, gate = x.float(), F.silu(z.float())
        if not self.norm_before_gate:
            y = y * gate
        parts = y.unflatten(-1, (self.groups, -1))
        parts = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + self.eps)
        y = parts.flatten(-2) * self.weight.float()
        return (y * gate if self.norm_before_gate else y).to(x.dtype)


class Mamba2Mixer(nn.Module):
    """[B, L, d_model] to the same: project, convolve, `ssd`, gate and normalise, project back.

    Args: as the official layer. d_state N, 64 or 128; headdim P, 64; expand: inner width over d_model;
    ngroups G: shares of B and C; d_ssm: channels that take part in the recurrence (the rest is a gated MLP);
    D_has_hdim: D per channel; rmsnorm: gate and normalise after the recurrence, else `ssd` gates;
    chunk_size, checkpoint_dtype, reuse_checkpoints: see `ssd`.

    Raises ValueError when the widths do not divide, and for a size or a range that is not positive.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1.0, 16.0),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 64,
        *,
        checkpoint_dtype: str = "float32",
        reuse_checkpoints: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if min(d_model, d_state, d_conv, expand, headdim, ngroups) < 1:
            raise ValueError("d_model, d_state, d_conv, expand, headdim and ngroups must be at least 1")
        if not 0 < A_init_range[0] <= A_init_range[1]:
            raise ValueError(f"A_init_range is {A_init_range}; it must be an interval above 0")
        self.d_model, self.d_state, self.headdim, self.ngroups = d_model, d_state, headdim, ngroups
        self.d_inner = expand * d_model
        self.d_ssm = self.d_inner if d_ssm is None else d_ssm
        if self.d_ssm % headdim or not headdim <= self.d_ssm <= self.d_inner:
            raise ValueError(f"d_ssm is {self.d_ssm}; it must be a multiple of headdim={headdim}"
                             f" and at most {self.d_inner}")  # fmt: skip
        self.nheads = self.d_ssm // headdim
        if self.nheads % ngroups:
            raise ValueError(f"{self.nheads} heads cannot be shared out to {ngroups} groups")
        self.dt_limit, self.chunk_size, self.D_has_hdim = dt_limit, chunk_size, D_has_hdim
        self.checkpoint_dtype, self.reuse_checkpoints = checkpoint_dtype, reuse_checkpoints
        at: dict[str, Any] = {"device": device, "dtype": dtype}
        self.conv_dim = self.d_ssm + 2 * ngroups * d_state
        outward = 2 * self.d_inner + 2 * ngroups * d_state + self.nheads
        self.in_proj = nn.Linear(d_model, outward, bias=bias, **at)
        self.conv1d = nn.Conv1d(
            self.conv_dim,
            self.conv_dim,
            d_conv,
            groups=self.conv_dim,
            padding=d_conv - 1,
            bias=conv_bias,
            **at,
        )
        self.dt_bias = nn.Parameter(_step_bias(self.nheads, dt_min, dt_max, dt_init_floor, device).to(dtype))
        low, high = A_init_range
        rates = torch.empty(self.nheads, device=device).uniform_(low, high)
        self.A_log = nn.Parameter(rates.log().to(dtype))
        self.D = nn.Parameter(torch.ones(self.d_ssm if D_has_hdim else self.nheads, device=device))
        for parameter in (self.dt_bias, self.A_log, self.D):
            parameter._no_weight_decay = True  # type: ignore[attr-defined]  # as the official layer marks them
        self.norm = GatedRMSNorm(self.d_ssm, ngroups, norm_before_gate, **at) if rmsnorm else None
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **at)

    @property
    def A(self) -> Tensor:
        """Rates [H], never positive, float32."""
        return -torch.exp(self.A_log.float())

    def forward(self, hidden: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        """hidden [B, L, d_model], bfloat16 or float16; cu_seqlens [sequences + 1] int32 for sequences packed
        in a batch of one, which neither the convolution nor the recurrence crosses.

        Raises ValueError on another width, and whatever `ssd` declines.
        """
        if hidden.dim() != 3 or hidden.shape[2] != self.d_model:
            raise ValueError(
                f"hidden has shape {tuple(hidden.shape)}, expected (B, L, d_model={self.d_model})"
            )
        aside = self.d_inner - self.d_ssm
        z0, x0, z, mixed, dt = self.in_proj(hidden).split(
            [aside, aside, self.d_ssm, self.conv_dim, self.nheads], -1
        )
        mixed = F.silu(self._convolved(mixed, cu_seqlens))
        shared = self.ngroups * self.d_state
        x, B, C = mixed.split([self.d_ssm, shared, shared], -1)
        heads = (self.nheads, self.headdim)
        y = ssd(
            x.unflatten(-1, heads), dt, self.A, B.unflatten(-1, (self.ngroups, -1)),
            C.unflatten(-1, (self.ngroups, -1)), chunk_size=self.chunk_size,
            D=self.D.view(heads) if self.D_has_hdim else self.D,
            z=None if self.norm is not None else z.unflatten(-1, heads), dt_bias=self.dt_bias,
            dt_softplus=True, dt_limit=self.dt_limit, cu_seqlens=cu_seqlens,
            checkpoint_dtype=self.checkpoint_dtype, reuse_checkpoints=self.reuse_checkpoints,
        )  # fmt: skip
        assert isinstance(y, Tensor)
        y = y.flatten(-2)
        if self.norm is not None:
            y = self.norm(y, z)
        if aside:
            y = torch.cat([F.silu(z0) * x0, y], -1)
        out: Tensor = self.out_proj(y)
        return out

    def _convolved(self, stream: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        """The causal depthwise convolution of [B, L, channels]; taps never reach into another sequence."""
        length = stream.shape[1]
        if cu_seqlens is None:
            out: Tensor = self.conv1d(stream.transpose(1, 2))[..., :length].transpose(1, 2)
            return out
        token = torch.arange(length, device=stream.device, dtype=cu_seqlens.dtype)
        sequence = torch.searchsorted(cu_seqlens, token, right=True) - 1
        place = token - cu_seqlens[sequence]
        weight, wide = self.conv1d.weight.squeeze(1).float(), stream.float()
        taps = weight.shape[1]
        summed = torch.zeros_like(wide) if self.conv1d.bias is None else self.conv1d.bias.float()
        for back in range(min(taps, length)):
            shifted = F.pad(wide, (0, 0, back, 0))[:, :length]
            summed = summed + torch.where(place[:, None] >= back, shifted, 0) * weight[:, taps - 1 - back]
        return summed.to(stream.dtype)


def _step_bias(size: int, low: float, high: float, floor: float, device: torch.device | None) -> Tensor:
    """A bias whose softplus is log-uniform in [low, high], at least `floor`."""
    spread = torch.rand(size, device=device) * (math.log(high) - math.log(low)) + math.log(low)
    step = torch.exp(spread).clamp(min=floor)
    return step + torch.log(-torch.expm1(-step))
