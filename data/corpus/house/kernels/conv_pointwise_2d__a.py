import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pointwise_conv_kernel(
    x_ptr, w_ptr, y_ptr,
    C_IN, C_OUT, P,
    BLOCK_CO: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_CI: tl.constexpr,
):
    pid_p = tl.program_id(0)
    pid_co = tl.program_id(1)
    n = tl.program_id(2)

    co = pid_co * BLOCK_CO + tl.arange(0, BLOCK_CO)
    p = pid_p * BLOCK_P + tl.arange(0, BLOCK_P)

    acc = tl.zeros((BLOCK_CO, BLOCK_P), dtype=tl.float32)
    for c0 in range(0, C_IN, BLOCK_CI):
        ci = c0 + tl.arange(0, BLOCK_CI)
        w = tl.load(w_ptr + co[:, None] * C_IN + ci[None, :],
                    mask=(co[:, None] < C_OUT) & (ci[None, :] < C_IN), other=0.0)
        x = tl.load(x_ptr + n * C_IN * P + ci[:, None] * P + p[None, :],
                    mask=(ci[:, None] < C_IN) & (p[None, :] < P), other=0.0)
        acc = tl.dot(w, x, acc)

    tl.store(y_ptr + n * C_OUT * P + co[:, None] * P + p[None, :], acc,
             mask=(co[:, None] < C_OUT) & (p[None, :] < P))


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.mix = nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False)

    def forward(self, x):
        x = x.contiguous()
        N, C_in, H, W = x.shape
        C_out = self.mix.weight.shape[0]
        P = H * W
        y = torch.empty((N, C_out, H, W), device=x.device, dtype=x.dtype)
        BLOCK_CO, BLOCK_P = 16, 64
        grid = (triton.cdiv(P, BLOCK_P), triton.cdiv(C_out, BLOCK_CO), N)
        pointwise_conv_kernel[grid](
            x, self.mix.weight, y, C_in, C_out, P,
            BLOCK_CO=BLOCK_CO, BLOCK_P=BLOCK_P, BLOCK_CI=32, num_warps=4,
        )
        return y
