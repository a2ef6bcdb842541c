"""Reach a recorded verdict again, from the record alone, and say whether it is the same.

A verdict names what is needed: paths and hashes of both sources, seed, profile,
gates, executor and budget. `replay` checks the hashes, judges again, and compares the
canonical parts byte for byte; times and host are outside of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import Thread
from typing import Any

from lethe.verifier.blame import same_rules
from lethe.verifier.formats import FormatError, read_source
from lethe.verifier.problem import (
    Candidate,
    CandidateError,
    Problem,
    ProblemError,
    load_candidate,
    load_problem,
)
from lethe.verifier.server import SuspectServer
from lethe.verifier.settings import Budget
from lethe.verifier.textfile import writable_folder
from lethe.verifier.verdict import RULES_VERSION, Status, Verdict


class ReplayError(ValueError):
    """The record cannot be replayed; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Replay:
    """How a replay ended."""

    recorded: Verdict
    now: Verdict

    @property
    def same(self) -> bool:
        """True if the canonical parts agree byte for byte."""
        return self.recorded.canonical() == self.now.canonical()

    @property
    def difference(self) -> str:
        """The first difference, e.g. ``gates[EXC-01].cases: recorded 3, now 4``; empty if there is none."""
        return first_difference(json.loads(self.recorded.canonical()), json.loads(self.now.canonical()))

    @property
    def versions(self) -> str:
        """Which software differs between the two, in words; empty if none is known to."""
        then, now = self.recorded.environment, self.now.environment
        changed = [
            f"{k} {then[k]} -> {now[k]}"
            for k in ("torch", "triton", "python", "device")
            if k in then and k in now and then[k] != now[k]
        ]
        return ", ".join(changed)


def _start_early(candidate: str | Path, device: str) -> SuspectServer:
    """A server of suspects that starts in the background, with the executor that the source suggests."""
    server = SuspectServer()
    if device == "cpu" or (device == "auto" and not Path("/dev/nvidiactl").exists()):
        executor = "interpreter" if b"triton" in Path(candidate).read_bytes() else "cpu"
        Thread(target=server.start, args=(executor,), daemon=True).start()
    return server


def judge_files(
    candidate: str | Path,
    reference: str | Path,
    *,
    entry: str = "ModelNew",
    profile: str = "derived",
    device: str = "auto",
    seed: int = 0,
    gates: tuple[str, ...] | None = None,
    quick: bool = False,
    budget: Budget | None = None,
    counterexamples: Path | None = None,
) -> Verdict:
    """Judge one file against another; a source that cannot be used is a verdict too.

    The paths are recorded as they were given. Raises FileNotFoundError for a file that is
    not there, and ValueError for an unknown profile, gate or device, or a folder that cannot be written.
    """
    for path in (candidate, reference):
        if Path(path).is_dir():
            raise FileNotFoundError(f"{path} is a folder; name a Python file in it")
        if not Path(path).is_file():
            raise FileNotFoundError(f"no file {path}")
    writable_folder(counterexamples)
    server = _start_early(candidate, device)  # before torch is imported here, which takes as long
    from lethe.verifier.judge import Judge
    from lethe.verifier.settings import choose_executor

    options = {"candidate_path": str(candidate), "reference_path": str(reference), "entry": entry}
    blank = Verdict(
        problem=Path(reference).stem,
        candidate=Path(candidate).stem,
        profile=profile,
        status=Status.HARNESS_FAILED,
        message="",
        problem_sha256=text_sha256(reference),
        candidate_sha256=text_sha256(candidate),
        options={
            **options,
            "profile": profile,
            "seed": seed,
            "gates": list(gates) if gates else None,
            "quick": quick,
        },
    )
    choose_executor(device, "python")
    with Judge(
        server=server,
        profile=profile,
        device=device,
        seed=seed,
        gates=gates,
        quick=quick,
        budget=budget,
        counterexamples=counterexamples,
    ) as judge:
        try:
            problem: Problem = load_problem(Path(reference))
        except ProblemError as e:
            return replace(blank, status=Status.REFERENCE_FAILED, message=str(e))
        try:
            suspect: Candidate = load_candidate(Path(candidate), entry)
        except CandidateError as e:
            return replace(blank, status=Status.MALFORMED_CANDIDATE, message=str(e))
        verdict = judge.verify(problem, suspect)
    return replace(verdict, options={**verdict.options, **options})


def text_sha256(path: str | Path) -> str:
    """Hash of a source as the verifier reads it (LF line ends); of its bytes where it is no text."""
    try:
        return hashlib.sha256(read_source(Path(path))[0].encode()).hexdigest()
    except FormatError:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def read_verdict(path: str | Path) -> Verdict:
    """A verdict from its JSON file. Raises ReplayError where it is none of this version's."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise ReplayError(f"cannot read {path}: {e.strerror}") from None
    except ValueError:
        raise ReplayError(f"{path} is not JSON") from None
    try:
        return Verdict.from_dict(record)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        detail = str(e) if isinstance(e, ValueError) else "it is not a verdict of lethe verify --json"
        raise ReplayError(f"{path} cannot be replayed: {detail}") from None


def replay(
    verdict_file: str | Path,
    *,
    candidate: str | Path | None = None,
    reference: str | Path | None = None,
    counterexamples: Path | None = None,
) -> Replay:
    """Judge again what a verdict file records.

    Args:
        verdict_file: JSON written by ``lethe verify --json`` or ``Verdict.to_json``.
        candidate, reference: where the sources are now, if not at the recorded paths
            (those lead from the working directory, or from the verdict's folder or one above it).
        counterexamples: folder for the scripts of the new verdict's failures.

    Raises:
        ReplayError: no verdict, other rules, a source that is missing or has changed, or
            an executor that this machine does not have.
    """
    recorded = read_verdict(verdict_file)
    if not same_rules(recorded.rules):
        raise ReplayError(
            f"{verdict_file} was reached by rules {recorded.rules}, this lethe has {RULES_VERSION}; "
            "install the version that recorded it"
        )
    options = recorded.options
    if not isinstance(options, dict):
        raise ReplayError(f"{verdict_file} does not say how it was judged: its options are no object")
    beside = Path(verdict_file).resolve().parent
    sources = {
        role: _find(role, given, options.get(f"{role}_path"), beside, digest)
        for role, given, digest in (
            ("candidate", candidate, recorded.candidate_sha256),
            ("reference", reference, recorded.problem_sha256),
        )
    }
    try:
        now = judge_files(
            sources["candidate"],
            sources["reference"],
            entry=options.get("entry", "ModelNew"),
            profile=recorded.profile,
            device="cuda" if recorded.executor == "cuda" else "cpu",
            seed=int(options.get("seed", 0)),
            gates=tuple(options["gates"]) if options.get("gates") else None,
            quick=bool(options.get("quick", False)),
            budget=_budget(options.get("budget")),
            counterexamples=counterexamples,
        )
    except ReplayError:
        raise
    except (ValueError, TypeError) as e:
        raise ReplayError(f"{verdict_file} cannot be replayed: {e}") from e
    return Replay(recorded, _named_as(recorded, now))


def _named_as(recorded: Verdict, now: Verdict) -> Verdict:
    """Names and paths are labels: a moved file keeps those of the record."""
    paths: dict[str, Any] = {
        k: recorded.options[k] for k in ("candidate_path", "reference_path") if k in recorded.options
    }
    return replace(
        now,
        problem=recorded.problem,
        candidate=recorded.candidate,
        options={**now.options, **paths},
    )


def _find(role: str, given: str | Path | None, recorded: str | None, beside: Path, digest: str) -> Path:
    """The first place that holds the recorded bytes; a file with other bytes is passed over."""
    if given is None and not recorded:
        raise ReplayError(f"the verdict records no {role} path; give it with --{role}")
    places = [Path(given)] if given is not None else list(_places(Path(str(recorded)), beside))
    changed = ""
    for place in places:
        if place.is_file():
            found = text_sha256(place)
            if found == digest:
                return place
            changed = changed or (
                f"the {role} {place} has changed since the verdict was recorded "
                f"(sha256 {digest[:12]} then, {found[:12]} now); give the recorded file with --{role}"
            )
    if changed:
        raise ReplayError(changed)
    if given is not None:
        raise ReplayError(f"there is no file {given} to take as the {role}")
    raise ReplayError(
        f"the {role} is neither at {places[0]} nor at that path from the verdict's folder {beside} or one "
        f"above it; give it with --{role}"
    )


def _places(recorded: Path, beside: Path) -> Iterator[Path]:
    """Where a recorded path may lead: as it is, from the folder of the verdict and from each above it (it was
    relative to the folder that lethe ran in), and last the file's name beside the verdict."""
    yield recorded
    if not recorded.is_absolute():
        for folder in (beside, *beside.parents):
            yield folder / recorded
    yield beside / recorded.name


def _budget(recorded: dict[str, Any] | None) -> Budget | None:
    if recorded is None:
        return None
    known = {f.name for f in fields(Budget)}
    if set(recorded) != known:
        raise ReplayError("the verdict records another set of limits than this lethe has")
    return Budget(**recorded)


def first_difference(a: Any, b: Any, path: str = "") -> str:
    """Where two JSON values first differ, in words; empty if they are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            where = f"{path}.{key}" if path else key
            if key not in a or key not in b:
                return f"{where}: {'only now' if key not in a else 'only in the record'}"
            found = first_difference(a[key], b[key], where)
            if found:
                return found
        return ""
    if isinstance(a, list) and isinstance(b, list):
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            label = x.get("gate", i) if isinstance(x, dict) else i
            found = first_difference(x, y, f"{path}[{label}]")
            if found:
                return found
        return "" if len(a) == len(b) else f"{path}: recorded {len(a)} entries, now {len(b)}"
    return "" if a == b and type(a) is type(b) else f"{path}: recorded {_short(a)}, now {_short(b)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
