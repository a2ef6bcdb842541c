import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layernorm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    d = tl.where(mask, x - mean, 0.0)
    var = tl.sum(d * d, axis=0) / N
    rstd = tl.rsqrt(var + eps)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0)
    b = tl.load(b_ptr + cols, mask=mask, other=0.0)
    tl.store(out_ptr + row * N + cols, d * rstd * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        gen = torch.Generator().manual_seed(11)
        with torch.no_grad():
            self.norm.weight.copy_(1.0 + 0.1 * torch.randn(width, generator=gen))
            self.norm.bias.copy_(0.1 * torch.randn(width, generator=gen))

    def forward(self, x):
        x = x.contiguous()
        n = x.shape[-1]
        rows = x.numel() // n
        out = torch.empty_like(x)
        layernorm_kernel[(rows,)](x, self.norm.weight, self.norm.bias, out, n, self.norm.eps,
                                  BLOCK=triton.next_power_of_2(n), num_warps=4)
        return out
