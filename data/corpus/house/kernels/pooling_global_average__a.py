import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gap_kernel(x_ptr, out_ptr, M, HW, inv, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = rows < M
    acc = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in range(0, HW, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = row_mask[:, None] & (cols < HW)[None, :]
        acc += tl.load(x_ptr + rows[:, None] * HW + cols[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + rows, tl.sum(acc, axis=1) * inv, mask=row_mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        hw = h * w
        out = torch.empty((n, c), device=x.device, dtype=x.dtype)
        ROWS = 2
        BLOCK = min(1024, triton.next_power_of_2(hw))
        gap_kernel[(triton.cdiv(n * c, ROWS),)](x, out, n * c, hw, 1.0 / hw,
                                                ROWS=ROWS, BLOCK=BLOCK, num_warps=2)
        return out
