"""lethe: a contract-grade verifier for GPU kernels, and the kernels it judges.

Importing this package is cheap: torch, triton and everything heavier load only
when a function that needs them is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.verifier.judge import verify as verify

__version__ = "0.1.0"
__all__ = ["__version__", "verify"]


def __getattr__(name: str) -> Any:
    if name == "verify":
        from lethe.verifier.judge import verify

        return verify
    raise AttributeError(f"module 'lethe' has no attribute {name!r}")
