import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bn_eval_kernel(x_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, out_ptr,
                   C, HW, eps, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    c = plane % C
    # fold the statistics and the affine parameters into one scale and shift
    mean = tl.load(mean_ptr + c)
    var = tl.load(var_ptr + c)
    w = tl.load(w_ptr + c)
    b = tl.load(b_ptr + c)
    scale = w / tl.sqrt(var + eps)
    shift = b - mean * scale

    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < HW
    base = plane * HW
    x = tl.load(x_ptr + base + offs, mask=mask)
    tl.store(out_ptr + base + offs, x * scale + shift, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        gen = torch.Generator().manual_seed(14)
        with torch.no_grad():
            self.bn.running_mean.copy_(0.5 * torch.randn(channels, generator=gen))
            self.bn.running_var.copy_(0.5 + torch.randn(channels, generator=gen).abs())
            self.bn.weight.copy_(1.0 + 0.1 * torch.randn(channels, generator=gen))
            self.bn.bias.copy_(0.1 * torch.randn(channels, generator=gen))

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        hw = h * w
        out = torch.empty_like(x)
        BLOCK = min(1024, triton.next_power_of_2(hw))
        grid = (n * c, triton.cdiv(hw, BLOCK))
        bn_eval_kernel[grid](x, self.bn.running_mean, self.bn.running_var,
                             self.bn.weight, self.bn.bias, out,
                             c, hw, self.bn.eps, BLOCK=BLOCK, num_warps=4)
        return out
