"""`Mamba3Block`: the Mamba-3 layer, SISO and MIMO, in the official parametrisation, on `head_scan`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lethe.kernels.mamba3.block import check_counts, initial_step_bias
from lethe.kernels.mamba3.checks import check_floats
from lethe.kernels.mamba3.head import HeadState, head_scan


def heavy_tail(v: Tensor) -> Tensor:
    """1 + v for v >= 0 and 1 / (1 - v) below: positive, with a tail heavier than softplus."""
    return torch.where(v >= 0, 1 + v, 1 / (1 - v.clamp(max=0)))


class Mamba3Block(nn.Module):
    """A Mamba-3 block without convolution; [B, L, d_model] to the same.

    One projection gives z, x, B, C, the step, the rate, the trapezoid's gate and the angles. B and C are
    RMS-normalised, then biased and rotated inside the scan. The rate ``A = min(-heavy_tail(.), -A_floor)``
    is negative, so a decay is always below one. The angles are shared by the heads. SISO rotates neighbours,
    MIMO the two halves of the state, as the official kernels do.

    Args: d_state N (even); expand: inner width over d_model; headdim P, dividing the inner width; ngroups G,
    dividing the heads; mimo_rank: R, 1 for SISO; rope_fraction: share of the state that rotates; dt_min,
    dt_max, dt_floor: initial steps, log-uniform between the first two, at least the last; A_floor: least
    magnitude of a rate; eps: of the RMS norms; mode, chunk: see `plan`; dtype: of the projections and the
    norms (the rest is float32).

    Raises: ValueError for a size below 1, where headdim or ngroups does not divide, or no pair of states is
    left to rotate; an unknown `mode` is refused by the first call.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        expand: int = 2,
        headdim: int = 64,
        ngroups: int = 1,
        mimo_rank: int = 1,
        rope_fraction: float = 0.5,
        *,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_floor: float = 1e-4,
        A_floor: float = 1e-4,
        eps: float = 1e-5,
        mode: str = "auto",
        chunk: int | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts(d_model=d_model, d_state=d_state, inner_width=expand * d_model)
        check_counts(headdim=headdim, ngroups=ngroups, mimo_rank=mimo_rank)
        self.d_model, self.d_state, self.d_inner = d_model, d_state, expand * d_model
        if self.d_inner % headdim:
            raise ValueError(f"headdim={headdim} does not divide the inner width {self.d_inner}")
        self.headdim, self.nheads, self.ngroups, self.rank = (
            headdim,
            self.d_inner // headdim,
            ngroups,
            mimo_rank,
        )
        if self.nheads % ngroups:
            raise ValueError(f"ngroups={ngroups} does not divide the {self.nheads} heads")
        self.angles = int(d_state * rope_fraction) // 2
        if d_state % 2 or not 1 <= self.angles <= d_state // 2:
            raise ValueError(f"d_state={d_state} and rope_fraction={rope_fraction} leave no pairs to rotate")
        self.A_floor, self.eps, self.mode, self.chunk = A_floor, eps, mode, chunk
        at: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(d_model, sum(self._split()), bias=False, **at)
        self.dt_bias = nn.Parameter(initial_step_bias(self.nheads, dt_min, dt_max, dt_floor, device))
        self.B_bias = nn.Parameter(torch.ones(self.nheads, mimo_rank, d_state, device=device))
        self.C_bias = nn.Parameter(torch.ones(self.nheads, mimo_rank, d_state, device=device))
        self.B_norm = nn.RMSNorm(d_state, eps=eps, **at)
        self.C_norm = nn.RMSNorm(d_state, eps=eps, **at)
        self.D = nn.Parameter(torch.ones(self.nheads, device=device))
        if mimo_rank > 1:
            shape = (self.nheads, mimo_rank, headdim)
            self.mimo_x = nn.Parameter(torch.full(shape, 1 / mimo_rank, device=device))
            self.mimo_z = nn.Parameter(torch.ones(shape, device=device))
            self.mimo_o = nn.Parameter(torch.full(shape, 1 / mimo_rank, device=device))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False, **at)

    def _split(self) -> list[int]:
        """Widths in the projection: z, x, B, C, step, rate, trapezoid, angles."""
        wide = self.d_state * self.ngroups * self.rank
        return [self.d_inner, self.d_inner, wide, wide, self.nheads, self.nheads, self.nheads, self.angles]

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, L, d_model] to the same shape and dtype, which is that of the layer's projections.

        Raises: TypeError unless float32, float16 or bfloat16, ValueError for another width, and without a GPU
        where Triton is not interpreted.
        """
        return self.scan(hidden)[0]

    def scan(self, hidden: Tensor, state: HeadState | None = None) -> tuple[Tensor, HeadState]:
        """The block's output, as of `forward`, and the state to continue from. A prompt may be cut anywhere.

        state: what an earlier call returned; None begins with zeros. Raises as `forward` and `head_scan` do.
        """
        check_floats(hidden=hidden)
        if hidden.dim() != 3 or hidden.shape[2] != self.d_model:
            raise ValueError(
                f"hidden has shape {tuple(hidden.shape)}, expected (B, L, d_model={self.d_model})"
            )
        batch, length, _ = hidden.shape
        z, x, B, C, step, rate, trap, angle = self.in_proj(hidden).split(self._split(), -1)
        by_head = (batch, length, self.nheads, self.headdim)
        by_rank = (batch, length, self.rank, self.ngroups, self.d_state)
        dt = F.softplus(step.float() + self.dt_bias).transpose(1, 2)
        A = (-heavy_tail(rate.float())).clamp(max=-self.A_floor).transpose(1, 2)
        mimo: dict[str, Any] = {}
        if self.rank > 1:
            mimo = {"mimo_x": self.mimo_x, "mimo_z": self.mimo_z, "mimo_o": self.mimo_o}
        y, state = head_scan(
            self.C_norm(C.reshape(by_rank)), self.B_norm(B.reshape(by_rank)), x.reshape(by_head), A * dt, dt,
            self.C_bias, self.B_bias, angle[:, :, None].expand(-1, -1, self.nheads, -1),
            trap=trap.transpose(1, 2), D=self.D, z=z.reshape(by_head), pairwise=self.rank == 1, state=state,
            mode=self.mode, chunk=self.chunk, **mimo,
        )  # fmt: skip
        return self.out_proj(y.reshape(batch, length, self.d_inner)), state
