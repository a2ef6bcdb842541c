"""The tolerance-free floor: rows convicted without any threshold, and how the number moves with each choice.

The definition is fixed here, before any run. A row is in the strict floor if at
least one of five channels speaks against it:

* ``EXC-01``: an output mask (NaN, +Inf, -Inf) differs where all oracles agree;
* ``ORD-02``: repeated calls differ in a byte, or an input was overwritten;
* ``aliasing``: an output shares memory that the reference's does not share;
* ``crash``: the kernel killed its process;
* ``pre_gate``: on the reference's own inputs, at the sizes that its problem is written for,
  it raised, or returned another structure, shape or type.

Not in it: anything with a tolerance; refusals of other shapes (CMP-03); subnormals
(EXC-02); integrity probes; gradients that do not arrive (CMP-02); devices, dtypes and
strides (RES-01); non-finite differences that a legal reassociation explains (no
findings, but `inf_by_reassociation` among what EXC-01 measured); and statuses that say
nothing about the contract (compile and tool-chain failures, time-outs, memory, executor,
harness).
The variants add or remove one channel, or one sub-label, each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lethe.verifier.verdict import Status

Found = Mapping[str, Any]
"""A finding as in a line, with its gate under ``"gate"``."""

MASKS = frozenset({"swallowed", "minted", "nan_for_inf", "inf_for_nan", "wrong_sign"})
STRUCTURE = frozenset({"structure", "shape"})
DIFFERS = frozenset({"nondeterministic", "process", "stream", "graph", "input_overwritten"})
REFUSES = frozenset({"rejects", "raises"}) | STRUCTURE
CRASH = str(Status.CRASHED)
PRE_GATE = frozenset(
    str(s)
    for s in (
        Status.BUILD_FAILED,
        Status.RUN_FAILED,
        Status.WRONG_TYPE,
        Status.GARBAGE,
        Status.RESOURCE_LIMIT,
    )
)
"""Statuses before the gates that are the kernel's doing on the reference's own inputs."""

STRICT = ("EXC-01", "ORD-02", "aliasing", "crash", "pre_gate")
"""The published channels; their union is the floor."""
EXTRA = ("shape", "EXC-02", "gradient", "integrity")
LABELS = {"EXC-01": "maxnum", "gradient": "detached"}
"""Channel -> the sub-label (in ``extra``) of findings that a variant may leave aside."""
VARIANTS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "strict": (STRICT, frozenset()),
    "+ shape rejection": ((*STRICT, "shape"), frozenset()),
    "+ subnormals (EXC-02)": ((*STRICT, "EXC-02"), frozenset()),
    "- IEEE maxNum semantics": (STRICT, frozenset({"maxnum"})),
    "+ missing gradients": ((*STRICT, "gradient"), frozenset()),
    "+ missing gradients - detached launches": ((*STRICT, "gradient"), frozenset({"detached"})),
    "+ integrity probes": ((*STRICT, "integrity"), frozenset()),
    "+ all of these, maxNum kept": ((*STRICT, *EXTRA), frozenset()),
}
"""Name -> (channels, sub-labels that do not count)."""


def channels(
    status: str, findings: Iterable[Found], integrity: Iterable[Found], substituted: bool = False
) -> dict[str, str]:
    """Which channels speak against a row, each with how: ``""`` or the sub-label of `LABELS`.

    `substituted`: the row was judged at other sizes than those of its problem.

    ``channels(...)["EXC-01"] == "maxnum"`` means that every EXC-01 finding carries the
    sub-label IEEE maxNum semantics, so that the row leaves the floor without it.
    """
    spoken: dict[str, str] = {}
    if status == CRASH:
        spoken["crash"] = ""
    elif status in PRE_GATE and not substituted:
        spoken["pre_gate"] = ""
    for f in findings:
        if f["channel"] != "T":
            continue
        gate, mechanism, extra = f["gate"], f["mechanism"], f.get("extra") or {}
        if mechanism == CRASH:
            spoken["crash"] = ""
        elif gate == "CMP-01" and mechanism in STRUCTURE:
            if not substituted:
                spoken["pre_gate"] = ""
        elif gate == "EXC-01" and mechanism in MASKS and not extra.get("reassociation"):
            _speak(spoken, "EXC-01", extra)
        elif gate == "CMP-02" and mechanism == "missing_gradient":
            _speak(spoken, "gradient", extra)
        elif gate == "ORD-02" and mechanism == "aliasing":
            spoken["aliasing"] = ""
        elif gate == "ORD-02" and mechanism in DIFFERS:
            spoken["ORD-02"] = ""
        elif gate == "CMP-03" and mechanism in REFUSES:
            spoken["shape"] = ""
        elif mechanism == "out_of_bounds_write":
            spoken["integrity"] = ""
        elif gate == "EXC-02" and mechanism == "flushed":
            spoken["EXC-02"] = ""
    if any(True for _ in integrity):
        spoken["integrity"] = ""
    return spoken


def _speak(spoken: dict[str, str], channel: str, extra: Mapping[str, Any]) -> None:
    """Add a finding to a channel, which keeps its sub-label while every finding carries it."""
    label = LABELS[channel] if extra.get(LABELS[channel]) else ""
    spoken[channel] = label if spoken.get(channel, label) == label else ""


def in_floor(spoken: Mapping[str, str], variant: str = "strict") -> bool:
    """Whether a row's channels put it into the floor of a variant. Raises KeyError for an unknown one."""
    wanted, aside = VARIANTS[variant]
    return any(c in spoken and spoken[c] not in aside for c in wanted)
