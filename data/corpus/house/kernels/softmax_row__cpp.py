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

extern "C" void softmax_rows(const float* __restrict x, float* __restrict y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* xr = x + r * n;
        float* yr = y + r * n;
        float m = xr[0];
        for (int64_t i = 1; i < n; ++i) m = xr[i] > m ? xr[i] : m;
        float s = 0.f;
        for (int64_t i = 0; i < n; ++i) {  // vectorised through libmvec's expf
            float e = expf(xr[i] - m);
            yr[i] = e;
            s += e;
        }
        float inv = 1.f / s;
        for (int64_t i = 0; i < n; ++i) yr[i] *= inv;
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
_lib.softmax_rows.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
_lib.softmax_rows.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        n = x.shape[-1]
        out = torch.empty_like(x)
        _lib.softmax_rows(x.data_ptr(), out.data_ptr(), x.numel() // n, n)
        return out
