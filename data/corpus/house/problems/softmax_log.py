"""Logarithm of the softmax of each row."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.log_softmax(x, dim=-1)


batch_size = 32
width = 1536


def get_inputs():
    return [torch.randn(batch_size, width)]


def get_init_inputs():
    return []
