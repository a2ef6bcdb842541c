"""Suffix sums: each output is the sum of all strictly later elements of its row, and the last one is zero."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        later = torch.flip(torch.cumsum(torch.flip(x, dims=[-1]), dim=-1), dims=[-1])
        last = torch.zeros_like(x[..., :1])
        return torch.cat([later[..., 1:], last], dim=-1)


batch_size = 24
length = 750


def get_inputs():
    return [torch.randn(batch_size, length)]


def get_init_inputs():
    return []
