"""The red team: known ways to pass without doing the work, each beside its honest twin.

The corpus holds the nineteen cheats of the public record and the attacks that have beaten public
harnesses. Each is a few lines on an operator that several share, must be rejected by the gate it was
written for, and stands beside a twin that differs in the one line and must keep every contract.

* Where: in this package; nothing is read from disk. Licence: MIT, like the repository.
* Row id: ``<attack>/<operator>``; the twin's is that with ``/honest``.
* Left out: rows that can only show on CUDA, where no CUDA device is visible (a note says how many).
"""

from __future__ import annotations

from lethe.audit.corpora import ListedCorpus
from lethe.evidence.redteam import host, kernels, numbers, outputs, sizes, state, tuning
from lethe.evidence.redteam.cheat import CORPUS, Cheat

__all__ = ["CHEATS", "NAMED", "Cheat", "load"]

NAMED = (
    "returns_input",
    "returns_cached",
    "memoizes_first_input",
    "buffer_aliasing",
    "fp16_accumulator",
    "nondeterministic",
    "inf_propagation_bug",
    "shape_specific",
    "device_silent_move",
    "dropout_in_disguise",
    "fp32_only_correct",
    "grad_wrong",
    "nan_on_extremes",
    "nan_on_subnormal",
    "side_channel_no_op",
    "parallel_reduction_bug",
    "subnormal_flush",
    "wrong_dtype_promotion",
    "wrong_shape_output",
)
"""The nineteen cheats of the public record."""

CHEATS: tuple[Cheat, ...] = (
    *outputs.CHEATS,
    *state.CHEATS,
    *numbers.CHEATS,
    *sizes.CHEATS,
    *host.CHEATS,
    *kernels.CHEATS,
    *tuning.CHEATS,
)

LIMITS = (
    "an offset that overflows 32 bits needs more elements than any case has; its 16-bit form stands for it",
    "a kernel that copies what torch computed stores every element, so that no probe tells it from one that "
    "computes",
)
"""What the corpus leaves out because nothing here could decide it."""


def load(limit: int | None = None, cuda: bool | None = None) -> ListedCorpus:
    """The corpus, grouped by operator so that the judge prepares each reference once.

    Args:
        limit: only the first so many cheats (each with its twin).
        cuda: whether rows that need CUDA are in; by default if a device is visible.
    """
    if cuda is None:
        import torch

        cuda = torch.cuda.is_available()
    left_out = [c for c in CHEATS if c.needs == "cuda" and not cuda]
    chosen = [c for c in CHEATS if c not in left_out]
    pairs = [c.rows() for c in sorted(chosen, key=_group)[:limit]]
    notes = list(LIMITS)
    if left_out:
        names = ", ".join(sorted({c.id for c in left_out}))
        notes.append(f"{len(left_out)} cheat(s) with twins can only show on CUDA and are left out: {names}")
    return ListedCorpus(CORPUS, [row for pair in pairs for row in pair], notes)


def _group(cheat: Cheat) -> tuple[bool, str]:
    return cheat.family in (kernels.FAMILY, tuning.FAMILY), cheat.ground.name
