"""SiLU of each element: x times its sigmoid."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


batch_size = 64
width = 256


def get_inputs():
    return [torch.randn(batch_size, width)]


def get_init_inputs():
    return []
