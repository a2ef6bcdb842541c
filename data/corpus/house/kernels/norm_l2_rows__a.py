import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def l2norm_kernel(x_ptr, out_ptr, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(x_ptr + row * stride + cols, mask=mask, other=0.0)
    length = tl.sqrt(tl.sum(x * x, axis=0))
    inv = 1.0 / tl.maximum(length, eps)
    tl.store(out_ptr + row * N + cols, x * inv, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        out = torch.empty_like(x)
        l2norm_kernel[(rows,)](x, out, x.stride(0), n, self.eps,
                               BLOCK=triton.next_power_of_2(n), num_warps=4)
        return out
