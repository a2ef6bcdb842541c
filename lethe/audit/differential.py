"""The differential: KernelBench's check, theirs and ours, on the rows that the verifier judges.

    python -m lethe.audit.differential --corpus dlblas --path ROWS --problems KERNELBENCH \\
        --original KERNELBENCH --later KERNELBENCH_LATER --implementation both --out FILE

Writes one JSON line for each (row, variant, implementation), append-only; the same command resumes. The
file is joined with the audit's by `agreement`. ``theirs`` runs KernelBench's unmodified function from the
checkouts given and needs CUDA, as it asserts itself; ``ours`` (`kernelbench_check`) runs anywhere. Without
CUDA, ``--pretend`` lets theirs meet Triton's interpreter, whose tensors pass for CUDA tensors: that
compares the two implementations on small problems, and says nothing about a device.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from lethe.audit import kernelbench_original
from lethe.audit.checkroom import CheckRoom, Job, variants
from lethe.audit.corpora import CorpusError, Row, open_corpus
from lethe.audit.kernelbench_check import VARIANTS, Outcome
from lethe.audit.lines import LogError
from lethe.audit.run import ORDERS, Selection
from lethe.verifier.verdict import Status

SCHEMA = "lethe.differential/1"
IMPLEMENTATIONS = ("theirs", "ours")
AGAIN = {str(Status.OUT_OF_MEMORY), "locked"}
"""Outcomes that other checks beside it may have caused: such a check is run again alone at the end."""

Key = tuple[str, str, str, str, str]
"""Corpus, row id, variant, implementation, precision."""


def make(job: Job, outcome: Outcome, placeholders: Sequence[str], device: str) -> dict[str, Any]:
    """The line of one check."""
    row = job.row
    return {
        "schema": SCHEMA,
        "id": row.id,
        "corpus": row.corpus,
        "problem": row.problem.name,
        "family": row.family,
        "accepted": row.accepted,
        "variant": job.variant,
        "revision": VARIANTS[job.variant].revision,
        "implementation": job.implementation,
        "precision": job.precision,
        "device": device,
        "candidate_sha256": row.candidate.sha256,
        "problem_sha256": row.problem.sha256,
        "source_registered": row.candidate.language == "triton"
        and not VARIANTS[job.variant].triton_from_file,
        "placeholders": list(placeholders),
        "outcome": outcome.to_dict(),
    }


def read(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a differential file; a torn last line is ignored. Raises LogError for another kind."""
    try:
        data = Path(path).read_bytes()
    except OSError as e:
        raise LogError(f"cannot read {path}: {e.strerror}") from None
    for number, text in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or line.get("schema") != SCHEMA:
            raise LogError(f"line {number} of {path} is not of schema {SCHEMA}")
        yield line


def key_of(line: dict[str, Any]) -> Key:
    return line["corpus"], line["id"], line["variant"], line["implementation"], line["precision"]


class DifferentialLog:
    """The file opened for appending; one process may hold it. A context manager."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 (closed by close)
        self._lock = threading.Lock()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.lines = {key_of(line): line for line in read(self.path)}
        except OSError:
            self._file.close()
            raise LogError(f"another run is writing {self.path}; choose another --out") from None
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(self._file.seek(0) or self._whole())

    def _whole(self) -> int:
        return self._file.read().rfind(b"\n") + 1

    def append(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._file.write((json.dumps(line, sort_keys=True, allow_nan=False) + "\n").encode())
            os.fsync(self._file.fileno())
            self.lines[key_of(line)] = line

    def holds(self, job: Job) -> bool:
        """Whether an answer about the same texts is there; what memory or a lock stopped is none."""
        row = job.row
        line = self.lines.get((row.corpus, row.id, job.variant, job.implementation, job.precision))
        return (
            line is not None
            and line["outcome"]["status"] not in AGAIN
            and line["candidate_sha256"] == row.candidate.sha256
            and line["problem_sha256"] == row.problem.sha256
        )

    def __enter__(self) -> DifferentialLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def run(rows: Iterable[Row], log: DifferentialLog, room: CheckRoom, jobs: Jobs, workers: int = 1) -> int:
    """Check all rows that the log does not hold; returns how many checks were made.

    A row's checks run one after the other in one thread, so that they share what they compile.
    What memory or a lock stopped is run again alone at the end; the last line counts.
    """
    again: list[list[Job]] = []
    made = 0
    pending = [todo for row in rows if (todo := [j for j in jobs.of(row) if not log.holds(j)])]

    def checked(todo: list[Job]) -> tuple[int, list[Job]]:
        stopped = []
        try:
            for job in todo:
                outcome, placeholders = room.run(job)
                log.append(make(job, outcome, placeholders, room.device))
                if outcome.status in AGAIN:
                    stopped.append(job)
        finally:
            room.forget(todo[0].row)
        return len(todo), stopped

    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        waiting: set[Future[tuple[int, list[Job]]]] = set()
        queue = iter(pending)
        try:
            while True:
                for todo in queue:
                    waiting.add(pool.submit(checked, todo))
                    if len(waiting) >= workers:
                        break
                if not waiting:
                    break
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    count, stopped = future.result()
                    made += count
                    if stopped:
                        again.append(stopped)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for todo in again if workers > 1 else []:
        made += checked(todo)[0]
    return made


class Jobs:
    """Which checks to make of each row."""

    def __init__(self, variant: str, implementation: str, precision: str = "float32") -> None:
        self.variants = variants(variant)
        if implementation not in (*IMPLEMENTATIONS, "both"):
            raise ValueError(f"no implementation {implementation!r}; use theirs, ours or both")
        self.implementations = IMPLEMENTATIONS if implementation == "both" else (implementation,)
        self.precision = precision

    def of(self, row: Row) -> list[Job]:
        return [Job(row, v, i, self.precision) for v in self.variants for i in self.implementations]


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    try:
        return _main(given)
    except (CorpusError, LogError, ValueError, OSError) as e:
        print(f"differential: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("differential: interrupted, the same command resumes", file=sys.stderr)
        return 130


def _main(given: argparse.Namespace) -> int:
    jobs = Jobs(given.variant, given.implementation, given.precision)
    checkouts: dict[str, Path] = {}
    if "theirs" in jobs.implementations:
        if not given.pretend:
            _need_cuda(given.device)
        paths = {"48642c5c": given.original or given.problems, "later": given.later}
        for name in jobs.variants:
            if paths[name] is None:
                option = "--later" if name == "later" else "--original"
                raise CorpusError(f"variant {name} of theirs needs {option} PATH, a checkout of KernelBench")
            checkouts[name] = kernelbench_original.find(paths[name], VARIANTS[name])
    settings = {"path": given.path, "problems": given.problems, "gpu": given.gpu}
    corpus = open_corpus(given.corpus, **{k: v for k, v in settings.items() if v is not None})
    shard, _, shards = given.shard.partition("/")
    selection = Selection(
        shard=int(shard),
        shards=int(shards or 1),
        limit=given.limit,
        order=given.order,
        rows=tuple(given.row),
        accepted=given.accepted,
    )
    rows = selection.of(corpus)
    for path in checkouts.values():
        _visible(path)
    with DifferentialLog(given.out) as log, CheckRoom(given.device, checkouts, given.seconds) as room:
        made = run(rows, log, room, jobs, given.workers)
    print(f"{given.out}: {len(rows)} rows, {made} checks made now")
    return 0


def _visible(path: Path) -> None:
    """Let the sandbox keep a checkout readable: it keeps what Python's path names."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), str(path)])


def _need_cuda(device: str) -> None:
    available = False
    if device != "cpu":
        with suppress(ImportError):
            import torch

            available = torch.cuda.is_available()
    if not available:
        raise ValueError(
            "KernelBench's own check runs on CUDA only and no device is visible; "
            "use --implementation ours, or --pretend to compare both in Triton's interpreter"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lethe.audit.differential", description=__doc__)
    add = parser.add_argument
    add("--corpus", required=True, help="a corpus that lethe audit knows")
    add("--path", type=Path, help="where the corpus is")
    add("--problems", type=Path, help="its references, a KernelBench checkout at 48642c5c")
    add("--gpu", help="one set of cuda_l1, e.g. h100")
    add("--original", type=Path, help="checkout at 48642c5c for theirs (default: --problems)")
    add("--later", type=Path, help=f"checkout at {VARIANTS['later'].revision[:8]} for theirs")
    add("--variant", default="both", choices=[*VARIANTS, "both"])
    add("--implementation", default="ours", choices=[*IMPLEMENTATIONS, "both"])
    add("--precision", default="float32", choices=["float32", "float16", "bfloat16"])
    add("--device", default="auto", choices=["auto", "cpu", "cuda"])
    add("--pretend", action="store_true", help="theirs without CUDA, in Triton's interpreter")
    add("--out", type=Path, required=True, help="the JSON-lines file")
    add("--workers", type=int, default=1, help="checks at a time")
    add("--seconds", type=float, default=300.0, help="wall time of one check")
    add("--shard", default="1/1", metavar="i/n")
    add("--order", default="corpus", choices=ORDERS)
    add("--limit", type=int)
    add("--row", action="append", default=[], metavar="ID", help="only this row; may be repeated")
    add("--accepted", dest="accepted", action="store_true", default=None)
    add("--rejected", dest="accepted", action="store_false")
    return parser


if __name__ == "__main__":
    sys.exit(main())
