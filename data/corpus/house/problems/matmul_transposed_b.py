"""Product of A with the transpose of B, where B is stored row by row as (n, k)."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b.t()


rows = 60
cols = 100
inner = 200


def get_inputs():
    return [torch.randn(rows, inner), torch.randn(cols, inner)]


def get_init_inputs():
    return []
