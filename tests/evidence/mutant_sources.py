"""Small sources that hold a site for every mutation operator. They are parsed and compiled, never run."""

TRITON = """import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def stage(x_ptr, w_ptr, b_ptr, out_ptr, M, N, eps, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1)
    row_mask = rows < M
    best = tl.full([ROWS, BLOCK_N], float("-inf"), dtype=tl.float32)
    acc = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = row_mask[:, None] & (cols < N)[None, :]
        x = tl.load(x_ptr + group * M * N + rows[:, None] * N + cols[None, :], mask=mask, other=float("-inf"))
        w = tl.load(w_ptr + cols, mask=cols < N, other=0.0)
        best = tl.maximum(best, x, propagate_nan=tl.PropagateNan.ALL)
        acc += x * w[None, :]
    top = tl.max(best, axis=1)
    shifted = acc - top[:, None]
    e = tl.exp(-shifted)
    kept = tl.where(shifted > 0, e, shifted * 0.7071067811865476)
    mean = tl.sum(kept, axis=1) / N
    rstd = tl.rsqrt(mean + eps)
    run = tl.cumsum(kept, axis=1)
    b = tl.load(b_ptr + rows, mask=row_mask, other=0.0)
    clamped = tl.maximum(rstd, b)
    tl.store(out_ptr + rows, clamped * mean + b, mask=row_mask)
    tl.atomic_add(out_ptr + rows, tl.sum(run, axis=1), mask=row_mask)


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        x = x.contiguous()
        m, n = x.shape
        out = torch.zeros((m,), device=x.device, dtype=x.dtype)
        y = torch.empty_like(x)
        stage[(triton.cdiv(m, 4), n)](x, self.weight, self.bias, y, m, n, self.eps, 1.0 / n,
                                      BLOCK_N=triton.next_power_of_2(n), ROWS=4)
        return out
"""

CPP = '''import torch
import torch.nn as nn

CPP_SOURCE = r"""
#include <cmath>
extern "C" void stage(const float* __restrict x, float* __restrict y, int64_t rows, int64_t n, float eps) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* xr = x + r * n;
        float* yr = y + r * n;
        float m = xr[0];
        for (int64_t i = 1; i < n; ++i) m = xr[i] > m ? xr[i] : m;
        float acc[8];
        memset(acc, 0, sizeof acc);
        float s = 0.f;
        int64_t i = 0;
        for (; i + 8 <= n; i += 8) {
            for (int64_t k = 0; k < 8; ++k) acc[k] += xr[i + k];
        }
        for (; i < n; ++i) s += expf(xr[i] - m);
        const float rstd = 0.7071f * std::sqrt(s + eps);
        for (int64_t k = 0; k < n; ++k) {
            const float v = xr[k];
            yr[k] = v * rstd + s;
        }
    }
}
"""
_lib = _build()


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        out = torch.empty_like(x)
        _lib.stage(x.data_ptr(), out.data_ptr(), rows, n, 1e-5)
        return out
'''

TWO_KERNEL_GRID = """import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask, other=0.0), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        n = x.numel()
        out = torch.empty_like(x)
        copy[(n, 1)](x, out, n, BLOCK=1024)
        return out
"""

SOFTMAX = """import torch
import torch.nn as nn

width = 33


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(6, width)]


def get_init_inputs():
    return []
"""

SOFTMAX_TRITON = """import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(x_ptr + row * N + cols, mask=mask, other=float("-inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * N + cols, e / tl.sum(e, axis=0), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        out = torch.empty_like(x)
        softmax_kernel[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n), num_warps=4)
        return out
"""

SOFTMAX_TORCH = """import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = torch.exp(x - x.amax(dim=-1, keepdim=True))
        return e / e.sum(dim=-1, keepdim=True)
"""
