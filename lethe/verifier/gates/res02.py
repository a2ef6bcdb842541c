"""RES-02, resources: does each launched kernel, once compiled, fit the target?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from lethe.verifier.executors.resources import LIMITS, KernelResource, exceeded
from lethe.verifier.sheet import CandidateStopped, NotApplicable, Sheet
from lethe.verifier.verdict import Finding, GateResult, Reason

if TYPE_CHECKING:
    from lethe.verifier.trial import Trial

TARGETS = ("sm_90", "sm_100")


def run(trial: Trial) -> GateResult:
    """Compile every specialisation that the problem's own sizes launch, for both targets; no GPU is needed.

    In a process of its own, so that launches at other sizes (CMP-03's business) are not among them; on a GPU
    it is the one that later gates ask for a second answer. The kernels of a native library, for one target
    each, are those that a traced call launches on the device at hand.
    """
    language, native = trial.candidate.language, trial.candidate.language == "native"
    if language not in ("triton", "native"):
        raise NotApplicable(Reason.NO_COMPILED_ARTIFACT, f"a {language} candidate compiles no kernel")
    if native and trial.settings.executor != "cuda":
        raise NotApplicable(Reason.NO_COMPILED_ARTIFACT, "a library's kernels are launched on a GPU only")
    sheet = Sheet("RES-02")
    shared = trial.settings.executor == "cuda"
    other = trial.second if shared else trial.fresh()
    try:
        other.run(trial.docket.case("normal", trial.settings.seed))
        for target in TARGETS[:1] if native else TARGETS:
            for row in other.resources(target, traced=native):
                _judge(sheet, KernelResource(**row))
    except CandidateStopped as e:
        sheet.skip("compile", f"{e.status}: {e.message}")
        sheet.stopped.append(e)
    finally:
        if not shared:
            other.close()
    if not sheet.cases and not sheet.stopped:
        why = "; ".join(f"{label}: {told}" for label, told in sheet.skipped.items())
        raise NotApplicable(Reason.NO_COMPILED_ARTIFACT, why or "no launched kernel was recorded")
    return sheet.result()


def _judge(sheet: Sheet, k: KernelResource) -> None:
    """A kernel that its compiler refuses is the tool chain's word, not a breach (fairness rule 21). Nor is a
    configuration that an autotuner would pass over; where none fits, the candidate does not run."""
    label = f"{k.name}:{k.target}"
    if k.error or k.target not in LIMITS:
        sheet.skip(label, k.error or f"the limits of {k.target} are not known here")
        return
    for column in ("registers", "shared_bytes", "spill_bytes", "tmem_columns"):
        sheet.worst(f"{k.target}:{column}", float(getattr(k, column)))
    if k.one_of > 1 and exceeded(k):
        sheet.skip(label, f"{exceeded(k)[0]}; it is one of {k.one_of} configurations of an autotuner")
        return
    sheet.add(
        [
            Finding(case=label, channel="T", mechanism="resources", message=m, extra=asdict(k))
            for m in exceeded(k)
        ]
    )
