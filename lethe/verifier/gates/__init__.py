"""One module per gate; `GATES` maps the ids of the catalog to the functions that judge them."""

from __future__ import annotations

from collections.abc import Callable

from lethe.verifier.gates import cmp01, cmp02, cmp03, exc01, exc02, ord01, ord02, prc01, prc02, res01, res02
from lethe.verifier.trial import Trial
from lethe.verifier.verdict import GateResult

GateFunction = Callable[[Trial], GateResult]

GATES: dict[str, GateFunction] = {
    "CMP-01": cmp01.run,
    "CMP-02": cmp02.run,
    "CMP-03": cmp03.run,
    "ORD-01": ord01.run,
    "ORD-02": ord02.run,
    "ORD-03": ord01.run_cancellation,
    "EXC-01": exc01.run,
    "EXC-02": exc02.run,
    "PRC-01": prc01.run,
    "PRC-02": prc02.run,
    "RES-01": res01.run,
    "RES-02": res02.run,
}
