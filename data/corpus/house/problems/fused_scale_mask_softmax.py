"""Scales attention scores, hides the positions where a boolean mask (shared by the heads) is true, and takes the row softmax."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, scores, hidden):
        return torch.softmax((scores * self.scale).masked_fill(hidden, float("-inf")), dim=-1)


batch_size = 2
heads = 2
q_len = 16
kv_len = 300
scale = 0.125


def get_inputs():
    scores = torch.randn(batch_size, heads, q_len, kv_len) / scale
    hidden = torch.rand(batch_size, 1, q_len, kv_len) > 0.6
    hidden[..., 0] = False  # every row keeps at least one position
    return [scores, hidden]


def get_init_inputs():
    return [scale]
