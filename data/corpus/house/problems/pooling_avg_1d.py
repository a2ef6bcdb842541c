"""1-D average pooling with windows of 4 and stride 2."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, kernel_size, stride):
        super().__init__()
        self.pool = nn.AvgPool1d(kernel_size, stride=stride)

    def forward(self, x):
        return self.pool(x)


batch_size = 2
channels = 32
length = 256
kernel_size = 4
stride = 2


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [kernel_size, stride]
