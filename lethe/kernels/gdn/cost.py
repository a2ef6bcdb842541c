"""What the three stages cost, product by product and tensor by tensor: the arithmetic behind `DESIGN.md`."""

from __future__ import annotations

from lethe.kernels.gdn.chunks import CHUNK
from lethe.kernels.gdn.precision import CHOSEN, Plan

_BELOW, _BLOCKS = 24 * CHUNK, 16 * CHUNK
"""Entries of a chunk's squares (one of 32 x 32, two of 16 x 16) and of its diagonal blocks."""

HANDED = {
    "A": ("prep", "out"),
    "T": ("prep", "out"),
    "Kt": ("prep", "scan", "scan"),
    "W": ("prep", "scan", "scan"),
    "U": ("prep", "scan"),
    "P": ("prep", "scan"),
    "S": ("scan", "out"),
    "D": ("scan", "out"),
}
"""Tensors between stages: who writes, then who reads (scan reads Kt and W once in each direction)."""


def products(dk: int, dv: int) -> dict[str, tuple[str, tuple[str, str], int]]:
    """Each product of the backward pass in recompute mode: its stage, its operands, multiply-adds a chunk."""
    state, row, square = CHUNK * dk * dv, CHUNK * CHUNK * dv, CHUNK * CHUNK * dk
    join = 2 * 16**3 + 32**3
    found = {
        "T": ("prep", ("inverse.M", "inverse.T"), join),
        "T X": ("prep", ("inverse.T", "inverse.X"), join),
        "U": ("prep", ("U.T", "U.wv"), row),
        "W": ("prep", ("W.T", "W.Ph"), square),
        "dNloc": ("prep", ("dNloc.A", "dNloc.do"), row),
        "Qh dO": ("prep", ("P.Qh", "P.do"), state),
        "W dNloc": ("prep", ("P.W", "P.dNloc"), state),
        "W S": ("scan", ("WS.W", "WS.S"), state),
        "Kt N": ("scan", ("KtN.Kt", "KtN.N"), state),
        "Kt D": ("scan", ("KtD.Kt", "KtD.D"), state),
        "W Y": ("scan", ("WY.W", "WY.Y"), state),
        "Ph S": ("out", ("PhS.Ph", "PhS.S"), state),
        "N": ("out", ("N.T", "N.E"), row),
        "A dO": ("out", ("dN.A", "dN.do"), row),
        "dN": ("out", ("dN.Kt", "dN.D"), state),
        "R": ("out", ("R.T", "R.dN"), row),
        "dA": ("out", ("dA.do", "dA.N"), row),
        "dM": ("out", ("dM.R", "dM.N"), row),
        "dQh": ("out", ("dQh.do", "dQh.S"), state),
        "dKt": ("out", ("dKt.N", "dKt.D"), state),
        "dPh": ("out", ("dPh.R", "dPh.S"), state),
    }
    decayed = (
        *(("prep", name, "x", "y") for name in ("A", "M")),
        *(("out", name, "dX", other) for name in ("dq", "dp") for other in ("x", "y")),
    )
    for stage, name, left, right in decayed:
        for suffix, macs in (("", _BELOW * dk), (".diagonal", _BLOCKS * dk)):
            pair = (f"{name}.{left}{suffix}", f"{name}.{right}{suffix}")
            found[f"{name} {left} {right}{suffix}"] = (stage, pair, macs)
    return found


def _passes(forms: tuple[str, str]) -> float:
    """Tensor time of a multiply-add against two 16-bit operands: tf32 runs at half rate, splits multiply."""
    if "tf32" in forms:
        return 2.0
    return {0: 1.0, 1: 2.0, 2: 3.0}[sum("x2" in form for form in forms)]


def tensor_work(plan: Plan = CHOSEN, dk: int = 128, dv: int = 128) -> dict[str, float]:
    """16-bit multiply-adds of each stage, per chunk and head."""
    work = dict.fromkeys(("prep", "scan", "out"), 0.0)
    for stage, (left, right), macs in products(dk, dv).values():
        work[stage] += macs * _passes((plan.form(left), plan.form(right)))
    return work


def handed_bytes(
    plan: Plan = CHOSEN, dk: int = 128, dv: int = 128, erase: bool = True, once: bool = False
) -> dict[str, int]:
    """Bytes that each stage writes to or reads from workspaces, per chunk and head.

    Without erasure there is neither T nor W, and scan reads Kt in one direction only. With `once` what scan
    reads in both directions counts once: the second time it may come from the L2 cache.
    """
    square, keys, values, states = CHUNK * CHUNK, CHUNK * dk, CHUNK * dv, dk * dv
    sizes = {"A": square, "T": square, "Kt": keys, "W": keys, "U": values}
    total = dict.fromkeys(("prep", "scan", "out"), 0)
    for name, stages in HANDED.items():
        width = 4 if plan.form(f"store.{name}") in ("bf16x2", "fp32") else 2
        if once or not erase:
            stages = () if not erase and name in "TW" else tuple(dict.fromkeys(stages))
        for stage in stages:
            total[stage] += width * sizes.get(name, states)
    return total


Widths = tuple[int, int, int]
"""Numbers that g, b and w have for a token and head: 0 where the gate is absent, 1 for one a head."""


def traffic(
    plan: Plan = CHOSEN, dk: int = 128, dv: int = 128, widths: Widths | None = None, once: bool = False
) -> dict[str, int]:
    """Bytes of memory traffic of each stage, per chunk and head: inputs, gradients, workspaces.

    Inputs and gradients are 16 bits wide, decays and their gradients 32; every gate is one a channel unless
    `widths` says otherwise. `once`: see `handed_bytes`.
    """
    widths = (dk, dk, dv) if widths is None else widths
    total = handed_bytes(plan, dk, dv, widths[1] > 0, once)
    inputs, gradients = _tokens(dk, dv, widths)
    total["prep"] += inputs
    total["out"] += inputs + gradients
    return total


def least_traffic(dk: int = 128, dv: int = 128, widths: Widths | None = None) -> int:
    """Bytes of inputs and gradients alone, each moved once, per chunk and head."""
    return sum(_tokens(dk, dv, (dk, dk, dv) if widths is None else widths))


def compulsory(
    dk: int = 128, dv: int = 128, widths: Widths | None = None, checkpoints: bool = False
) -> dict[str, int]:
    """Bytes that each pass must move whatever its kernels are, per chunk and head: every tensor that it is
    given or returns, once.

    ``forward`` reads q, k, v and the gates and writes o; ``backward`` reads them and dO, and writes a
    gradient for each. With `checkpoints` the state that enters a chunk is written by the one and read by the
    other, in 16 bits. States at the ends of a sequence are not counted.
    """
    inputs, gradients = _tokens(dk, dv, (dk, dk, dv) if widths is None else widths)
    kept = 2 * dk * dv if checkpoints else 0
    return {"forward": inputs + kept, "backward": inputs + gradients + kept}


def _tokens(dk: int, dv: int, widths: Widths) -> tuple[int, int]:
    """Bytes of a chunk's inputs (q, k, v, dO and gates), and of its gradients."""
    g, b, w = widths
    gates = 4 * g + 2 * (b + w)
    return CHUNK * (2 * (2 * dk + 2 * dv) + gates), CHUNK * (2 * (2 * dk + dv) + gates)
