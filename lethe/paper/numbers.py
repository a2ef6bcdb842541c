"""Numbers as the prose prints them: MyST substitutions made from files, never typed by hand.

``{{ pub.<path> }}`` is a figure that the paper published (``data/published/figures.json``),
``{{ here.<experiment>.<name> }}`` is a figure that this build computed or recorded.
"""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from lethe.provenance import ROOT

PUBLISHED = ROOT / "data" / "published" / "figures.json"

RATE_KEYS = ("rate", "share", "kill_criterion", "raw_rate", "ceiling_share")
"""A number under one of these keys, or under a key that ends in ``_rate``, prints as a percentage."""

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def published(path: Path = PUBLISHED) -> dict[str, Any]:
    """The published figures as numbers."""
    return json.loads(path.read_text(encoding="utf-8"))


def here(results: Path) -> dict[str, dict[str, str]]:
    """What the notebooks glued: experiment -> name -> text."""
    files = sorted((results / "numbers").glob("*.json"))
    return {f.stem: json.loads(f.read_text(encoding="utf-8")) for f in files}


def substitutions(results: Path, figures: Path = PUBLISHED) -> dict[str, Any]:
    """Everything that prose may refer to."""
    return {"pub": formatted(published(figures)), "here": here(results)}


def formatted(value: Any, rate: bool = False) -> Any:
    """The same nesting with every number as text; a rate prints as a percentage."""
    if isinstance(value, dict):
        return {str(k): formatted(v, rate or _is_rate(str(k))) for k, v in value.items()}
    if isinstance(value, list):
        return [formatted(v, rate) for v in value]
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return percent(value) if rate else number(value)
    return value


def _is_rate(key: str) -> bool:
    return key in RATE_KEYS or key.endswith("_rate") or "_rate_" in key


def percent(rate: float, digits: int = 1) -> str:
    """``0.4105`` -> ``"41.1%"``: decimal rounding, half up, as a person rounds the printed number."""
    places = Decimal(1).scaleb(-digits)
    return f"{(Decimal(str(rate)) * 100).quantize(places, ROUND_HALF_UP)}%"


def number(value: float) -> str:
    """``2638`` -> ``"2,638"``, ``1.5e9`` -> ``"1.5·10⁹"``, ``0.00329`` -> ``"0.00329"``."""
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.4g}".split("e") if "e" in f"{value:.4g}" else f"{value:.3e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}·10{str(int(exponent)).translate(SUPERSCRIPT)}"
    return f"{value:.12g}"
