import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def logsumexp_kernel(x_ptr, out_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    row_mask = rows < M
    mask = row_mask[:, None] & (cols < N)[None, :]
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :], mask=mask, other=float("-inf"))
    m = tl.max(x, axis=1)
    s = tl.sum(tl.exp(x - m[:, None]), axis=1)
    tl.store(out_ptr + rows, m + tl.log(s), mask=row_mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        m, n = x.shape
        out = torch.empty((m,), device=x.device, dtype=x.dtype)
        ROWS = 2
        logsumexp_kernel[(triton.cdiv(m, ROWS),)](x, out, m, n, ROWS=ROWS,
                                                  BLOCK=triton.next_power_of_2(n), num_warps=2)
        return out
