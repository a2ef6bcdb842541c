"""Candidates given as plain functions: they run in the suspect's process, from this file."""

import torch


def moments(x, weight):
    """Mean, variance and a weighted sum, in a nested container."""
    mean = x.mean(-1)
    centred = x - mean.unsqueeze(-1)
    return {"moments": (mean, (centred * centred).mean(-1)), "weighted": x @ weight}


def moments_without_weight(x, weight):
    mean = x.mean(-1)
    return {"moments": (mean, x.var(-1, unbiased=False)), "weighted": x.sum(-1)}


def moments_as_a_list(x, weight):
    good = moments(x, weight)
    return {"moments": list(good["moments"]), "weighted": good["weighted"]}


def half_inside(a, b):
    return (a.bfloat16() @ b.bfloat16()).to(a.dtype)


def matmul(a, b):
    return torch.einsum("ik,kj->ij", a, b)


def thrice(x):
    return x * 3
