import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mse_partial_kernel(p_ptr, t_ptr, partial_ptr, n_elements, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n_elements
    p = tl.load(p_ptr + offs, mask=mask, other=0.0)
    t = tl.load(t_ptr + offs, mask=mask, other=0.0)
    d = p - t
    tl.store(partial_ptr + pid, tl.sum(d * d, axis=0))


@triton.jit
def mse_final_kernel(partial_ptr, out_ptr, n_partials, n_elements, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    s = tl.load(partial_ptr + offs, mask=offs < n_partials, other=0.0)
    tl.store(out_ptr, tl.sum(s, axis=0) / n_elements)


class ModelNew(nn.Module):
    def forward(self, prediction, target):
        prediction = prediction.contiguous()
        target = target.contiguous()
        n = prediction.numel()
        BLOCK = 1024
        n_blocks = triton.cdiv(n, BLOCK)
        partial = torch.empty(n_blocks, device=prediction.device, dtype=torch.float32)
        out = torch.empty((), device=prediction.device, dtype=torch.float32)
        mse_partial_kernel[(n_blocks,)](prediction, target, partial, n, BLOCK=BLOCK)
        mse_final_kernel[(1,)](partial, out, n_blocks, n, BLOCK=triton.next_power_of_2(n_blocks))
        return out
