"""Mean of each row, keeping the reduced dimension."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.mean(dim=-1, keepdim=True)


batch_size = 64
width = 512


def get_inputs():
    return [torch.randn(batch_size, width)]


def get_init_inputs():
    return []
