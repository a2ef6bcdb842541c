"""What an innocent is: a problem, an honest kernel for it, and what one missing rule would charge it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lethe.verifier.problem import OpSpec, Problem
    from lethe.verifier.verdict import Verdict


@dataclass(frozen=True)
class Innocent:
    """An honest kernel that one fairness rule protects."""

    rule: int
    title: str
    """The kernel in a few words."""
    problem: str | OpSpec
    """Source of the reference in KernelBench's format, or an operator given as callables."""
    candidate: str
    """Source of the kernel, with a class ``ModelNew``."""
    gates: tuple[str, ...]
    """Gates that are enough to see it."""
    charged: str
    """Gate and mechanism (or status) that it is charged with when the rule is off: ``"EXC-01 minted"``."""
    why: str
    """Why the charge would be wrong, in one sentence."""
    cleared: str = "clean"
    """How the verdict reads with the rule: ``"clean"``, or why nothing is concluded."""
    memory_bytes: int | None = None
    """Memory of the suspect, where the default is not the point."""
    reference_bytes: int | None = None
    """What the problem's tensors may take before the judge chooses smaller sizes, likewise."""

    @property
    def key(self) -> str:
        """``"rule-07-masked-out"``: the number and the name of the rule."""
        return key(self.rule)

    def reference(self) -> Problem:
        """The problem that a judge takes."""
        from lethe.verifier.problem import load_problem, problem_from_spec

        if isinstance(self.problem, str):
            return load_problem(self.problem, self.key)
        return problem_from_spec(self.problem)


def key(rule: int) -> str:
    """``"rule-07-masked-out"``. Raises KeyError for a rule that does not exist."""
    from lethe.verifier.fairness import RULES

    return f"rule-{rule:02d}-{RULES[rule].name.replace('_', '-')}"


def reading(verdict: Verdict) -> str:
    """A verdict in one line: ``"clean"``, ``"FAIL CMP-01 value, EXC-01 minted"``, or why nothing follows.

    Gates that do not apply or could not decide are named with their reason, as far as no gate failed.
    """
    failed = [
        f"{g.gate} {mechanism}"
        for g in verdict.gates
        if g.gate in verdict.failed
        for mechanism in sorted({f.mechanism for f in g.findings})
    ]
    failed += [f"INTEGRITY {f.mechanism}" for f in verdict.integrity]
    if failed:
        return "FAIL " + ", ".join(failed)
    if not verdict.gates:
        return str(verdict.status)
    undecided = [f"{g.gate} error ({g.whose})" for g in verdict.gates if str(g.status) == "error"]
    if verdict.clean:
        return "clean"
    return ", ".join(undecided or sorted({f"not applicable ({g.reason})" for g in verdict.gates}))


def kernelbench(forward: str, inputs: str, sizes: str = "rows = 4\nwidth = 32", *, model: str = "") -> str:
    """A reference in KernelBench's format: the expression that ``forward(self, ...)`` returns (or statements
    ending in a return), the expression of ``get_inputs``, and the module-level sizes.

    `model` holds further methods of the class, such as a constructor. The arguments are ``x`` alone, or
    ``x, w`` where `inputs` lists two.
    """
    body = forward if "return " in forward else f"return {forward}"
    statements = "\n        ".join(body.strip().splitlines())
    methods = "".join(f"    {line}\n" if line else "\n" for line in model.strip().splitlines())
    return f"""import itertools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

{sizes}


class Model(nn.Module):
{methods}    def forward(self, {_arguments(inputs)}):
        {statements}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def kernel(forward: str, arguments: str = "x", *, model: str = "", top: str = "") -> str:
    """A candidate: the body of ``ModelNew.forward``, further methods, and module-level code."""
    body = forward if "return " in forward else f"return {forward}"
    statements = "\n        ".join(body.strip().splitlines())
    methods = "".join(f"    {line}\n" if line else "\n" for line in model.strip().splitlines())
    return f"""import itertools
import math
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

{top}


class ModelNew(nn.Module):
{methods}    def forward(self, {arguments}):
        {statements}
"""


def _arguments(inputs: str) -> str:
    depth, count = 0, 1
    for c in inputs:
        depth += (c in "([") - (c in ")]")
        count += c == "," and depth == 0
    return ", ".join("xwv"[:count])
