import torch
import torch.nn as nn
import triton
import triton.language as tl


# One program per output image row: all output channels x the whole row of pixels.
# For each of the three input rows, the (in_channel, kw) pairs form the K axis of
# one tensor-core product (8 * 3 = 24, padded to 32), fp16 in, fp32 accumulate.
# A row per program needs no division by the width, and stores are contiguous.
@triton.jit
def conv3x3_row_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr,
    H: tl.constexpr, W: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr,
    BLOCK_CO: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_K: tl.constexpr,
):
    oh = tl.program_id(0)
    n = tl.program_id(1)

    co = tl.arange(0, BLOCK_CO)
    ow = tl.arange(0, BLOCK_W)
    k = tl.arange(0, BLOCK_K)
    ci = k // 3
    kw = k % 3
    k_ok = k < C_IN * 3
    co_ok = co < C_OUT
    iw = ow[None, :] + kw[:, None] - 1
    x_ok = k_ok[:, None] & (iw >= 0) & (iw < W)

    bias = tl.load(b_ptr + co, mask=co_ok, other=0.0)
    acc = tl.zeros((BLOCK_CO, BLOCK_W), dtype=tl.float32) + bias[:, None]
    x_base = x_ptr + n * C_IN * H * W + ci[:, None] * (H * W) + iw
    w_base = w_ptr + co[:, None] * (C_IN * 9) + (ci * 9 + kw)[None, :]
    for kh in tl.static_range(3):
        ih = oh + (kh - 1)
        if (ih >= 0) & (ih < H):
            x = tl.load(x_base + ih * W, mask=x_ok, other=0.0)
            w = tl.load(w_base + kh * 3, mask=co_ok[:, None] & k_ok[None, :], other=0.0)
            acc = tl.dot(w.to(tl.float16), x.to(tl.float16), acc)

    tl.store(y_ptr + (n * C_OUT + co[:, None]) * (H * W) + oh * W + ow[None, :], acc,
             mask=co_ok[:, None] & (ow[None, :] < W))


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)

    def forward(self, x):
        x = x.contiguous()
        N, C, H, W = x.shape
        C_out = self.conv.weight.shape[0]
        y = torch.empty((N, C_out, H, W), device=x.device, dtype=x.dtype)
        conv3x3_row_kernel[(H, N)](
            x, self.conv.weight, self.conv.bias, y,
            H=H, W=W, C_IN=C, C_OUT=C_out,
            BLOCK_CO=max(16, triton.next_power_of_2(C_out)),
            BLOCK_W=max(16, triton.next_power_of_2(W)),
            BLOCK_K=max(16, triton.next_power_of_2(C * 3)),
            num_warps=2,
        )
        return y
