"""Independent matrix products over a leading batch dimension."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


batch_size = 6
rows = 40
inner = 72
cols = 56


def get_inputs():
    return [torch.randn(batch_size, rows, inner), torch.randn(batch_size, inner, cols)]


def get_init_inputs():
    return []
