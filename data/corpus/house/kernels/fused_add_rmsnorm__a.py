import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_rmsnorm_kernel(
    x_ptr, res_ptr, gain_ptr, y_ptr, total_ptr,
    n_cols, eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    base = row * n_cols
    x = tl.load(x_ptr + base + cols, mask=mask, other=0.0)
    r = tl.load(res_ptr + base + cols, mask=mask, other=0.0)
    g = tl.load(gain_ptr + cols, mask=mask, other=0.0)
    t = x + r
    tl.store(total_ptr + base + cols, t, mask=mask)
    ms = tl.sum(t * t, axis=0) / n_cols
    scale = tl.rsqrt(ms + eps)
    tl.store(y_ptr + base + cols, t * scale * g, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.eps = eps
        gen = torch.Generator().manual_seed(21)
        self.gain = nn.Parameter(1.0 + 0.1 * torch.randn(width, generator=gen))

    def forward(self, x, residual):
        x = x.contiguous()
        residual = residual.contiguous()
        y = torch.empty_like(x)
        total = torch.empty_like(x)
        n_cols = x.shape[-1]
        n_rows = x.numel() // n_cols
        add_rmsnorm_kernel[(n_rows,)](
            x, residual, self.gain, y, total, n_cols, self.eps,
            BLOCK=triton.next_power_of_2(n_cols), num_warps=4,
        )
        return y, total
