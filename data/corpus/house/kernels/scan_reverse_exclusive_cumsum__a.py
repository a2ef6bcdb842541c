import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def suffix_sum_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    # reading one element to the right turns the inclusive suffix scan into an exclusive one
    x = tl.load(x_ptr + row * N + cols + 1, mask=cols + 1 < N, other=0.0)
    y = tl.cumsum(x, axis=0, reverse=True)
    tl.store(out_ptr + row * N + cols, y, mask=cols < N)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        out = torch.empty_like(x)
        suffix_sum_kernel[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n), num_warps=4)
        return out
