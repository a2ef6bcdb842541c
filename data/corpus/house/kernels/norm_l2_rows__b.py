import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 512}, num_warps=4),
        triton.Config({"BLOCK": 256}, num_warps=2),
        triton.Config({"BLOCK": 1024}, num_warps=4),
        triton.Config({"BLOCK": 1024}, num_warps=8),
    ],
    key=["N"],
)
@triton.jit
def l2norm_loop_kernel(x_ptr, out_ptr, eps, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * N
    out_ptr += row * N
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < N, other=0.0, eviction_policy="evict_last")
        acc += x * x
    # rsqrt(max(ss, eps^2)) == 1 / max(sqrt(ss), eps)
    inv = tl.rsqrt(tl.maximum(tl.sum(acc, axis=0), eps * eps))
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < N
        x = tl.load(x_ptr + cols, mask=mask, other=0.0, eviction_policy="evict_first")
        tl.store(out_ptr + cols, x * inv, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        out = torch.empty_like(x)
        l2norm_loop_kernel[(rows,)](x, out, self.eps, N=n)
        return out
