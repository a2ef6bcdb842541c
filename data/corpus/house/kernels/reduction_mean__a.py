import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, out_ptr, M, N, inv, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    row_mask = rows < M
    mask = row_mask[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + rows, tl.sum(x, axis=1) * inv, mask=row_mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        m, n = x.shape
        out = torch.empty((m, 1), device=x.device, dtype=x.dtype)
        ROWS = 2
        mean_kernel[(triton.cdiv(m, ROWS),)](x, out, m, n, 1.0 / n, ROWS=ROWS,
                                             BLOCK=triton.next_power_of_2(n), num_warps=4)
        return out
