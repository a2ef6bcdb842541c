"""A self-contained script for a finding: anybody with torch can run it without this package."""

from __future__ import annotations

import base64
import json
import zlib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.verifier import sites
from lethe.verifier.docket import Case
from lethe.verifier.textfile import write_atomically
from lethe.verifier.verdict import Finding, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.trial import Trial

LARGEST_INPUT = 4 << 20
"""Bytes of inputs that a counterexample embeds; larger cases are passed over for a smaller one."""

NOT_A_SCRIPT = frozenset({"resources", "out_of_bounds_write", "stream", "graph"})
"""Mechanisms that a plain script cannot show: they need guard zones, a compiler or a second stream."""


def write_counterexample(verdict: Verdict, trial: Trial, folder: Path) -> Path | None:
    """Write ``<folder>/<candidate>-<digest>/counterexample.py`` for the smallest failing case.

    The script embeds the candidate's and the reference's source, so it belongs on the disk of
    whoever ran the audit and is never committed. Returns None if no finding can be shown by a
    script (the reference is a callable, inputs too large, or the mechanism needs this package).
    """
    if trial.docket.problem.spec is not None or not trial.docket.problem.source:
        return None
    shown = [
        (gate.gate, f, trial.cases[f.case])
        for gate in verdict.gates
        for f in gate.findings
        if gate.gate in verdict.failed and f.mechanism not in NOT_A_SCRIPT and f.case in trial.cases
    ]
    shown = [s for s in shown if _nbytes(s[2].inputs) <= LARGEST_INPUT and not s[2].varied]
    if not shown:
        return None
    gate, finding, case = min(shown, key=lambda s: _nbytes(s[2].inputs))
    record = _record(gate, finding, case, trial)
    body = resources.files("lethe.verifier").joinpath("counterexample_body.py").read_text()
    title = f"Counterexample: {verdict.candidate} breaks {gate} of {verdict.problem}."
    text = body.replace("@TITLE@", title, 1).replace("@CASE@", json.dumps(record).replace("\\", "\\\\"), 1)
    text = text.replace('json.loads(r"""', 'json.loads("""', 1)
    path = folder / f"{_slug(verdict.candidate)}-{verdict.candidate_sha256[:8]}" / "counterexample.py"
    write_atomically(path, text)
    return path


def _record(gate: str, finding: Finding, case: Case, trial: Trial) -> dict[str, Any]:
    candidate, docket = trial.candidate, trial.docket
    own = sites.hard_coded_sizes(candidate.source, case.sizes, docket.written) if case.sizes else {}
    gradient = finding.output.removeprefix("grad:") if finding.output.startswith("grad:") else ""
    names = docket.truth(case).names
    return {
        "gate": gate,
        "mechanism": finding.mechanism,
        "reason": finding.message,
        "reference": sites.substitute(docket.problem.source, case.sizes)
        if case.sizes
        else docket.problem.source,
        "candidate": sites.substitute(candidate.source, own) if own else candidate.source,
        "entry": candidate.entry,
        "kind": candidate.kind,
        "language": candidate.language,
        "seed": docket.instance(case.sizes).seed,
        "inputs": [_encode(v) for v in case.inputs],
        "output": names.index(finding.output) if finding.output in names else 0,
        "where": list(finding.where),
        "bound": finding.bound,
        "gradient": gradient,
        "upstream": [_encode(u) for u in trial.upstreams.get(case.id, [])] if gradient else [],
    }


def _encode(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return {"tensor": _tensor(value)}
    if isinstance(value, tuple):
        return {"tuple": [_encode(v) for v in value]}
    if isinstance(value, list):
        return [_encode(v) for v in value]
    if isinstance(value, dict):
        return {"dict": {k: _encode(v) for k, v in value.items()}}
    return value


def _tensor(t: Tensor) -> dict[str, Any]:
    import torch

    flat = t.detach().cpu().contiguous().reshape(-1)
    raw = bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
    return {
        "shape": list(t.shape),
        "dtype": str(t.dtype).removeprefix("torch."),
        "stride": None if t.is_contiguous() else list(t.stride()),
        "data": base64.b64encode(zlib.compress(raw, 6)).decode(),
    }


def _nbytes(value: Any) -> int:
    from lethe.verifier.structure import flatten

    return sum(t.numel() * t.element_size() for t in flatten(value)[0])


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:80] or "candidate"
