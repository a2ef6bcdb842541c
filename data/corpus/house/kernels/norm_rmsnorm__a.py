import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x_ptr, g_ptr, out_ptr, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0)
    g = tl.load(g_ptr + cols, mask=mask, other=0.0)
    rrms = tl.rsqrt(tl.sum(x * x, axis=0) / N + eps)
    tl.store(out_ptr + row * N + cols, x * rrms * g, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.eps = eps
        gen = torch.Generator().manual_seed(12)
        self.gain = nn.Parameter(1.0 + 0.1 * torch.randn(width, generator=gen))

    def forward(self, x):
        x = x.contiguous()
        n = x.shape[-1]
        out = torch.empty_like(x)
        rmsnorm_kernel[(x.numel() // n,)](x, self.gain, out, n, self.eps,
                                          BLOCK=triton.next_power_of_2(n), num_warps=4)
        return out
