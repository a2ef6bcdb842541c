import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"ROWS": 4}, num_warps=4),
        triton.Config({"ROWS": 1}, num_warps=2),
        triton.Config({"ROWS": 1}, num_warps=4),
        triton.Config({"ROWS": 2}, num_warps=4),
        triton.Config({"ROWS": 4}, num_warps=8),
    ],
    key=["M", "N"],
)
@triton.jit
def rmsnorm_rows_kernel(x_ptr, g_ptr, out_ptr, M, N, inv_n, eps,
                        BLOCK: tl.constexpr, ROWS: tl.constexpr):
    # several rows per program so that the gain vector is read once for all of them
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    col_mask = cols < N
    mask = (rows < M)[:, None] & col_mask[None, :]
    offs = rows[:, None] * N + cols[None, :]
    g = tl.load(g_ptr + cols, mask=col_mask, other=0.0)
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    rrms = tl.rsqrt(tl.sum(x * x, axis=1) * inv_n + eps)
    tl.store(out_ptr + offs, x * rrms[:, None] * g[None, :], mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.eps = eps
        gen = torch.Generator().manual_seed(12)
        self.gain = nn.Parameter(1.0 + 0.1 * torch.randn(width, generator=gen))

    def forward(self, x):
        x = x.contiguous()
        n = x.shape[-1]
        m = x.numel() // n
        out = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(m, meta["ROWS"]),)
        rmsnorm_rows_kernel[grid](x, self.gain, out, m, n, 1.0 / n, self.eps,
                                  BLOCK=triton.next_power_of_2(n))
        return out
