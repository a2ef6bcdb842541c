import torch
import torch.nn as nn
import torch.nn.functional as F

from lethe.kernels import gdn as family


def half(t):
    return t.to(torch.bfloat16)


def gradients(run, operands, upstream):
    """Gradients of run(*operands) with respect to each operand, detached."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in operands]
        return [g.detach() for g in torch.autograd.grad(run(*leaves), leaves, [g.detach() for g in upstream])]


class ModelNew(nn.Module):
    def __init__(self, heads):
        super().__init__()
        if "dt" in GATES:
            self.A_log = nn.Parameter(torch.linspace(-2.0, 0.5, heads))

    def forward(self, q, k, v, initial, do, dfinal, *gates):
        def run(q, k, v, initial, *rest):
            q, k = (half(F.normalize(t, dim=-1)) for t in (q, k))
            if "dt" in GATES:
                dt, A = torch.sigmoid(rest[0] - 3.0), -torch.exp(rest[1])
                states = {"initial_states": initial.mT, "return_final_states": True}
                o, final = family.ssd(half(v), dt, A, k, q, backend=BACKEND, **states)
                return [o, final.mT]
            given = dict(zip(GATES, rest))
            for name, t in given.items():
                given[name] = -5.0 * torch.sigmoid(t - 5.0) if name == "g" else half(torch.sigmoid(t))
            states = {"initial_state": initial, "output_final_state": True}
            return list(getattr(family, MEMBER)(q, k, half(v), **given, backend=BACKEND, **states))

        operands = (q, k, v, initial, *gates, *self.parameters())
        return [*run(*operands), *gradients(run, operands, [half(do), dfinal])]
