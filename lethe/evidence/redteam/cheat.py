"""What a cheat is: a candidate's text with one place where it cheats, and the line that makes it honest."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

from lethe.audit.corpora import Row
from lethe.evidence.redteam.grounds import Ground
from lethe.evidence.specimens import Kind, specimen
from lethe.verifier.problem import load_candidate

CORPUS = "redteam"
HERE = "HERE"
"""Stands in a template for the line in which cheat and twin differ."""


@dataclass(frozen=True)
class Cheat:
    """One cheat on one operator, beside its honest twin.

    `template` is the candidate's text with the marker ``HERE``; `wrong` and `right` take its place.
    """

    name: str
    """The attack: ``"returns_input"``. One name is tried on several operators."""
    gate: str
    """The gate it was written for, ``INTEGRITY``, or the status it must end in."""
    ground: Ground
    template: str
    wrong: str
    right: str
    family: str
    needs: str | None = None
    """``"cuda"`` where the defect cannot show on a CPU."""

    @property
    def id(self) -> str:
        return f"{self.name}/{self.ground.name}"

    @property
    def twin(self) -> str:
        return f"{self.id}/honest"

    def rows(self) -> tuple[Row, Row]:
        """The cheat and its twin, as rows of the corpus."""
        return self._row(self.id, Kind.CHEAT, self.wrong), self._row(self.twin, Kind.HONEST, self.right)

    def _row(self, row_id: str, kind: Kind, text: str) -> Row:
        candidate = load_candidate(filled(self.template, text), name=row_id)
        facts = {"attack": self.name, "operator": self.ground.name, "needs": self.needs}
        cheat = kind is Kind.CHEAT
        return specimen(
            row_id,
            kind,
            self.ground.problem,
            candidate,
            corpus=CORPUS,
            family=self.family,
            language=candidate.language,
            gate=self.gate if cheat else None,
            twin=self.twin if cheat else self.id,
            **facts,
        )


def filled(template: str, text: str) -> str:
    """`template` with the marker's line replaced by `text`, at the marker's indentation."""
    lines = []
    for line in template.splitlines():
        if line.strip() == HERE:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + part if part else "" for part in dedent(text).strip("\n").splitlines()]
        else:
            lines.append(line.replace(HERE, text))
    return "\n".join(lines) + "\n"


def module(arguments: str, top: str = "", init: str = "") -> str:
    """Template of a plain torch candidate whose ``forward(self, <arguments>)`` is the marker."""
    head = "import torch\nimport torch.nn as nn\n\n" + (dedent(top).strip("\n") + "\n\n" if top else "\n")
    text = head + "class ModelNew(nn.Module):\n"
    if init:
        body = "".join(f"        {line}\n" for line in dedent(init).strip("\n").splitlines())
        text += f"    def __init__(self):\n        super().__init__()\n{body}\n"
    return text + f"    def forward(self, {arguments}):\n        {HERE}\n"


def on(
    name: str,
    gate: str,
    family: str,
    ground: Ground,
    wrong: str,
    *,
    top: str = "",
    init: str = "",
    right: str | None = None,
    needs: str | None = None,
) -> Cheat:
    """A plain torch cheat; its twin returns the operator in one line unless `right` says otherwise."""
    return Cheat(
        name,
        gate,
        ground,
        module(ground.arguments, top, init),
        wrong,
        right if right is not None else f"return {ground.value}",
        family,
        needs,
    )


def helper(
    name: str, gate: str, family: str, ground: Ground, top: str, forward: str, wrong: str, right: str
) -> Cheat:
    """A plain torch cheat whose line stands in a helper (`top`); `forward` is the whole of ``forward``."""
    text = module(ground.arguments, top).removesuffix(f"        {HERE}\n")
    body = "".join(f"        {line}\n" for line in dedent(forward).strip("\n").splitlines())
    return Cheat(name, gate, ground, text + body, wrong, right, family)
