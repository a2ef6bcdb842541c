import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP_SOURCE = r"""
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>

// inclusive prefix sum of the 8 lanes
static inline __m256 prefix8(__m256 v) {
    v = _mm256_add_ps(v, _mm256_castsi256_ps(_mm256_slli_si256(_mm256_castps_si256(v), 4)));
    v = _mm256_add_ps(v, _mm256_castsi256_ps(_mm256_slli_si256(_mm256_castps_si256(v), 8)));
    // add the total of the low half to the high half
    __m256 low = _mm256_permute2f128_ps(v, v, 0x08);
    return _mm256_add_ps(v, _mm256_permute_ps(low, 0xFF));
}
#endif

extern "C" void cumsum_rows(const float* __restrict x, float* __restrict y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* xr = x + r * n;
        float* yr = y + r * n;
        int64_t i = 0;
        float carry = 0.f;
#if defined(__AVX2__)
        const __m256i last = _mm256_set1_epi32(7);
        __m256 c = _mm256_setzero_ps();
        for (; i + 16 <= n; i += 16) {
            __m256 p0 = prefix8(_mm256_loadu_ps(xr + i));
            __m256 p1 = prefix8(_mm256_loadu_ps(xr + i + 8));
            __m256 t0 = _mm256_permutevar8x32_ps(p0, last);
            __m256 t1 = _mm256_permutevar8x32_ps(p1, last);
            __m256 t01 = _mm256_add_ps(t0, t1);
            _mm256_storeu_ps(yr + i, _mm256_add_ps(p0, c));
            _mm256_storeu_ps(yr + i + 8, _mm256_add_ps(p1, _mm256_add_ps(c, t0)));
            c = _mm256_add_ps(c, t01);  // the only loop-carried operation
        }
        carry = _mm256_cvtss_f32(c);
#endif
        for (; i < n; ++i) {
            carry += xr[i];
            yr[i] = carry;
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
            subprocess.run(["g++", "-O3", "-march=native", "-shared", "-fPIC",
                            "-std=c++17", src, "-o", lib], check=True)
            os.replace(lib, path)
    return ctypes.CDLL(path)


_lib = _build()
_lib.cumsum_rows.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
_lib.cumsum_rows.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        n = x.shape[-1]
        out = torch.empty_like(x)
        _lib.cumsum_rows(x.data_ptr(), out.data_ptr(), x.numel() // n, n)
        return out
