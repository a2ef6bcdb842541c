import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def compose(a1, b1, a2, b2):
    # apply (a1, b1) first, then (a2, b2)
    return a1 * a2, a2 * b1 + b2


@triton.jit
def gated_assoc_scan_kernel(a_ptr, b_ptr, out_ptr, T, C, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    # log-depth scan over time of the affine maps h -> a h + b
    n = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    t = tl.arange(0, BLOCK_T)
    mask = (t < T)[:, None] & (c < C)[None, :]
    offs = n * T * C + t[:, None] * C + c[None, :]
    a = tl.load(a_ptr + offs, mask=mask, other=1.0)
    b = tl.load(b_ptr + offs, mask=mask, other=0.0)
    _, h = tl.associative_scan((a, b), 0, compose)
    tl.store(out_ptr + offs, h, mask=mask)


class ModelNew(nn.Module):
    def forward(self, a, b):
        a = a.contiguous()
        b = b.contiguous()
        n, t, c = b.shape
        out = torch.empty_like(b)
        BLOCK_C = 8
        gated_assoc_scan_kernel[(n, triton.cdiv(c, BLOCK_C))](
            a, b, out, t, c, BLOCK_T=triton.next_power_of_2(t), BLOCK_C=BLOCK_C, num_warps=4)
        return out
