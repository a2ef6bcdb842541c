import torch
import torch.nn as nn
import triton
import triton.language as tl


# The sequence is short enough that all keys of a head fit in one tile, so the
# softmax is done in a single pass without the online rescaling. The two matrix
# products run in fp16 on the tensor cores with fp32 accumulation.
@triton.jit
def causal_attn_full_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, qk_scale,
    T: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):
    head = tl.program_id(0)
    pid_m = tl.program_id(1)
    base = head * T * D

    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_T)
    dims = tl.arange(0, BLOCK_D)

    q_off = rows[:, None] * D + dims[None, :]
    q_mask = (rows[:, None] < T) & (dims[None, :] < D)
    kv_off = cols[:, None] * D + dims[None, :]
    kv_mask = (cols[:, None] < T) & (dims[None, :] < D)

    q = tl.load(q_ptr + base + q_off, mask=q_mask, other=0.0).to(tl.float16)
    k = tl.load(k_ptr + base + kv_off, mask=kv_mask, other=0.0).to(tl.float16)
    v = tl.load(v_ptr + base + kv_off, mask=kv_mask, other=0.0).to(tl.float16)

    s = tl.dot(q, tl.trans(k), out_dtype=tl.float32) * qk_scale
    s = tl.where(cols[None, :] <= rows[:, None], s, float("-inf"))
    s = s - tl.max(s, axis=1)[:, None]
    p = tl.exp2(s)
    denom = tl.sum(p, axis=1)
    o = tl.dot(p.to(tl.float16), v, out_dtype=tl.float32) / denom[:, None]
    tl.store(o_ptr + base + q_off, o, mask=q_mask)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        B, H, T, D = q.shape
        out = torch.empty_like(q)
        BLOCK_M = 32
        grid = (B * H, triton.cdiv(T, BLOCK_M))
        causal_attn_full_kernel[grid](
            q, k, v, out, 1.4426950408889634 / D ** 0.5,
            T=T, D=D, BLOCK_M=BLOCK_M,
            BLOCK_T=max(16, triton.next_power_of_2(T)),
            BLOCK_D=max(16, triton.next_power_of_2(D)),
            num_warps=4,
        )
        return out
