"""The audit at scale as one resumable command.

    python -m lethe.audit.campaign run --device cuda --out DIR --workers N --dlblas ROWS --cuda-l1 ROWS \\
        --problems KERNELBENCH --later KERNELBENCH_LATER [--shard i/n] [--step NAME ...] [--seconds S]
    python -m lethe.audit.campaign record --device cuda --out DIR
    python -m lethe.audit.campaign summary --out DIR

``run`` does what DIR does not hold yet, step by step; every line is written when its row is done, so that
SIGTERM, a time limit (`--seconds`) or a crash costs the rows in flight and nothing else. Rows are selected in
stratified order: any prefix is a fair sample, and the ``_rest`` steps continue the files of the steps
before them. Steps that judge alike and follow each other share one pool (`together`). ``record`` turns DIR,
with the shards that are there, into ``data/measured/<device>/*.json``, on this machine or on another;
``summary`` prints what is there: rates, throughput, where time goes, the price against KernelBench's check.

How often a kernel that its own harness accepted must break a contract for the claim to stand was fixed
before the first run: `KILL_CRITERION`. So was the floor (`lethe.audit.floor`).
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe.audit import ledger, machine
from lethe.audit.corpora import Corpus, CorpusError, open_corpus
from lethe.audit.lines import LogError
from lethe.audit.pool import JudgeSettings
from lethe.audit.run import Selection
from lethe.provenance import ROOT

KILL_CRITERION = 0.05
"""A rate of violations among accepted kernels below this ends the claim (published and kept)."""
ACCEPTED, REJECTED, PAPER, STACK = 800, 500, 300, 200
"""Rows of the stratified samples: accepted, rejected, in the published profile, in another environment."""
COMPARED = 200
"""Rows of a differential that our implementation of KernelBench's check answers beside their own code: enough
to bound the share of disagreements below 2 % if there is none (95 %)."""
GPU_SET = "h100"
"""The set of CUDA-L1 that was made for the architecture nearest to the device at hand."""


@dataclass(frozen=True)
class Step:
    """One part of the campaign: which rows, judged how, into which file."""

    name: str
    file: str
    """Base name of the file in the campaign's folder."""
    corpus: str
    accepted: bool | None = None
    limit: int | None = None
    profile: str = "derived"
    differential: bool = False
    patience: float = 1.0
    """Factor on the suspect's limits on time: nvcc takes a minute of a core for a small extension."""
    usual: bool = True
    """Whether a plain run does it; other steps have to be named."""


STEPS = (
    Step("dlblas_accepted", "dlblas_accepted", "dlblas", True, ACCEPTED),
    Step("dlblas_rejected", "dlblas_rejected", "dlblas", False, REJECTED),
    Step("house", "house", "house"),
    Step("cuda_l1", "cuda_l1", "cuda_l1", patience=4.0),
    Step("dlblas_differential", "dlblas_differential", "dlblas", True, ACCEPTED, differential=True),
    Step("cuda_l1_differential", "cuda_l1_differential", "cuda_l1", differential=True),
    Step("dlblas_paper", "dlblas_paper", "dlblas", True, PAPER, profile="paper"),
    Step("dlblas_accepted_rest", "dlblas_accepted", "dlblas", True),
    Step("dlblas_differential_rest", "dlblas_differential", "dlblas", True, differential=True),
    Step("dlblas_rejected_rest", "dlblas_rejected", "dlblas", False, usual=False),
    Step("dlblas_stack", "dlblas_stack", "dlblas", True, STACK, usual=False),
)
"""In the order of what the chapter needs most. ``dlblas_stack`` is the same rows again, run by the Python of
another environment (torch, triton) into the same folder."""


@dataclass(frozen=True)
class Plan:
    """Where the corpora are, and how rows are judged."""

    out: Path
    device: str = "cuda"
    workers: int = 2
    shard: int = 1
    shards: int = 1
    quick: bool = False
    limit: int | None = None
    """At most so many rows of each step (a smaller stratified sample)."""
    dlblas: Path | None = None
    cuda_l1: Path | None = None
    problems: Path | None = None
    """KernelBench at 48642c5c: references, and its own check."""
    later: Path | None = None
    """KernelBench at its later revision, for its own check."""
    counterexamples: bool = False
    judge: str = "lethe.audit.extensions:judge"
    """``module:function`` that makes the judge of a worker."""

    def file(self, name: str) -> Path:
        part = "" if self.shards == 1 else f".{self.shard}-of-{self.shards}"
        return self.out / f"{name}{part}.jsonl"

    def open(self, name: str) -> Corpus:
        """A corpus of the campaign. Raises CorpusError where its path is not given."""
        if name == "house":
            return open_corpus("house")
        given = {"path": self.dlblas if name == "dlblas" else self.cuda_l1, "problems": self.problems}
        if name == "cuda_l1":
            given["gpu"] = GPU_SET  # type: ignore[assignment]
        return open_corpus(name, **given)

    def selection(self, step: Step) -> Selection:
        limit = min((n for n in (step.limit, self.limit) if n is not None), default=None)
        return Selection(
            shard=self.shard,
            shards=self.shards,
            limit=limit,
            order="stratified",
            accepted=step.accepted,
        )

    def settings(self, step: Step) -> JudgeSettings:
        folder = str(self.out / "counterexamples") if self.counterexamples else None
        return JudgeSettings(
            device=self.device,
            quick=self.quick,
            profile=step.profile,
            patience=step.patience,
            counterexamples=folder,
            factory=self.judge,
        )


class Stopped(Exception):
    """The campaign was asked to end; the same command resumes."""


def steps_of(plan: Plan, wanted: Sequence[str] = ()) -> list[Step]:
    """The steps to do: those `wanted`, else every usual one whose corpus is given.

    Raises ValueError for a step that does not exist.
    """
    known = {step.name: step for step in STEPS}
    for name in wanted:
        if name not in known:
            raise ValueError(f"unknown step {name!r}; the steps are {', '.join(known)}")
    if wanted:
        return [known[name] for name in wanted]
    at_hand = {
        "house",
        *(["dlblas"] * (plan.dlblas is not None)),
        *(["cuda_l1"] * (plan.cuda_l1 is not None)),
    }
    return [step for step in STEPS if step.usual and step.corpus in at_hand]


def groups(plan: Plan, steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that may share a pool: neighbours that are audits with the same settings."""
    found: list[list[Step]] = []
    for step in steps:
        last = found[-1][-1] if found else None
        alike = last is not None and not (step.differential or last.differential)
        if alike and last is not None and plan.settings(last) == plan.settings(step):
            found[-1].append(step)
        else:
            found.append([step])
    return found


def execute(plan: Plan, wanted: Sequence[str] = ()) -> Iterator[ledger.Share]:
    """Do the steps, yielding what was done of each; `Stopped` where one was cut short (its rows are kept)."""
    for steps in groups(plan, steps_of(plan, wanted)):
        shares = [ledger.Share(step.name) for step in steps]
        with ledger.timed(plan.file("steps"), plan.workers, shares):
            if steps[0].differential:
                _differential(plan, steps[0], shares[0])
            else:
                _audit(plan, steps, shares)
        yield from shares
        if not all(share.complete for share in shares):
            raise Stopped(steps[0].name)


def _audit(plan: Plan, steps: Sequence[Step], shares: Sequence[ledger.Share]) -> None:
    from rich.console import Console

    from lethe.audit import statics, together
    from lethe.audit.progress import shown

    parts = [
        together.Part(share, plan.open(step.corpus), plan.file(step.file), plan.selection(step))
        for step, share in zip(steps, shares, strict=True)
    ]
    progress = shown(Console(stderr=True, highlight=False))
    together.run(parts, plan.settings(steps[0]), plan.workers, progress, statics.decided)


def _differential(plan: Plan, step: Step, share: ledger.Share) -> None:
    """Theirs, and ours on the first rows, where KernelBench's own code can run; ours elsewhere."""
    from lethe.audit import differential, statics

    theirs = plan.device == "cuda" and plan.later is not None
    checkouts = differential.checkouts(plan.problems, plan.later) if theirs else {}
    rows = [r for r in plan.selection(step).of(plan.open(step.corpus)) if statics.decided(r) is None]
    with (
        differential.DifferentialLog(plan.file(step.file)) as log,
        differential.CheckRoom(plan.device, checkouts) as room,
    ):
        before, began = len(log.lines), time.perf_counter()
        parts = ((rows[:COMPARED], "both"), (rows, "theirs")) if theirs else ((rows, "ours"),)
        try:
            for some, implementation in parts:
                jobs = differential.Jobs("both", implementation)
                differential.run(some, log, room, jobs, plan.workers)
            share.complete = True
        except KeyboardInterrupt:
            pass
        share.rows, share.seconds = len(log.lines) - before, time.perf_counter() - began


def stop_on_signals(seconds: float | None) -> None:
    """Let SIGTERM, and the end of `seconds`, end a run as Control-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if seconds is not None:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    work: Callable[[Any], int] = {"run": _run, "record": _record, "summary": _summary}[given.command]
    try:
        return work(given)
    except (Stopped, KeyboardInterrupt):
        print("campaign: interrupted, the same command resumes", file=sys.stderr)
        return 130
    except (CorpusError, LogError, ValueError, RuntimeError, OSError) as e:
        print(f"campaign: {e}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    shard, _, shards = given.shard.partition("/")
    plan = Plan(
        out=given.out,
        device=given.device,
        workers=given.workers,
        shard=int(shard),
        shards=int(shards or 1),
        quick=given.quick,
        limit=given.limit,
        dlblas=given.dlblas,
        cuda_l1=given.cuda_l1,
        problems=given.problems,
        later=given.later,
        counterexamples=given.counterexamples,
    )
    steps_of(plan, given.step)
    stop_on_signals(given.seconds)
    machine.note(plan.out, plan.device)
    for share in execute(plan, given.step):
        print(
            f"{share.step}: {share.rows} rows now{'' if share.complete else ', to be continued'}", flush=True
        )
    return 0


def _record(given: argparse.Namespace) -> int:
    from lethe.audit.campaign_record import record

    for path in record(given.out, given.device, given.measured):
        print(path)
    return 0


def _summary(given: argparse.Namespace) -> int:
    from lethe.audit.campaign_summary import told

    text = told(given.out)
    if not text:
        print(f"campaign: {given.out} holds no audit; give the folder of a run with --out", file=sys.stderr)
        return 2
    print("\n".join(text))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lethe.audit.campaign", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run", help="do what is missing; resumes")
    keep = commands.add_parser("record", help="write what is there to data/measured")
    tell = commands.add_parser("summary", help="print what is there")
    for command in (go, keep, tell):
        command.add_argument("--out", type=Path, default=Path("data/results/campaign"))
    for command in (go, keep):
        command.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    keep.add_argument("--measured", type=Path, default=ROOT / "data" / "measured")
    add = go.add_argument
    add("--dlblas", type=Path, help="rows, from lethe fetch dlblas")
    add("--cuda-l1", type=Path, help="rows, from lethe fetch cuda_l1")
    add("--problems", type=Path, help="KernelBench at 48642c5c, from lethe fetch kernelbench")
    add("--later", type=Path, help="KernelBench at its later revision, from lethe fetch kernelbench-later")
    add("--workers", type=int, default=2)
    add("--shard", default="1/1", metavar="i/n")
    add("--limit", type=int, help="at most so many rows of each step, stratified")
    add("--step", action="append", default=[], help=f"only this step; may be repeated ({_names()})")
    add("--quick", action="store_true", help="fewer draws per gate")
    add("--counterexamples", action="store_true", help="write one for each failing gate")
    add("--seconds", type=float, help="stop after so long; the same command resumes")
    return parser


def _names() -> str:
    return ", ".join(step.name for step in STEPS)


if __name__ == "__main__":
    sys.exit(main())
