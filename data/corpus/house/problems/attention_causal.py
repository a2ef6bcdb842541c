"""Multi-head attention in which each position sees only itself and earlier positions."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k, v):
        steps = q.shape[-2]
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        future = torch.ones(steps, steps, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v


batch_size = 2
heads = 3
seq_len = 50
head_dim = 48


def get_inputs():
    q = torch.randn(batch_size, heads, seq_len, head_dim)
    k = torch.randn(batch_size, heads, seq_len, head_dim)
    v = torch.randn(batch_size, heads, seq_len, head_dim)
    return [q, k, v]


def get_init_inputs():
    return []
