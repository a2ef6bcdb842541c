import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP_SOURCE = r"""
#include <cstdint>
#include <cstdlib>
#include <cstring>

typedef float v8 __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4)));

static const int NR = 16;

// C[MR x 16] = A[MR x K] * Bp[K x 16], Bp packed and zero padded
template <int MR>
static inline void micro(const float* __restrict a, int64_t lda, const float* __restrict bp,
                         float* __restrict c, int64_t ldc, int64_t k, int64_t nr) {
    v8 acc[MR][2];
    for (int i = 0; i < MR; ++i) acc[i][0] = acc[i][1] = v8{};
    for (int64_t p = 0; p < k; ++p) {
        const v8 b0 = *(const v8*)(bp + p * NR);
        const v8 b1 = *(const v8*)(bp + p * NR + 8);
        for (int i = 0; i < MR; ++i) {
            const float s = a[i * lda + p];
            acc[i][0] += s * b0;
            acc[i][1] += s * b1;
        }
    }
    if (nr == NR) {
        for (int i = 0; i < MR; ++i) {
            *(v8u*)(c + i * ldc) = acc[i][0];
            *(v8u*)(c + i * ldc + 8) = acc[i][1];
        }
    } else {
        for (int i = 0; i < MR; ++i) memcpy(c + i * ldc, acc[i], nr * sizeof(float));
    }
}

extern "C" void matmul(const float* __restrict a, const float* __restrict b, float* __restrict c,
                       int64_t m, int64_t n, int64_t k) {
    float* bp = (float*)aligned_alloc(64, (size_t)k * NR * sizeof(float));
    for (int64_t j = 0; j < n; j += NR) {
        const int64_t nr = n - j < NR ? n - j : NR;
        for (int64_t p = 0; p < k; ++p) {
            for (int64_t t = 0; t < nr; ++t) bp[p * NR + t] = b[p * n + j + t];
            for (int64_t t = nr; t < NR; ++t) bp[p * NR + t] = 0.f;
        }
        int64_t i = 0;
        for (; i + 6 <= m; i += 6) micro<6>(a + i * k, k, bp, c + i * n + j, n, k, nr);
        for (; i + 2 <= m; i += 2) micro<2>(a + i * k, k, bp, c + i * n + j, n, k, nr);
        for (; i < m; ++i) micro<1>(a + i * k, k, bp, c + i * n + j, n, k, nr);
    }
    free(bp);
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
            subprocess.run(["g++", "-O3", "-march=native", "-ffast-math", "-funroll-loops", "-shared", "-fPIC",
                            "-std=c++17", src, "-o", lib], check=True)
            os.replace(lib, path)
    return ctypes.CDLL(path)


_lib = _build()
_lib.matmul.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
_lib.matmul.restype = None


class ModelNew(nn.Module):
    def forward(self, a, b):
        a = a.contiguous()
        b = b.contiguous()
        m, k = a.shape
        n = b.shape[1]
        out = torch.empty((m, n), dtype=a.dtype, device=a.device)
        _lib.matmul(a.data_ptr(), b.data_ptr(), out.data_ptr(), m, n, k)
        return out
