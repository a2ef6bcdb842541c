import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_split_kernel(x_ptr, out_ptr, D, W: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr):
    # split reduction: each program sums a slice of the depth and adds it atomically
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    w = tl.arange(0, BLOCK_W)
    w_mask = w < W
    mask = (d < D)[:, None] & w_mask[None, :]
    x = tl.load(x_ptr + (b * D + d[:, None]) * W + w[None, :], mask=mask, other=0.0)
    tl.atomic_add(out_ptr + b * W + w, tl.sum(x, axis=0), mask=w_mask, sem="relaxed")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, d, w = x.shape
        out = torch.zeros((b, w), device=x.device, dtype=x.dtype)
        BLOCK_D = 32
        sum_split_kernel[(b, triton.cdiv(d, BLOCK_D))](x, out, d, W=w, BLOCK_D=BLOCK_D,
                                                       BLOCK_W=triton.next_power_of_2(w), num_warps=4)
        return out
