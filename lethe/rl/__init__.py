"""The verifier as a reward, and policies trained on it: GRPO over launch parameters and over edits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.rl.adapter import reward_fn

__all__ = ["reward_fn"]


def __getattr__(name: str) -> Any:
    """`reward_fn` is imported on use: the judge brings torch with it."""
    if name == "reward_fn":
        from lethe.rl.adapter import reward_fn

        return reward_fn
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
