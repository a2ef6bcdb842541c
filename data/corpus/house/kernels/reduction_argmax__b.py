import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def argmax_loop_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    # each lane keeps its own best value and position while streaming over the row;
    # only one cross-lane reduction at the end
    row = tl.program_id(0)
    x_ptr += row * N
    best = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    best_idx = tl.arange(0, BLOCK)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < N, other=float("-inf"))
        better = x > best
        best = tl.where(better, x, best)
        best_idx = tl.where(better, cols, best_idx)
    top = tl.max(best, axis=0)
    # lowest position among the lanes that hold the maximum
    pos = tl.min(tl.where(best == top, best_idx, 2147483647), axis=0)
    tl.store(out_ptr + row, pos.to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        out = torch.empty((rows,), device=x.device, dtype=torch.int64)
        argmax_loop_kernel[(rows,)](x, out, n, BLOCK=512, num_warps=4)
        return out
