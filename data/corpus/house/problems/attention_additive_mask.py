"""Cross attention whose scores receive an additive mask shared by the heads, with -inf at blocked keys."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return torch.softmax(scores + mask, dim=-1) @ v


batch_size = 2
heads = 2
q_len = 48
kv_len = 80
head_dim = 40


def get_inputs():
    q = torch.randn(batch_size, heads, q_len, head_dim)
    k = torch.randn(batch_size, heads, kv_len, head_dim)
    v = torch.randn(batch_size, heads, kv_len, head_dim)
    blocked = torch.rand(batch_size, 1, q_len, kv_len) > 0.75
    blocked[..., 0] = False  # every query keeps at least one key
    mask = torch.zeros(batch_size, 1, q_len, kv_len).masked_fill(blocked, float("-inf"))
    return [q, k, v, mask]


def get_init_inputs():
    return []
