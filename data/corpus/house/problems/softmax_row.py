"""Softmax of each row of a matrix."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


batch_size = 64
width = 1000


def get_inputs():
    return [torch.randn(batch_size, width)]


def get_init_inputs():
    return []
