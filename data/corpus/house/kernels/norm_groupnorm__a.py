import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def groupnorm_kernel(x_ptr, w_ptr, b_ptr, out_ptr,
                     G, CPG, HW, group_size, eps, BLOCK: tl.constexpr):
    pid = tl.program_id(0)  # one (image, group) pair per program
    g = pid % G
    base = pid * group_size
    offs = tl.arange(0, BLOCK)
    mask = offs < group_size
    x = tl.load(x_ptr + base + offs, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / group_size
    d = tl.where(mask, x - mean, 0.0)
    var = tl.sum(d * d, axis=0) / group_size
    rstd = 1.0 / tl.sqrt(var + eps)
    c = g * CPG + offs // HW
    w = tl.load(w_ptr + c, mask=mask, other=0.0)
    b = tl.load(b_ptr + c, mask=mask, other=0.0)
    tl.store(out_ptr + base + offs, d * rstd * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        gen = torch.Generator().manual_seed(13)
        with torch.no_grad():
            self.norm.weight.copy_(1.0 + 0.1 * torch.randn(channels, generator=gen))
            self.norm.bias.copy_(0.1 * torch.randn(channels, generator=gen))

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        g = self.norm.num_groups
        cpg = c // g
        hw = h * w
        out = torch.empty_like(x)
        BLOCK = triton.next_power_of_2(cpg * hw)
        groupnorm_kernel[(n * g,)](x, self.norm.weight, self.norm.bias, out,
                                   g, cpg, hw, cpg * hw, self.norm.eps,
                                   BLOCK=BLOCK, num_warps=8)
        return out
