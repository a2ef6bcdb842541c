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
#include <vector>

// one (batch, head) at a time; each query only visits the keys it may see
extern "C" void causal_attention(const float* __restrict q, const float* __restrict k,
                                 const float* __restrict v, float* __restrict o,
                                 int64_t heads, int64_t T, int64_t D) {
    const float scale = 1.f / std::sqrt((float)D);
    std::vector<float> kt_buf(D * T), p_buf(T);
    float* __restrict kt = kt_buf.data();
    float* __restrict p = p_buf.data();
    for (int64_t h = 0; h < heads; ++h) {
        const float* qh = q + h * T * D;
        const float* kh = k + h * T * D;
        const float* vh = v + h * T * D;
        float* oh = o + h * T * D;
        // keys transposed, so that the scores of one query vectorise over the keys
        for (int64_t j = 0; j < T; ++j)
            for (int64_t d = 0; d < D; ++d) kt[d * T + j] = kh[j * D + d];
        for (int64_t i = 0; i < T; ++i) {
            const int64_t len = i + 1;
            const float* qi = qh + i * D;
            for (int64_t j = 0; j < len; ++j) p[j] = 0.f;
            for (int64_t d = 0; d < D; ++d) {
                const float s = qi[d] * scale;
                const float* kd = kt + d * T;
                for (int64_t j = 0; j < len; ++j) p[j] += s * kd[j];
            }
            float m = p[0];
            for (int64_t j = 1; j < len; ++j) m = p[j] > m ? p[j] : m;
            float sum = 0.f;
            for (int64_t j = 0; j < len; ++j) {
                p[j] = expf(p[j] - m);
                sum += p[j];
            }
            const float inv = 1.f / sum;
            float* __restrict oi = oh + i * D;
            for (int64_t d = 0; d < D; ++d) oi[d] = 0.f;
            for (int64_t j = 0; j < len; ++j) {
                const float w = p[j] * inv;
                const float* vj = vh + j * D;
                for (int64_t d = 0; d < D; ++d) oi[d] += w * vj[d];
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
_lib.causal_attention.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
_lib.causal_attention.restype = None


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        q = q.contiguous()
        k = k.contiguous()
        v = v.contiguous()
        b, h, t, d = q.shape
        out = torch.empty_like(q)
        _lib.causal_attention(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), b * h, t, d)
        return out
