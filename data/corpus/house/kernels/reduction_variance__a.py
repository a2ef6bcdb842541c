import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def var_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    # two passes over registers: mean first, then squared deviations
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / N
    d = tl.where(mask, x - mean, 0.0)
    tl.store(out_ptr + row, tl.sum(d * d, axis=0) / (N - 1))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        out = torch.empty((rows,), device=x.device, dtype=x.dtype)
        var_kernel[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n), num_warps=4)
        return out
