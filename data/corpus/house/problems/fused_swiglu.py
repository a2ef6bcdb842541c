"""SwiGLU gate: the SiLU of one tensor times another."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, b):
        return F.silu(a) * b


batch_size = 40
width = 1200


def get_inputs():
    return [torch.randn(batch_size, width), torch.randn(batch_size, width)]


def get_init_inputs():
    return []
