"""The gated linear recurrence: LA, GLA, SSD, DeltaNet, GDN, KDA and GDN-2 by one differentiable operator.

``gated_delta_rule`` is the general form, ``linear_attention``, ``gla``, ``ssd``, ``deltanet``, ``gdn``,
``kda`` and ``gdn2`` its members, ``explain`` says which backend would run a call and why. `stages` is the
mathematics of the three kernels, `chunks` and `decay` what it rests on, `precision` which operands may be 16
bits wide. Everything is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.kernels.gdn.dispatch import Choice
    from lethe.kernels.gdn.members import deltanet, gdn, gdn2, gla, kda, linear_attention, ssd
    from lethe.kernels.gdn.operator import explain, gated_delta_rule

_WHERE = {
    "Choice": "dispatch",
    "deltanet": "members",
    "explain": "operator",
    "gated_delta_rule": "operator",
    "gdn": "members",
    "gdn2": "members",
    "gla": "members",
    "kda": "members",
    "linear_attention": "members",
    "ssd": "members",
}

__all__ = [
    "Choice",
    "deltanet",
    "explain",
    "gated_delta_rule",
    "gdn",
    "gdn2",
    "gla",
    "kda",
    "linear_attention",
    "ssd",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
