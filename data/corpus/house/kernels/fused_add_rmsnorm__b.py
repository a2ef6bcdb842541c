import torch
import torch.nn as nn
import triton
import triton.language as tl


# Several rows per program, columns in chunks: pass 1 writes the new residual and
# accumulates the squares, pass 2 re-reads the (now cached) inputs and scales their sum.
@triton.autotune(
    configs=[
        triton.Config({"ROWS": 2, "BLOCK": 256}, num_warps=4),
        triton.Config({"ROWS": 1, "BLOCK": 512}, num_warps=4),
        triton.Config({"ROWS": 1, "BLOCK": 1024}, num_warps=4),
        triton.Config({"ROWS": 4, "BLOCK": 128}, num_warps=4),
    ],
    key=["n_rows", "n_cols"],
)
@triton.jit
def add_rmsnorm_rows_kernel(
    x_ptr, res_ptr, gain_ptr, y_ptr, total_ptr,
    n_rows, n_cols, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_ok = rows < n_rows
    base = rows[:, None] * n_cols

    sq = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        ok = row_ok[:, None] & (cols[None, :] < n_cols)
        off = base + cols[None, :]
        t = tl.load(x_ptr + off, mask=ok, other=0.0) + tl.load(res_ptr + off, mask=ok, other=0.0)
        tl.store(total_ptr + off, t, mask=ok)
        sq += t * t
    inv = 1.0 / tl.sqrt(tl.sum(sq, axis=1) / n_cols + eps)

    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        c_ok = cols < n_cols
        ok = row_ok[:, None] & c_ok[None, :]
        off = base + cols[None, :]
        # recompute the sum from the inputs: no dependence on our own stores
        t = tl.load(x_ptr + off, mask=ok, other=0.0) + tl.load(res_ptr + off, mask=ok, other=0.0)
        g = tl.load(gain_ptr + cols, mask=c_ok, other=0.0)
        tl.store(y_ptr + off, t * inv[:, None] * g[None, :], mask=ok)


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
        grid = lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)
        add_rmsnorm_rows_kernel[grid](x, residual, self.gain, y, total, n_rows, n_cols, self.eps)
        return y, total
