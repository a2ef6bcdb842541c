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
#include <vector>

typedef float v8 __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4)));

static const int OCB = 4;   // output channels per register block
static const int WB = 16;   // output columns per register block

// 3x3, stride 1, padding 1. w is [OC, IC, 3, 3].
extern "C" void conv3x3(const float* __restrict x, const float* __restrict w, const float* __restrict bias,
                        float* __restrict y, int64_t N, int64_t IC, int64_t OC, int64_t H, int64_t W) {
    const int64_t Wr = (W + WB - 1) / WB * WB;  // columns rounded up to whole blocks
    const int64_t PW = Wr + 2, PH = H + 2;
    const int64_t OCr = (OC + OCB - 1) / OCB * OCB;

    // weights as [OC/4][IC][3][3][4], zero padded
    std::vector<float> wp(OCr * IC * 9, 0.f);
    for (int64_t oc = 0; oc < OC; ++oc)
        for (int64_t t = 0; t < IC * 9; ++t)
            wp[((oc / OCB) * IC * 9 + t) * OCB + oc % OCB] = w[oc * IC * 9 + t];

    std::vector<float> pad(IC * PH * PW, 0.f);
    for (int64_t n = 0; n < N; ++n) {
        for (int64_t c = 0; c < IC; ++c)
            for (int64_t h = 0; h < H; ++h)
                memcpy(&pad[(c * PH + h + 1) * PW + 1], x + ((n * IC + c) * H + h) * W, W * sizeof(float));

        for (int64_t ob = 0; ob < OC; ob += OCB) {
            const int64_t on = OC - ob < OCB ? OC - ob : OCB;
            const float* wb = &wp[ob * IC * 9];
            for (int64_t h = 0; h < H; ++h) {
                for (int64_t w0 = 0; w0 < W; w0 += WB) {
                    v8 acc[OCB][2];
                    for (int o = 0; o < OCB; ++o) {
                        const float b = o < on ? bias[ob + o] : 0.f;
                        acc[o][0] = acc[o][1] = v8{} + b;
                    }
                    for (int64_t c = 0; c < IC; ++c) {
                        const float* row = &pad[(c * PH + h) * PW + w0];
                        const float* wc = wb + c * 9 * OCB;
                        for (int kh = 0; kh < 3; ++kh, row += PW) {
                            for (int kw = 0; kw < 3; ++kw, wc += OCB) {
                                const v8 x0 = *(const v8u*)(row + kw);
                                const v8 x1 = *(const v8u*)(row + kw + 8);
                                for (int o = 0; o < OCB; ++o) {
                                    acc[o][0] += wc[o] * x0;
                                    acc[o][1] += wc[o] * x1;
                                }
                            }
                        }
                    }
                    const int64_t wn = W - w0 < WB ? W - w0 : WB;
                    for (int64_t o = 0; o < on; ++o) {
                        float* out = y + ((n * OC + ob + o) * H + h) * W + w0;
                        if (wn == WB) {
                            *(v8u*)out = acc[o][0];
                            *(v8u*)(out + 8) = acc[o][1];
                        } else {
                            memcpy(out, acc[o], wn * sizeof(float));
                        }
                    }
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
_lib.conv3x3.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 5
_lib.conv3x3.restype = None


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)

    def forward(self, x):
        x = x.contiguous()
        n, ic, h, w = x.shape
        weight = self.conv.weight.contiguous()
        oc = weight.shape[0]
        out = torch.empty((n, oc, h, w), dtype=x.dtype, device=x.device)
        _lib.conv3x3(x.data_ptr(), weight.data_ptr(), self.conv.bias.data_ptr(), out.data_ptr(),
                     n, ic, oc, h, w)
        return out
