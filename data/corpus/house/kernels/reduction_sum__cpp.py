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

// sum over the middle dimension of [batch, depth, width]
extern "C" void sum_mid(const float* __restrict x, float* __restrict y,
                        int64_t batch, int64_t depth, int64_t width) {
    const int64_t TILE = 64;
    for (int64_t b = 0; b < batch; ++b) {
        const float* xb = x + b * depth * width;
        for (int64_t w0 = 0; w0 < width; w0 += TILE) {
            const int64_t wn = width - w0 < TILE ? width - w0 : TILE;
            // two accumulator rows break the dependency chain
            float acc0[TILE], acc1[TILE];
            memset(acc0, 0, sizeof acc0);
            memset(acc1, 0, sizeof acc1);
            int64_t d = 0;
            for (; d + 2 <= depth; d += 2) {
                const float* r0 = xb + d * width + w0;
                const float* r1 = r0 + width;
                for (int64_t i = 0; i < wn; ++i) {
                    acc0[i] += r0[i];
                    acc1[i] += r1[i];
                }
            }
            if (d < depth) {
                const float* r0 = xb + d * width + w0;
                for (int64_t i = 0; i < wn; ++i) acc0[i] += r0[i];
            }
            float* yr = y + b * width + w0;
            for (int64_t i = 0; i < wn; ++i) yr[i] = acc0[i] + acc1[i];
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
_lib.sum_mid.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3
_lib.sum_mid.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        b, d, w = x.shape
        out = torch.empty((b, w), dtype=x.dtype, device=x.device)
        _lib.sum_mid(x.data_ptr(), out.data_ptr(), b, d, w)
        return out
