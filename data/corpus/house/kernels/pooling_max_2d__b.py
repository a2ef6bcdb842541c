import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def maxpool2d_tile_kernel(x_ptr, out_ptr,
                          H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                          K: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
                          BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr):
    # a 2-D output tile of one plane: no division, rows shared through L1.
    # Window coordinates are clamped into the image rather than masked: a clamped
    # element always belongs to the same window, so the maximum is unchanged (P < K).
    plane = tl.program_id(0)
    oh = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    ow = tl.arange(0, BLOCK_W)
    base = x_ptr + plane * H * W
    best = tl.full([BLOCK_H, BLOCK_W], float("-inf"), dtype=tl.float32)
    for kh in tl.static_range(K):
        h = tl.minimum(tl.maximum(oh * S - P + kh, 0), H - 1)
        for kw in tl.static_range(K):
            w = tl.minimum(tl.maximum(ow * S - P + kw, 0), W - 1)
            best = tl.maximum(best, tl.load(base + h[:, None] * W + w[None, :]))
    mask = (oh < OH)[:, None] & (ow < OW)[None, :]
    tl.store(out_ptr + plane * OH * OW + oh[:, None] * OW + ow[None, :], best, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, kernel_size, stride, padding):
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        k, s, p = self.kernel_size, self.stride, self.padding
        oh = (h + 2 * p - k) // s + 1
        ow = (w + 2 * p - k) // s + 1
        out = torch.empty((n, c, oh, ow), device=x.device, dtype=x.dtype)
        BLOCK_H = 8
        maxpool2d_tile_kernel[(n * c, triton.cdiv(oh, BLOCK_H))](
            x, out, H=h, W=w, OH=oh, OW=ow, K=k, S=s, P=p,
            BLOCK_H=BLOCK_H, BLOCK_W=triton.next_power_of_2(ow), num_warps=4)
        return out
