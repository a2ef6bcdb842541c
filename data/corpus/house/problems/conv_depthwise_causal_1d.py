"""Causal depthwise 1-D convolution: one filter per channel, reading the current and earlier steps only."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, kernel_size):
        super().__init__()
        self.left = kernel_size - 1
        self.conv = nn.Conv1d(channels, channels, kernel_size, groups=channels)

    def forward(self, x):
        return self.conv(F.pad(x, (self.left, 0)))


batch_size = 2
channels = 30
length = 300
kernel_size = 4


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, kernel_size]
