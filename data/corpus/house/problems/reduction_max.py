"""Largest value along the middle dimension of a 3-D tensor."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.max(dim=1).values


batch_size = 2
depth = 512
width = 32


def get_inputs():
    return [torch.randn(batch_size, depth, width)]


def get_init_inputs():
    return []
