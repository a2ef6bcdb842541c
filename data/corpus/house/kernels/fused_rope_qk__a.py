import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rope_qk_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, qo_ptr, ko_ptr,
    q_rows, seq_len,
    HALF: tl.constexpr, BLOCK: tl.constexpr,
):
    # one program per (batch, head, position) row; rows past q_rows belong to k
    pid = tl.program_id(0)
    is_q = pid < q_rows
    row = tl.where(is_q, pid, pid - q_rows)
    pos = row % seq_len

    offs = tl.arange(0, BLOCK)
    mask = offs < HALF
    c = tl.load(cos_ptr + pos * HALF + offs, mask=mask, other=0.0)
    s = tl.load(sin_ptr + pos * HALF + offs, mask=mask, other=0.0)

    base = row * (2 * HALF)
    if is_q:
        x1 = tl.load(q_ptr + base + offs, mask=mask, other=0.0)
        x2 = tl.load(q_ptr + base + HALF + offs, mask=mask, other=0.0)
        tl.store(qo_ptr + base + offs, x1 * c - x2 * s, mask=mask)
        tl.store(qo_ptr + base + HALF + offs, x2 * c + x1 * s, mask=mask)
    else:
        x1 = tl.load(k_ptr + base + offs, mask=mask, other=0.0)
        x2 = tl.load(k_ptr + base + HALF + offs, mask=mask, other=0.0)
        tl.store(ko_ptr + base + offs, x1 * c - x2 * s, mask=mask)
        tl.store(ko_ptr + base + HALF + offs, x2 * c + x1 * s, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, seq_len, head_dim):
        super().__init__()
        half = head_dim // 2
        freq = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(seq_len, dtype=torch.float32), freq)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, q, k):
        q = q.contiguous()
        k = k.contiguous()
        qo = torch.empty_like(q)
        ko = torch.empty_like(k)
        seq_len, head_dim = q.shape[-2], q.shape[-1]
        half = head_dim // 2
        q_rows = q.numel() // head_dim
        k_rows = k.numel() // head_dim
        rope_qk_kernel[(q_rows + k_rows,)](
            q, k, self.cos, self.sin, qo, ko, q_rows, seq_len,
            HALF=half, BLOCK=triton.next_power_of_2(half), num_warps=1,
        )
        return qo, ko
