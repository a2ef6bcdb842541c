import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def groupnorm_stream_kernel(x_ptr, w_ptr, b_ptr, out_ptr, G, HW, eps,
                            CPG: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_HW: tl.constexpr):
    pid = tl.program_id(0)
    g = pid % G
    rows = tl.arange(0, BLOCK_C)
    row_mask = rows < CPG
    base = x_ptr + pid * CPG * HW

    # one streaming pass for sum and sum of squares
    s = tl.zeros([BLOCK_C, BLOCK_HW], dtype=tl.float32)
    ss = tl.zeros([BLOCK_C, BLOCK_HW], dtype=tl.float32)
    for start in range(0, HW, BLOCK_HW):
        cols = start + tl.arange(0, BLOCK_HW)
        mask = row_mask[:, None] & (cols < HW)[None, :]
        x = tl.load(base + rows[:, None] * HW + cols[None, :], mask=mask, other=0.0)
        s += x
        ss += x * x
    count = CPG * HW
    mean = tl.sum(tl.sum(s, axis=1), axis=0) / count
    var = tl.sum(tl.sum(ss, axis=1), axis=0) / count - mean * mean
    rstd = 1.0 / tl.sqrt(tl.maximum(var, 0.0) + eps)

    # per-channel scale and shift, applied in the second (L2-resident) pass
    w = tl.load(w_ptr + g * CPG + rows, mask=row_mask, other=0.0)
    b = tl.load(b_ptr + g * CPG + rows, mask=row_mask, other=0.0)
    scale = w * rstd
    shift = b - mean * scale
    out_base = out_ptr + pid * CPG * HW
    for start in range(0, HW, BLOCK_HW):
        cols = start + tl.arange(0, BLOCK_HW)
        mask = row_mask[:, None] & (cols < HW)[None, :]
        offs = rows[:, None] * HW + cols[None, :]
        x = tl.load(base + offs, mask=mask, other=0.0)
        tl.store(out_base + offs, x * scale[:, None] + shift[:, None], mask=mask)


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
        groupnorm_stream_kernel[(n * g,)](
            x, self.norm.weight, self.norm.bias, out, g, hw, self.norm.eps,
            CPG=cpg, BLOCK_C=triton.next_power_of_2(cpg), BLOCK_HW=128, num_warps=4)
        return out
