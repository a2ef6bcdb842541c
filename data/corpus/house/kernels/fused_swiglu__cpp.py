import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP_SOURCE = r"""
#include <cstdint>
#include <cstring>

// exp by range reduction to 2^n * 2^f and a degree-6 polynomial; vectorises without libm
static inline float fast_exp(float x) {
    x = x < -87.f ? -87.f : x;
    x = x > 87.f ? 87.f : x;
    const float z = x * 1.44269504088896341f;
    const float n = __builtin_floorf(z + 0.5f);
    const float f = (z - n) * 0.69314718055994531f;
    float p = 1.f / 720.f;
    p = p * f + 1.f / 120.f;
    p = p * f + 1.f / 24.f;
    p = p * f + 1.f / 6.f;
    p = p * f + 0.5f;
    p = p * f + 1.f;
    p = p * f + 1.f;
    const int32_t bits = ((int32_t)n + 127) << 23;
    float two_n;
    memcpy(&two_n, &bits, 4);
    return p * two_n;
}

extern "C" void swiglu(const float* __restrict a, const float* __restrict b, float* __restrict y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i] / (1.f + fast_exp(-a[i]));
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
_lib.swiglu.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64]
_lib.swiglu.restype = None


class ModelNew(nn.Module):
    def forward(self, a, b):
        a = a.contiguous()
        b = b.contiguous()
        out = torch.empty_like(a)
        _lib.swiglu(a.data_ptr(), b.data_ptr(), out.data_ptr(), a.numel())
        return out
