import torch
import torch.nn as nn
import triton
import triton.language as tl


# The tensors are tiny (80 KB each), so launch latency dominates: a single program
# with many warps reads everything and no second launch, memset or atomic is needed.
@triton.jit
def mse_single_kernel(p_ptr, t_ptr, out_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < N
        d = tl.load(p_ptr + offs, mask=mask, other=0.0) - tl.load(t_ptr + offs, mask=mask, other=0.0)
        acc += d * d
    tl.store(out_ptr, tl.sum(acc, axis=0) * (1.0 / N))


class ModelNew(nn.Module):
    def forward(self, prediction, target):
        prediction = prediction.contiguous()
        target = target.contiguous()
        out = torch.empty((), device=prediction.device, dtype=prediction.dtype)
        mse_single_kernel[(1,)](prediction, target, out, N=prediction.numel(), BLOCK=4096, num_warps=16)
        return out
