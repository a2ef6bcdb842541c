"""2-D batch normalisation at inference, using stored running statistics and affine parameters."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        gen = torch.Generator().manual_seed(14)
        with torch.no_grad():
            self.bn.running_mean.copy_(0.5 * torch.randn(channels, generator=gen))
            self.bn.running_var.copy_(0.5 + torch.randn(channels, generator=gen).abs())
            self.bn.weight.copy_(1.0 + 0.1 * torch.randn(channels, generator=gen))
            self.bn.bias.copy_(0.1 * torch.randn(channels, generator=gen))

    def forward(self, x):
        # inference statistics, whichever mode the module is in
        return F.batch_norm(x, self.bn.running_mean, self.bn.running_var,
                            self.bn.weight, self.bn.bias, training=False, eps=self.bn.eps)


batch_size = 2
channels = 32
height = 16
width = 16


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels]
