"""Rotary position embedding (half-split layout) of queries and of fewer key heads, returning both rotated tensors."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, seq_len, head_dim):
        super().__init__()
        half = head_dim // 2
        freq = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(seq_len, dtype=torch.float32), freq)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * self.cos - second * self.sin,
                          second * self.cos + first * self.sin], dim=-1)

    def forward(self, q, k):
        return self.rotate(q), self.rotate(k)


batch_size = 1
q_heads = 4
k_heads = 2
seq_len = 16
head_dim = 128


def get_inputs():
    return [torch.randn(batch_size, q_heads, seq_len, head_dim), torch.randn(batch_size, k_heads, seq_len, head_dim)]


def get_init_inputs():
    return [seq_len, head_dim]
