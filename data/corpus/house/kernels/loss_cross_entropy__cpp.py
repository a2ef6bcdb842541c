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

// mean over rows of logsumexp(row) - row[target], nothing stored in between
extern "C" void cross_entropy(const float* __restrict x, const int64_t* __restrict target,
                              float* __restrict out, int64_t rows, int64_t n) {
    double total = 0.0;
    for (int64_t r = 0; r < rows; ++r) {
        const float* xr = x + r * n;
        float m = xr[0];
        for (int64_t i = 1; i < n; ++i) m = xr[i] > m ? xr[i] : m;
        float s = 0.f;
        for (int64_t i = 0; i < n; ++i) s += expf(xr[i] - m);
        total += (double)(m + std::log(s) - xr[target[r]]);
    }
    *out = (float)(total / (double)rows);
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
_lib.cross_entropy.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
_lib.cross_entropy.restype = None


class ModelNew(nn.Module):
    def forward(self, logits, target):
        logits = logits.contiguous()
        target = target.contiguous()
        rows, n = logits.shape
        out = torch.empty((), dtype=logits.dtype, device=logits.device)
        _lib.cross_entropy(logits.data_ptr(), target.data_ptr(), out.data_ptr(), rows, n)
        return out
