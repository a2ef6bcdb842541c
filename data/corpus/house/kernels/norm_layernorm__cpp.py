import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP_SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void layernorm(const float* __restrict x, const float* __restrict w, const float* __restrict b,
                          float* __restrict y, int64_t rows, int64_t n, float eps) {
    const float inv_n = 1.f / (float)n;
    for (int64_t r = 0; r < rows; ++r) {
        const float* xr = x + r * n;
        float* yr = y + r * n;
        float s = 0.f;
        for (int64_t i = 0; i < n; ++i) s += xr[i];
        const float mean = s * inv_n;
        float v = 0.f;
        for (int64_t i = 0; i < n; ++i) {
            float d = xr[i] - mean;
            v += d * d;
        }
        const float rstd = 1.f / std::sqrt(v * inv_n + eps);
        for (int64_t i = 0; i < n; ++i) yr[i] = (xr[i] - mean) * rstd * w[i] + b[i];
    }
}
"""


def _build():
    cache = os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir()
    path = os.path.join(cache, hashlib.sha256(CPP_SOURCE.encode()).hexdigest() + ".so")
    if not os.path.exists(path):
        os.makedirs(cache, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            src = os.path.join(work, "kernel.cpp")
            lib = os.path.join(work, "kernel.so")
            with open(src, "w") as f:
                f.write(CPP_SOURCE)
            subprocess.run(["g++", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC",
                            "-std=c++17", src, "-o", lib], check=True)
            os.replace(lib, path)
    return ctypes.CDLL(path)


_lib = _build()
_lib.layernorm.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2 + [ctypes.c_float]
_lib.layernorm.restype = None


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        gen = torch.Generator().manual_seed(11)
        with torch.no_grad():
            self.norm.weight.copy_(1.0 + 0.1 * torch.randn(width, generator=gen))
            self.norm.bias.copy_(0.1 * torch.randn(width, generator=gen))

    def forward(self, x):
        x = x.contiguous()
        n = x.shape[-1]
        out = torch.empty_like(x)
        _lib.layernorm(x.data_ptr(), self.norm.weight.data_ptr(), self.norm.bias.data_ptr(),
                       out.data_ptr(), x.numel() // n, n, self.norm.eps)
        return out
