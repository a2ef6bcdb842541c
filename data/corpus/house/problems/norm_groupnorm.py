"""Group normalisation of an image batch, with one gain and shift for each channel."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        gen = torch.Generator().manual_seed(13)
        with torch.no_grad():
            self.norm.weight.copy_(1.0 + 0.1 * torch.randn(channels, generator=gen))
            self.norm.bias.copy_(0.1 * torch.randn(channels, generator=gen))

    def forward(self, x):
        return self.norm(x)


batch_size = 4
groups = 6
channels = 24
height = 16
width = 20


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [groups, channels]
