"""How another algorithm is written down: the arguments and the body of ``forward``."""

from __future__ import annotations

Forms = dict[str, dict[str, tuple[str, str]]]
"""Problem -> variant -> (arguments, body of forward)."""

SOFTMAX = """
        shifted = x - x.amax(dim={dim}, keepdim=True)
        weights = shifted.exp()
        return weights / weights.sum(dim={dim}, keepdim=True)"""
