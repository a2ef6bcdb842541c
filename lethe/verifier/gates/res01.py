"""RES-01, residency: do outputs live on the device, in the dtype and layout that the reference returns?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lethe.verifier.sheet import Sheet
from lethe.verifier.verdict import Finding, GateResult

if TYPE_CHECKING:
    from lethe.verifier.custody import RunReport
    from lethe.verifier.docket import Case
    from lethe.verifier.trial import Trial


def run(trial: Trial) -> GateResult:
    """Two draws; metadata of every output."""
    sheet = Sheet("RES-01")
    for k in range(2):
        trial.try_case(
            sheet,
            partial(trial.docket.case, "normal", trial.settings.seed + k),
            f"normal:{k}",
            lambda case, report: _check(trial, case, report),
        )
    return sheet.result()


def _check(trial: Trial, case: Case, report: RunReport) -> list[Finding]:
    truth = trial.docket.truth(case)
    findings = []
    device = trial.settings.device
    for name, meta, want in zip(truth.names, report.meta, truth.working, strict=False):
        dtype = str(want.dtype).removeprefix("torch.")
        if meta.dtype != dtype:
            findings.append(
                _finding(case, name, "dtype", f"{name} is {meta.dtype}, the reference returns {dtype}")
            )
        if meta.device.split(":")[0] != device:
            findings.append(
                _finding(case, name, "device", f"{name} lives on {meta.device}, expected {device}")
            )
        if want.is_contiguous() and not meta.contiguous and tuple(meta.shape) == tuple(want.shape):
            findings.append(
                _finding(
                    case, name, "layout", f"{name} is strided {meta.stride}, the reference's is contiguous"
                )
            )
    return findings


def _finding(case: Case, output: str, mechanism: str, message: str) -> Finding:
    return Finding(
        case=case.id, seed=case.seed, channel="T", mechanism=mechanism, output=output, message=message
    )
