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

// maximum over the middle dimension of [batch, depth, width]
extern "C" void max_mid(const float* __restrict x, float* __restrict y,
                        int64_t batch, int64_t depth, int64_t width) {
    const int64_t TILE = 32;
    for (int64_t b = 0; b < batch; ++b) {
        const float* xb = x + b * depth * width;
        int64_t w0 = 0;
        for (; w0 + TILE <= width; w0 += TILE) {  // full tiles stay in registers
            float acc[TILE];
            memcpy(acc, xb + w0, sizeof acc);
            for (int64_t d = 1; d < depth; ++d) {
                const float* r = xb + d * width + w0;
                for (int i = 0; i < TILE; ++i) acc[i] = r[i] > acc[i] ? r[i] : acc[i];
            }
            memcpy(y + b * width + w0, acc, sizeof acc);
        }
        if (w0 < width) {
            float* yr = y + b * width;
            for (int64_t i = w0; i < width; ++i) yr[i] = xb[i];
            for (int64_t d = 1; d < depth; ++d) {
                const float* r = xb + d * width;
                for (int64_t i = w0; i < width; ++i) yr[i] = r[i] > yr[i] ? r[i] : yr[i];
            }
        }
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
_lib.max_mid.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3
_lib.max_mid.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, d, w = x.shape
        out = torch.empty((b, w), dtype=x.dtype, device=x.device)
        _lib.max_mid(x.data_ptr(), out.data_ptr(), b, d, w)
        return out
