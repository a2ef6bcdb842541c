import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def causal_attn_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr,
    T, D, qk_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    pid_m = tl.program_id(0)
    pid_bh = tl.program_id(1)
    base = pid_bh * T * D

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    d_mask = offs_d < D

    q = tl.load(q_ptr + base + offs_m[:, None] * D + offs_d[None, :],
                mask=(offs_m[:, None] < T) & d_mask[None, :], other=0.0)

    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

    # only key blocks that are not entirely in the future
    hi = tl.minimum((pid_m + 1) * BLOCK_M, T)
    for start_n in range(0, hi, BLOCK_N):
        cols = start_n + offs_n
        kv_mask = (cols[:, None] < T) & d_mask[None, :]
        k = tl.load(k_ptr + base + cols[:, None] * D + offs_d[None, :], mask=kv_mask, other=0.0)
        v = tl.load(v_ptr + base + cols[:, None] * D + offs_d[None, :], mask=kv_mask, other=0.0)

        s = tl.dot(q, tl.trans(k)) * qk_scale
        keep = (offs_m[:, None] >= cols[None, :]) & (cols[None, :] < T)
        s = tl.where(keep, s, float("-inf"))

        m_new = tl.maximum(m_i, tl.max(s, 1))
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p, v)
        m_i = m_new

    acc = acc / l_i[:, None]
    tl.store(o_ptr + base + offs_m[:, None] * D + offs_d[None, :], acc,
             mask=(offs_m[:, None] < T) & d_mask[None, :])


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        B, H, T, D = q.shape
        out = torch.empty_like(q)
        BLOCK_M = 16
        BLOCK_N = 16
        grid = (triton.cdiv(T, BLOCK_M), B * H)
        causal_attn_kernel[grid](
            q, k, v, out, T, D, (D ** -0.5) * 1.4426950408889634,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_D=triton.next_power_of_2(D),
            num_warps=4,
        )
        return out
