"""Mean cross entropy between logits and integer class targets."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, logits, target):
        return F.cross_entropy(logits, target)


batch_size = 64
classes = 500


def get_inputs():
    return [torch.randn(batch_size, classes), torch.randint(0, classes, (batch_size,))]


def get_init_inputs():
    return []
