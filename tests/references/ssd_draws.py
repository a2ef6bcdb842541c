"""Small float64 operands for the tests of the SSD oracle; every draw is seeded."""

from __future__ import annotations

from typing import Any

import torch

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softplus-bias": {"dt_softplus": True, "dt_bias": "H"},
    "clamped": {"dt_softplus": True, "dt_bias": "H", "dt_limit": (0.4, 0.9)},
    "skip-gate": {"D": "H", "z": "BLHP"},
    "skip-by-channel": {"D": "HP"},
    "state": {"initial_states": "BHPN"},
    "everything": {
        "D": "HP", "z": "BLHP", "dt_softplus": True, "dt_bias": "H", "dt_limit": (0.2, 1.5),
        "initial_states": "BHPN",
    },
    "cut": {"cu_seqlens": (0, 3, 3, 9), "initial_states": "BHPN", "z": "BLHP", "D": "H"},
    "cut-from-zero": {"cu_seqlens": (0, 4, 9), "dt_softplus": True},
}  # fmt: skip
"""Options by name: a string is the shape that is drawn for it."""


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def operands(variant: str = "plain", heads: int = 6, groups: int = 2) -> dict[str, Any]:
    """Operands and options by argument name; nine tokens, three channels, four states."""
    torch.manual_seed(len(variant))
    options = VARIANTS[variant]
    cuts = options.get("cu_seqlens")
    sizes = {"B": 1 if cuts else 2, "L": 9, "H": heads, "P": 3, "N": 4, "G": groups}
    o: dict[str, Any] = {
        "x": draw(sizes["B"], 9, heads, 3), "dt": draw(sizes["B"], 9, heads), "A": -torch.exp(draw(heads)),
        "B": draw(sizes["B"], 9, groups, 4), "C": draw(sizes["B"], 9, groups, 4),
    }  # fmt: skip
    if not options.get("dt_softplus"):
        o["dt"] = o["dt"].abs() + 0.05
    for name, value in options.items():
        if name == "initial_states":
            o[name] = draw(len(cuts) - 1 if cuts else 2, heads, 3, 4)
        elif isinstance(value, str):
            o[name] = draw(*(sizes[axis] for axis in value))
        elif name == "cu_seqlens":
            o[name] = torch.tensor(value, dtype=torch.int32)
        else:
            o[name] = value
    return o


def leaves(o: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The float64 operands of `o`, each made a leaf in place of itself."""
    found = {
        k: v.requires_grad_() for k, v in o.items() if isinstance(v, torch.Tensor) and v.is_floating_point()
    }
    return found


def close(a: torch.Tensor, b: torch.Tensor, bound: float = 1e-12) -> bool:
    """max |a - b| <= bound max(1, max |b|), the shapes equal."""
    assert a.shape == b.shape
    return bool((a - b).abs().max() <= bound * b.abs().max().clamp(min=1.0))
