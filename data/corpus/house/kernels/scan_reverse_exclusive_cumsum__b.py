import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def suffix_from_prefix_kernel(x_ptr, out_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # sum of later elements = row total - inclusive prefix sum: one forward scan, no flips
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    offs = rows[:, None] * N + cols[None, :]
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    total = tl.sum(x, axis=1)
    tl.store(out_ptr + offs, total[:, None] - tl.cumsum(x, axis=1), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        m, n = x.shape
        out = torch.empty_like(x)
        ROWS = 2
        suffix_from_prefix_kernel[(triton.cdiv(m, ROWS),)](
            x, out, m, n, ROWS=ROWS, BLOCK=triton.next_power_of_2(n), num_warps=8)
        return out
