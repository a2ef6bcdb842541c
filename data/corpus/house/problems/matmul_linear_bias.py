"""Fully connected layer: x times the transposed weight, plus a bias vector."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.proj = nn.Linear(in_features, out_features, bias=True)

    def forward(self, x):
        return self.proj(x)


batch_size = 32
in_features = 256
out_features = 192


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
