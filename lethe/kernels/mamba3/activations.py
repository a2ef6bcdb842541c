"""Device functions shared by the kernels: softplus, sigmoid, SiLU and their slopes, in float32."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def sigmoid(v):
    return 1.0 / (1.0 + tl.exp2(v * -LOG2E))


@triton.jit
def silu(v):
    return v * sigmoid(v)


@triton.jit
def silu_slope(v):
    s = sigmoid(v)
    return s * (1.0 + v * (1.0 - s))


@triton.jit
def softplus(v):
    """log(1 + e^v): a series where the sum would lose e^v, v itself where 1 would be lost."""
    e = tl.exp2(tl.where(v > 20.0, 20.0, v) * LOG2E)
    series = e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - e * (0.25 - e * (0.2 - e * (1.0 / 6.0))))))
    return tl.where(v > 20.0, v, tl.where(e < 0.0625, series, tl.log(1.0 + e)))
