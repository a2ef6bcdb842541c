"""Noise floor, threshold and onset of one gate on one operator, through the real judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lethe.evidence.calibration.operators import CARRY, WHOLE_BITS, Operator
from lethe.evidence.calibration.search import Probe, largest, onset
from lethe.verifier.problem import instantiate
from lethe.verifier.verdict import Finding, GateResult, GateStatus, Reason

if TYPE_CHECKING:
    from lethe.verifier.judge import Judge
    from lethe.verifier.problem import Candidate, Problem

GATES = ("CMP-01", "CMP-02", "CMP-03", "ORD-01", "ORD-03", "PRC-01", "PRC-02")
"""The gates that compare with a band."""
PAPER_GATES = tuple(g for g in GATES if g != "PRC-01")
"""Those for which profile `paper` has the published formula; on float32 its PRC-01 is this project's own."""
SUMS = ("ORD-01", "ORD-03", "PRC-02")
"""Those that ask about reductions only."""
UNIT = 2.0**-24
THIN = 2.0
"""A margin below this factor is called thin."""
FEWEST_BITS = 2
LOOSE, TIGHT = 1e-2, 1e-4
"""The tolerances of KernelBench's check (absolute and relative alike): the published and the strict one."""


class CalibrationError(ValueError):
    """An honest kernel is rejected, or a verdict says nothing of the gate; the message is one sentence."""


@dataclass(frozen=True)
class Reading:
    """One verdict of one gate."""

    result: GateResult

    @property
    def bands(self) -> list[Finding]:
        """Findings that a band decided."""
        return [f for f in self.result.findings if f.channel == "B"]

    @property
    def exact(self) -> bool:
        """Whether a tolerance-free check of the gate found something."""
        return any(f.channel == "T" for f in self.result.findings)

    @property
    def masked(self) -> bool:
        """Whether the gate steps back: PRC-02 because PRC-01 charges narrow operands or intermediates, others
        because an injected error is not one of rounding, nor of a regime, and CMP-01 charges it."""
        return self.result.reason in (Reason.NARROW_OPERANDS, Reason.EARLIER_FAILURE)

    @property
    def ratio(self) -> float | None:
        """Largest metric over bound that the gate measured; None if it measured nothing."""
        seen = [v for k, v in self.result.measured.items() if k == "worst_ratio" or k.endswith(":ratio")]
        return max(seen, default=None)

    @property
    def tipping(self) -> Finding | None:
        """The band's finding that is nearest to its bound: what decides at the onset."""
        return min(self.bands, key=_excess, default=None)

    @property
    def threshold(self) -> float | None:
        """The bound that tipped, as a relative error."""
        f = self.tipping
        if f is None or f.bound is None:
            return None
        if f.expected is None:  # the precision gates' metrics are relative already
            return f.bound
        return f.bound / abs(f.expected) if f.expected else None


def _excess(f: Finding) -> float:
    return f.metric / f.bound if f.metric is not None and f.bound else math.inf


@dataclass(frozen=True)
class Bench:
    """A judge and one operator before it."""

    judge: Judge
    operator: Operator
    problem: Problem

    def read(self, gate: str, candidate: Candidate) -> Reading:
        """Raises CalibrationError where the verdict holds no such gate or the gate could not decide."""
        verdict = self.judge.verify(self.problem, candidate, gates=[gate])
        if not verdict.gates:
            said = f"{verdict.status}: {verdict.message}"
            raise CalibrationError(f"{self.operator.name} was not judged: {said}")
        result = verdict.gate(gate)
        if result.status is GateStatus.ERROR and result.reason is not Reason.EARLIER_FAILURE:
            raise CalibrationError(f"{gate} could not decide on {self.operator.name}: {result.detail}")
        return Reading(result)


def row(bench: Bench, gate: str, pattern: str) -> dict[str, Any]:
    """Everything measured about one gate, operator and pattern. Raises CalibrationError.

    ``noise``: the honest kernel's largest metric over bound (the threshold is 1 there). ``threshold``: the
    bound that tips at the onset, as a relative error; ``noise_error`` = noise x threshold, so that three
    marks can stand on one axis. ``onset``: the smallest injected relative error that a band of the gate
    rejects, or 2^-bits of the widest carry that it rejects; ``onset_units`` in units of 2^-24. ``below``
    and ``above`` are the margins: threshold over noise, onset over noise (a carry's over 2^-24, what an
    honest float32 carry rounds by). ``exact_onset``: where a
    tolerance-free check of the same gate comes first. ``masked``: from where on the gate steps back, because
    another charges the error; then ``onset`` is None.
    """
    honest = bench.read(gate, bench.operator.candidate())
    base: dict[str, Any] = {"gate": gate, "operator": bench.operator.name, "pattern": pattern}
    if honest.result.status is GateStatus.NOT_APPLICABLE:
        return base | {"status": "not_applicable", "reason": str(honest.result.reason)}
    if honest.result.status is GateStatus.FAIL:
        said = honest.result.findings[0].message
        raise CalibrationError(f"{gate} rejects the honest {bench.operator.name}: {said}")
    found = _carry_onset(bench, gate) if pattern == CARRY else _injected_onset(bench, gate, pattern)
    noise = honest.ratio
    kernelbench = {f"{tol:g}": accepted_up_to(bench.operator, pattern, tol) for tol in (LOOSE, TIGHT)}
    return (
        base
        | {"status": "measured", "noise": noise}
        | found
        | margins(noise, found, UNIT if pattern == CARRY else None)
        | {"kernelbench": kernelbench}
    )


def margins(noise: float | None, found: dict[str, Any], floor: float | None = None) -> dict[str, Any]:
    """Margins of a row from its noise (a ratio), threshold and onset (relative errors).

    `floor`: the honest error in the onset's own terms; by default the noise at the element that tips.
    """
    threshold, first = found["threshold"], found["onset"]
    if floor is None and noise is not None and threshold is not None:
        floor = noise * threshold
    below = 1.0 / noise if noise else None
    above = first / floor if first is not None and floor else None
    known = [m for m in (below, above) if m is not None]
    return {
        "noise_error": floor,
        "onset_units": first / UNIT if first is not None else None,
        "below": below,
        "above": above,
        "thin": bool(known) and min(known) < THIN,
    }


def _injected_onset(bench: Bench, gate: str, pattern: str) -> dict[str, Any]:
    readings: dict[float, Reading] = {}

    def band(eps: float) -> Probe:
        readings[eps] = r = bench.read(gate, bench.operator.candidate(eps, pattern))
        return Probe(bool(r.bands) or r.masked, r.ratio)

    def tolerance_free(eps: float) -> Probe:
        return Probe(bench.read(gate, bench.operator.candidate(eps, pattern)).exact)

    seen = onset(band).amount
    first = min((e for e, r in readings.items() if r.exact), default=math.inf)
    earlier = first < (seen if seen is not None else math.inf)
    exact = onset(tolerance_free, first).amount if earlier else None
    return _described(seen, readings.get(seen or 0.0), exact, len(readings))


def _carry_onset(bench: Bench, gate: str) -> dict[str, Any]:
    readings: dict[int, Reading] = {}

    def band(bits: int) -> bool:
        readings[bits] = r = bench.read(gate, bench.operator.candidate(bits=bits))
        return bool(r.bands) or r.masked

    def tolerance_free(bits: int) -> bool:
        return bench.read(gate, bench.operator.candidate(bits=bits)).exact

    seen = largest(band, FEWEST_BITS, WHOLE_BITS - 1)
    first = max((b for b, r in readings.items() if r.exact), default=0)
    exact = largest(tolerance_free, first, WHOLE_BITS - 1) if first > (seen or 0) else None
    found = _described(_error(seen), readings.get(seen or 0), _error(exact), len(readings))
    return found | {"bits": seen}


def _error(bits: int | None) -> float | None:
    return None if bits is None else 2.0**-bits


def _described(
    onset: float | None, reading: Reading | None, exact: float | None, probes: int
) -> dict[str, Any]:
    masked = reading is not None and reading.masked
    f = reading.tipping if reading is not None else None
    return {
        "onset": None if masked else onset,
        "threshold": reading.threshold if reading is not None else None,
        "masked": onset if masked else None,
        "exact_onset": exact,
        "case": f.case if f is not None else None,
        "mechanism": f.mechanism if f is not None else None,
        "probes": probes,
    }


@lru_cache(maxsize=256)
def accepted_up_to(operator: Operator, pattern: str, tolerance: float) -> float | None:
    """The smallest injected error (for a carry 2^-bits) that KernelBench's check rejects: five trials of
    ``allclose(rtol=tolerance, atol=tolerance)``. None if it accepts every amount. Runs on the CPU."""
    trials = _trials(operator)

    def rejects(candidate: Candidate) -> bool:
        import torch

        return any(
            not torch.allclose(_output(candidate, operator, inputs), expected, rtol=tolerance, atol=tolerance)
            for inputs, expected in trials
        )

    if pattern == CARRY:
        bits = largest(lambda b: rejects(operator.candidate(bits=b)), FEWEST_BITS, WHOLE_BITS - 1)
        return None if bits is None else 2.0**-bits
    return onset(lambda e: Probe(rejects(operator.candidate(e, pattern)))).amount


@lru_cache(maxsize=16)
def _trials(operator: Operator) -> list[tuple[Any, Any]]:
    import torch

    from lethe.audit.acceptance import SEED, trial_seeds

    instance = instantiate(operator.problem(), seed=SEED)
    drawn = [instance.draw(s) for s in trial_seeds()]
    with torch.no_grad():
        return [(inputs, instance.module(*inputs)) for inputs in drawn]


def _output(candidate: Candidate, operator: Operator, inputs: Any) -> Any:
    """The candidate, which is this module's own text, run in this process."""
    import torch

    from lethe.audit.acceptance import SEED

    space: dict[str, Any] = {"__name__": candidate.name}
    exec(compile(candidate.source, candidate.name, "exec"), space)
    init = instantiate(operator.problem(), seed=SEED).init
    torch.manual_seed(SEED)
    with torch.no_grad():
        return space["ModelNew"](*init)(*inputs)


def each(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`check`'s row, or the reason why there is none."""
    try:
        return check()
    except CalibrationError as e:
        return {"status": "rejected", "reason": str(e)}
