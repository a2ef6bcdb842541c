import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def attn_mask_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, o_ptr,
    H, Q_LEN, KV_LEN, D,
    scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    pid_m = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // H

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    m_ok = offs_m < Q_LEN
    d_ok = offs_d < D

    q_base = q_ptr + bh * Q_LEN * D
    k_base = k_ptr + bh * KV_LEN * D
    v_base = v_ptr + bh * KV_LEN * D
    mask_base = mask_ptr + b * Q_LEN * KV_LEN

    q = tl.load(q_base + offs_m[:, None] * D + offs_d[None, :],
                mask=m_ok[:, None] & d_ok[None, :], other=0.0)
    q = q * scale

    m_i = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    l_i = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    for start in range(0, KV_LEN, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        n_ok = offs_n < KV_LEN
        k = tl.load(k_base + offs_n[None, :] * D + offs_d[:, None],
                    mask=n_ok[None, :] & d_ok[:, None], other=0.0)
        s = tl.dot(q, k, input_precision="tf32")
        add = tl.load(mask_base + offs_m[:, None] * KV_LEN + offs_n[None, :],
                      mask=m_ok[:, None] & n_ok[None, :], other=float("-inf"))
        s = s + add

        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        # a row that has seen only -inf so far must not produce nan
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m_i - m_safe)
        p = tl.exp(s - m_safe[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)

        v = tl.load(v_base + offs_n[:, None] * D + offs_d[None, :],
                    mask=n_ok[:, None] & d_ok[None, :], other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p, v, input_precision="tf32")
        m_i = m_new

    acc = acc / l_i[:, None]
    tl.store(o_ptr + bh * Q_LEN * D + offs_m[:, None] * D + offs_d[None, :], acc,
             mask=m_ok[:, None] & d_ok[None, :])


class ModelNew(nn.Module):
    def forward(self, q, k, v, mask):
        q, k, v, mask = q.contiguous(), k.contiguous(), v.contiguous(), mask.contiguous()
        B, H, M, D = q.shape
        N = k.shape[2]
        out = torch.empty_like(q)
        BLOCK_M, BLOCK_N = 16, 32
        grid = (triton.cdiv(M, BLOCK_M), B * H)
        attn_mask_kernel[grid](
            q, k, v, mask, out, H, M, N, D, D ** -0.5,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_D=triton.next_power_of_2(D),
            num_warps=4, num_stages=2,
        )
        return out
