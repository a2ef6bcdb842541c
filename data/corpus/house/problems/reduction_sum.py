"""Sum over the middle dimension of a 3-D tensor."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=1)


batch_size = 4
depth = 300
width = 15


def get_inputs():
    return [torch.randn(batch_size, depth, width)]


def get_init_inputs():
    return []
