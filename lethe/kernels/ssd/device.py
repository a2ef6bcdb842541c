"""Whether a CUDA device still works for this process. Imports no GPU module until it is asked."""

from __future__ import annotations

LOST = 3
"""Exit status of a process whose device takes no more work; another one goes on behind it."""


def lost() -> bool:
    """Whether the device takes no more work from this process, as after an illegal access."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").add_(1).item()
    except Exception:
        return True
    return False
