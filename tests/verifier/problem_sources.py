"""Small references in KernelBench's format, for the tests of the problem layer."""

LINEAR = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.proj = nn.Linear(in_features, out_features)

    def forward(self, x):
        return self.proj(x)

batch_size = 8 * 2
in_features, out_features = 48, 24

def get_inputs():
    return [torch.rand(batch_size, in_features)]

def get_init_inputs():
    return [in_features, out_features]
"""

ROWS = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x - x.amax(dim=-1, keepdim=True)

batch_size = 6
width = 40

def get_inputs():
    return [torch.rand(batch_size, width)]
"""


def rows(draw: str, forward: str = "x * 2", names: str = "x") -> str:
    """A parameterless reference with inputs of 16 x 24 drawn by the given expressions."""
    return f"""
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, {names}):
        return {forward}

rows = 16
width = 24

def get_inputs():
    return [{draw}]
"""
