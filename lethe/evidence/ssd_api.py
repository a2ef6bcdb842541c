"""The engine's public interface, read from the code: names, calls, and what their docstrings say."""

from __future__ import annotations

import inspect
import re
from typing import Any

Row = tuple[str, str, str]

OPERANDS = re.compile(r"^ {8}(\w[\w, ]*): (.*(?:\n {12,}.*)*)", re.MULTILINE)


def interface() -> list[Row]:
    """Name, call and first sentence of everything public, the graph layer first."""
    from lethe.kernels import ssd

    graph, plan = ssd.Graph, ssd.Plan
    things: list[tuple[str, Any]] = [
        ("Graph", graph), ("Graph.tensor", graph.tensor), ("Graph.ssd", graph.ssd),
        ("Graph.ssd_bwd", graph.ssd_bwd), ("Attributes", ssd.Attributes), ("analyze", ssd.analyze),
        ("Finding", ssd.Finding), ("Declined", ssd.Declined), ("build", ssd.build), ("Plan", plan),
        ("Plan.execute", plan.execute), ("Plan.workspace_bytes", plan.workspace_bytes),
        ("Plan.explain", plan.explain), ("ssd", ssd.ssd), ("Mamba2Mixer", ssd.Mamba2Mixer),
    ]  # fmt: skip
    return [(name, _call(thing), first_sentence(inspect.getdoc(thing) or "")) for name, thing in things]


def _call(thing: Any) -> str:
    """Arguments by name, ``*`` before those that need it; empty for a property."""
    if isinstance(thing, property):
        return ""
    names, starred = [], False
    for p in inspect.signature(thing).parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not starred:
            names.append("*")
            starred = True
        names.append(f"**{p.name}" if p.kind is p.VAR_KEYWORD else p.name)
    return f"({', '.join(names)})"


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a line or stands before a space."""
    flat = re.sub(r"\s+", " ", text)
    return re.split(r"(?<=[.:;])\s", flat, maxsplit=1)[0].rstrip(":;").replace("``", "`")


def operands() -> list[Row]:
    """Arguments of `ssd` with their defaults and what the docstring says of them."""
    from lethe.kernels.ssd.operator import ssd

    section = (ssd.__doc__ or "").split("Args:")[1].split("Returns:")[0]
    told = {}
    for names, text in OPERANDS.findall(section):
        for name in names.split(", "):
            told[name] = re.sub(r"\s+", " ", text).strip().replace("``", "`")
    found = []
    for p in inspect.signature(ssd).parameters.values():
        default = "" if p.default is p.empty else str(p.default)
        found.append((p.name, default, told.get(p.name, "")))
    return found
