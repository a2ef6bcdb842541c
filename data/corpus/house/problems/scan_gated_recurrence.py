"""First-order gated recurrence h_t = a_t * h_{t-1} + b_t from a zero state, returning every state."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        h = torch.zeros_like(b[:, 0])
        states = []
        for t in range(b.shape[1]):
            h = a[:, t] * h + b[:, t]
            states.append(h)
        return torch.stack(states, dim=1)


batch_size = 2
steps = 100
channels = 32


def get_inputs():
    return [torch.sigmoid(torch.randn(batch_size, steps, channels)), torch.randn(batch_size, steps, channels)]


def get_init_inputs():
    return []
