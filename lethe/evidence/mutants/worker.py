"""What one worker process does: compare the mutants of one base with it."""

from __future__ import annotations

from lethe.evidence.mutants.equivalents import Comparison, Outcome
from lethe.evidence.mutants.generate import Mutant


def examine(some: list[Mutant]) -> list[tuple[Mutant, Outcome]]:
    """The outcome of each of some mutants of one base."""
    import torch

    from lethe.verifier.server import SuspectServer

    torch.set_num_threads(1)
    row = some[0].base.row
    with SuspectServer() as server, Comparison(server, row.problem, row.candidate) as comparison:
        return [(mutant, comparison.examine(mutant.candidate)) for mutant in some]
