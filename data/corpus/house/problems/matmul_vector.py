"""Matrix-vector product, one dot product for each matrix row."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, v):
        return torch.mv(a, v)


rows = 64
width = 1000


def get_inputs():
    return [torch.randn(rows, width), torch.randn(width)]


def get_init_inputs():
    return []
