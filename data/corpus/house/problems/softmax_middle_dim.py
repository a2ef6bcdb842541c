"""Softmax along the middle dimension of a 3-D tensor, so the normalised elements are strided."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


batch_size = 4
classes = 500
positions = 16


def get_inputs():
    return [torch.randn(batch_size, classes, positions)]


def get_init_inputs():
    return []
