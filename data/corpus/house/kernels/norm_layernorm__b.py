import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layernorm_tile_kernel(x_ptr, w_ptr, b_ptr, out_ptr, M, eps,
                          N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # ROWS rows per program, looped over column blocks that divide the width with no waste;
    # sum and sum of squares in one pass
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = rows < M
    row_offs = rows[:, None] * N
    s = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    ss = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in tl.static_range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = row_mask[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + row_offs + cols[None, :], mask=mask, other=0.0)
        s += x
        ss += x * x
    mean = tl.sum(s, axis=1) / N
    var = tl.sum(ss, axis=1) / N - mean * mean
    rstd = tl.rsqrt(var + eps)
    shift = -mean * rstd
    for start in tl.static_range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = row_mask[:, None] & (cols < N)[None, :]
        w = tl.load(w_ptr + cols, mask=cols < N, other=0.0)
        b = tl.load(b_ptr + cols, mask=cols < N, other=0.0)
        x = tl.load(x_ptr + row_offs + cols[None, :], mask=mask, other=0.0)
        y = (x * rstd[:, None] + shift[:, None]) * w[None, :] + b[None, :]
        tl.store(out_ptr + row_offs + cols[None, :], y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        gen = torch.Generator().manual_seed(11)
        with torch.no_grad():
            self.norm.weight.copy_(1.0 + 0.1 * torch.randn(width, generator=gen))
            self.norm.bias.copy_(0.1 * torch.randn(width, generator=gen))

    def forward(self, x):
        x = x.contiguous()
        n = x.shape[-1]
        m = x.numel() // n
        out = torch.empty_like(x)
        ROWS = 2
        layernorm_tile_kernel[(triton.cdiv(m, ROWS),)](
            x, self.norm.weight, self.norm.bias, out, m, self.norm.eps,
            N=n, ROWS=ROWS, BLOCK=256, num_warps=4)
        return out
