import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def max_split_kernel(x_ptr, out_ptr, D, W, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr):
    # the depth is split over programs so that a tiny batch still fills the device;
    # partial maxima are combined with atomics
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    w = tl.arange(0, BLOCK_W)
    w_mask = w < W
    mask = (d < D)[:, None] & w_mask[None, :]
    x = tl.load(x_ptr + b * D * W + d[:, None] * W + w[None, :], mask=mask, other=float("-inf"))
    tl.atomic_max(out_ptr + b * W + w, tl.max(x, axis=0), mask=w_mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, d, w = x.shape
        out = torch.full((b, w), float("-inf"), device=x.device, dtype=x.dtype)
        BLOCK_D = 64
        max_split_kernel[(b, triton.cdiv(d, BLOCK_D))](x, out, d, w, BLOCK_D=BLOCK_D,
                                                       BLOCK_W=triton.next_power_of_2(w), num_warps=4)
        return out
