import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP_SOURCE = r"""
#include <cfloat>
#include <cstdint>
#include <vector>

// separable: vertical maximum of each window's rows into a padded line, then horizontal maximum
extern "C" void maxpool2d(const float* __restrict x, float* __restrict y, int64_t planes,
                          int64_t H, int64_t W, int64_t OH, int64_t OW,
                          int64_t K, int64_t S, int64_t P) {
    std::vector<float> line(W + 2 * P + K, -FLT_MAX);  // padding columns stay at the identity
    float* mid = line.data() + P;
    for (int64_t p = 0; p < planes; ++p) {
        const float* xp = x + p * H * W;
        float* yp = y + p * OH * OW;
        for (int64_t oh = 0; oh < OH; ++oh) {
            int64_t h0 = oh * S - P, h1 = h0 + K;
            if (h0 < 0) h0 = 0;
            if (h1 > H) h1 = H;
            const float* r = xp + h0 * W;
            for (int64_t i = 0; i < W; ++i) mid[i] = r[i];
            for (int64_t h = h0 + 1; h < h1; ++h) {
                r = xp + h * W;
                for (int64_t i = 0; i < W; ++i) mid[i] = r[i] > mid[i] ? r[i] : mid[i];
            }
            float* out = yp + oh * OW;
            const float* src = line.data();
            if (K == 3 && S == 2) {
                for (int64_t o = 0; o < OW; ++o) {
                    float a = src[2 * o], b = src[2 * o + 1], c = src[2 * o + 2];
                    float m = a > b ? a : b;
                    out[o] = m > c ? m : c;
                }
            } else {
                for (int64_t o = 0; o < OW; ++o) {
                    float m = src[o * S];
                    for (int64_t k = 1; k < K; ++k) m = src[o * S + k] > m ? src[o * S + k] : m;
                    out[o] = m;
                }
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
_lib.maxpool2d.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 8
_lib.maxpool2d.restype = None


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
        out = torch.empty((n, c, oh, ow), dtype=x.dtype, device=x.device)
        _lib.maxpool2d(x.data_ptr(), out.data_ptr(), n * c, h, w, oh, ow, k, s, p)
        return out
