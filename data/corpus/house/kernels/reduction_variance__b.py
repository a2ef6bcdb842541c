import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def var_welford_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    # one streaming pass: each lane runs Welford's update, lanes are merged at the end
    row = tl.program_id(0)
    x_ptr += row * N
    mean = tl.zeros([BLOCK], dtype=tl.float32)
    m2 = tl.zeros([BLOCK], dtype=tl.float32)
    count = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < N
        x = tl.load(x_ptr + cols, mask=mask, other=0.0)
        new_count = count + 1.0
        delta = x - mean
        new_mean = mean + delta / new_count
        m2 = tl.where(mask, m2 + delta * (x - new_mean), m2)
        mean = tl.where(mask, new_mean, mean)
        count = tl.where(mask, new_count, count)
    # merge the lanes (parallel-variance formula with all lanes at once)
    total_mean = tl.sum(mean * count, axis=0) / N
    d = mean - total_mean
    total_m2 = tl.sum(m2 + count * d * d, axis=0)
    tl.store(out_ptr + row, total_m2 / (N - 1))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        out = torch.empty((rows,), device=x.device, dtype=x.dtype)
        var_welford_kernel[(rows,)](x, out, n, BLOCK=256, num_warps=2)
        return out
