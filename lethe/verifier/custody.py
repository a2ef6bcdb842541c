"""The judge's handle on a suspect: requests in, checked answers or a `SuspectError` out."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

from lethe.verifier import channel, layout, sandbox, structure
from lethe.verifier.answers import Built, OutputMeta, RunReport, parse_built, parse_reports
from lethe.verifier.channel import Arena, GarbageError, GoneError, LateError
from lethe.verifier.ends import MAY_REPORT, Exit, SuspectError, clean, remove
from lethe.verifier.limits import crowding
from lethe.verifier.sandbox import Isolation, Limits
from lethe.verifier.verdict import Status

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.problem import Candidate
    from lethe.verifier.server import ServerProcess

__all__ = ["Built", "Isolation", "Limits", "OutputMeta", "RunReport", "Suspect", "SuspectError"]

STATUS_GRACE_SECONDS = 0.2
"""After an end of file the true exit status is waited for so long."""
CLOSE_SECONDS = 5.0
"""A killed process group has been seen to take 50 ms to go."""
MIN_ARENA = 1 << 20
MAX_ARENAS = 64
"""A suspect asks for a further arena when its results outgrow the last; each is twice as large."""
MAX_MESSAGE = 600
TAIL_BYTES = 6000
CHATTER_BYTES = 1 << 20
"""What a candidate prints is kept up to here: only the end of it is ever read, and files are limited."""


@dataclass
class Suspect:
    """One candidate in its own process. Every method raises SuspectError and nothing else on its account."""

    candidate: Candidate
    limits: Limits
    scratch: Path
    isolation: Isolation = field(default_factory=dict)
    """What the host allowed: mechanism -> True, or a sentence beginning with "refused" or "off"."""
    _socket: socket.socket = field(repr=False, kw_only=True)
    _lifeline: int = field(repr=False, kw_only=True)
    _status: int = field(repr=False, kw_only=True)
    _streams: tuple[int, ...] = field(repr=False, kw_only=True)
    """What the candidate writes to stdout and stderr, held open: it may do what it likes with their names."""
    _asked: Arena | None = field(default=None, repr=False)
    _answers: list[Arena] = field(default_factory=list, repr=False)
    _ended: str = ""
    _exit: Exit | None = None

    # ------------------------------------------------------------ life

    @classmethod
    def open(
        cls,
        process: ServerProcess,
        candidate: Candidate,
        executor: str,
        limits: Limits,
        cache_dir: str | os.PathLike[str] | None,
        hidden: tuple[str, ...],
    ) -> Suspect:
        """Have `process` fork a suspect. Raises OSError or ServerLostError."""
        from lethe.verifier.server import order_for, scratch_base

        scratch = Path(tempfile.mkdtemp(prefix="lethe-suspect-", dir=scratch_base()))
        cache = Path(cache_dir) if cache_dir is not None else scratch / "builds"
        ours, theirs = socket.socketpair()
        lifeline, held = os.pipe2(os.O_CLOEXEC)
        status, told = os.pipe2(os.O_CLOEXEC)
        passed = [theirs.fileno(), lifeline, told]
        streams: list[int] = []
        try:
            cache.mkdir(parents=True, exist_ok=True)
            for path in (scratch, cache):
                sandbox.give(path)
            for name in ("stdout.txt", "stderr.txt"):
                passed.append(
                    os.open(scratch / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                )
                streams.append(os.dup(passed[-1]))
            rooms = sandbox.Rooms(str(scratch.resolve()), str(cache.resolve()), hidden)
            process.fork(order_for(executor, limits, rooms), passed)
        except BaseException:
            ours.close()
            for fd in (held, status, *streams):
                os.close(fd)
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        finally:
            theirs.close()
            for fd in passed[1:]:
                os.close(fd)
        ours.setblocking(False)
        return cls(
            candidate, limits, scratch, _socket=ours, _lifeline=held, _status=status, _streams=tuple(streams)
        )

    def greet(self, seconds: float) -> None:
        """Wait until the process stands in its sandbox; fills `isolation`."""
        try:
            hello = channel.receive_frame(self._socket, 0, time.monotonic() + seconds, self._status)
            self.isolation = {str(k): v if v is True else str(v) for k, v in hello["isolation"].items()}
        except (GarbageError, GoneError, LateError, KeyError, AttributeError) as e:
            tail = self.tail() or "no message"
            self.close()
            raise SuspectError(
                Status.HARNESS_FAILED, f"the sandbox did not start ({e!r}): {tail}", "spawn"
            ) from e

    def close(self) -> str:
        """End the process and all that it started; returns how it ended, e.g. ``"exit 3"``, ``"killed"``."""
        if not self._ended:
            self._read_exit(0.0)
            with contextlib.suppress(OSError):
                os.write(self._lifeline, b"k")
            os.close(self._lifeline)
            self._socket.close()
            self._await_sweep()
            for fd in (self._status, *self._streams):
                os.close(fd)
            self._streams = ()
            for arena in (self._asked, *self._answers):
                if arena is not None:
                    arena.close()
            self._answers.clear()
            remove(self.scratch)
            self._ended = str(self._exit) if self._exit else "killed"
        return self._ended

    def __enter__(self) -> Suspect:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            with contextlib.suppress(Exception):
                self.close()

    def tail(self, stream: str = "stderr") -> str:
        """The last lines that the candidate wrote to ``stdout`` or ``stderr``; nothing once it has ended."""
        if not self._streams:
            return ""
        return clean(_end_of(self._streams[stream == "stderr"]).decode("utf-8", "replace"), TAIL_BYTES)

    def _shorten(self) -> None:
        """Forget what was printed but for its end, so that a talkative candidate does not meet its limit on
        files after so many calls."""
        for fd in self._streams:
            if os.fstat(fd).st_size > CHATTER_BYTES:
                end = _end_of(fd)
                os.ftruncate(fd, 0)
                os.write(fd, end)

    # ------------------------------------------------------------ requests

    def load(self) -> dict[str, Any]:
        """Execute the candidate's source. Returns ``{"entry", "classes", "functions", "elapsed"}``."""
        answer = self._ask(
            "load",
            {
                "source": self.candidate.source,
                "name": self.candidate.name,
                "entry": self.candidate.entry,
                "kind": self.candidate.kind,
            },
        )
        return {k: answer.get(k) for k in ("entry", "classes", "functions", "elapsed")}

    def build(
        self,
        init: Any,
        seed: int,
        *,
        dtype: str = "float32",
        sizes: dict[str, int] | None = None,
        state: dict[str, Tensor] | None = None,
        train: bool = False,
    ) -> Built:
        """Construct the candidate right after ``torch.manual_seed(seed)``.

        `init` is a list of arguments or a dict of keywords. `sizes` are replaced in the candidate's
        own source first (site names of `sites.find_sites`). `state` is copied into parameters and
        buffers of the same name and exact shape. Floating parameters are cast to `dtype`.
        """
        given, skeleton = structure.flatten(init)
        names = list(state or {})
        tensors = given + [state[n] for n in names] if state else given
        answer = self._ask(
            "build",
            {
                "init": skeleton,
                "given": len(given),
                "seed": seed,
                "dtype": dtype,
                "sizes": dict(sizes or {}),
                "state": names,
                "train": train,
            },
            tensors,
        )
        return self._decode("build", lambda: parse_built(answer, self._answers))

    def update(self, state: dict[str, Tensor]) -> None:
        """Write `state` into the constructed candidate's own tensors of the same name and shape."""
        self._ask("update", {"state": list(state)}, list(state.values()))

    def run(
        self,
        inputs: Any,
        *,
        times: int = 1,
        upstream: list[Tensor | None] | None = None,
        need_inputs_after: bool = False,
        hold: str | None = None,
        guard: bool = True,
        between: int = 0,
        mode: str | None = None,
        then: Any = None,
        taint: bool = False,
        configuration: int | None = None,
    ) -> list[RunReport]:
        """Call the candidate `times` times on `inputs` (a list of arguments, or a dict of keywords).

        Each tensor is rebuilt for each call, with its own stride pattern and `layout.lead`, inside a poisoned
        guard zone. With `upstream` (one gradient or None per output tensor) gradients are returned too.
        `hold` keeps the first call's outputs alive under that name for `read`. `between` puts so
        many unrelated allocations between calls. On CUDA `mode` may be ``"stream"`` (a second
        stream) or ``"graph"`` (replay of a captured graph).

        `then` is a second set of inputs of the same shapes: after the first call it is written into the
        very same tensors and the candidate is called again, which gives one report more. With `taint`
        interpreted kernels store NaN (flipped integers) instead of what they computed. `configuration` is
        the one that autotuners take (`autotune.CONFIG_VARIABLE`).
        """
        tensors, skeleton = structure.flatten(inputs)
        gradients = [g for g in upstream or [] if g is not None]
        later, _ = structure.flatten(then) if then is not None else ([], None)
        answer = self._ask(
            "run",
            {
                "inputs": skeleton,
                "given": len(tensors),
                "leads": [layout.lead(t) for t in tensors],
                "times": times,
                "upstream": None if upstream is None else [g is not None for g in upstream],
                "need_inputs_after": need_inputs_after,
                "hold": hold,
                "guard": guard,
                "between": between,
                "mode": mode,
                "then": len(later),
                "taint": taint,
                "configuration": configuration,
            },
            tensors + later + gradients,
        )
        count = times + (then is not None)
        return self._decode("run", lambda: parse_reports(answer, self._answers, count))

    def read(self, name: str) -> Any:
        """Present values of the outputs held under `name`."""
        answer = self._ask("read", {"name": name})

        def decode() -> Any:
            tensors = channel.decode_tensors(channel.parse_metas(answer.get("tensors")), self._answers)
            return structure.unflatten(tensors, answer.get("outputs"))

        return self._decode("read", decode)

    def resources(
        self, target: str, *, seconds: float | None = None, traced: bool = False
    ) -> list[dict[str, Any]]:
        """Needs of the kernels launched so far, compiled for `target` (`executors.resources`).

        `seconds` is the wall limit of this request; compiling may take longer than a call. With `traced`
        the latest call is made again, and the needs are those of the kernels that it launches on the device
        from libraries of the candidate's own (`executors.libraries`), whatever `target` says.
        """
        answer = self._ask("resources", {"target": target, "traced": traced}, seconds=seconds)
        found = answer.get("resources")
        if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
            raise self._garbage("resources", "resources that are no list of objects")
        return found

    # ------------------------------------------------------------ talking

    def _ask(
        self,
        stage: str,
        request: dict[str, Any],
        tensors: list[Tensor] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        if self._ended:
            raise SuspectError(Status.CRASHED, f"the suspect has ended already ({self._ended})", stage)
        limit = self.limits.wall_seconds if seconds is None else seconds
        deadline = time.monotonic() + limit * crowding()
        nonce = randbits(64)
        try:
            if channel.pending(self._socket):
                raise GarbageError("bytes that nobody asked for")
            self._shorten()
            fds = self._place(tensors or [], request)
            channel.send_frame(self._socket, nonce, {"op": stage, **request}, deadline, fds)
            while True:
                answer = channel.receive_frame(self._socket, nonce, deadline, self._status)
                if "grow" not in answer:
                    break
                fds = (self._grow(answer["grow"], stage).fd,)
                channel.send_frame(self._socket, nonce, {"size": self._answers[-1].size}, deadline, fds)
        except GarbageError as e:
            raise self._garbage(stage, str(e)) from None
        except GoneError:
            raise self._death(stage) from None
        except LateError:
            self.close()
            message = f"no answer to {stage} within {limit:g} s"
            raise SuspectError(Status.TIMED_OUT, message, stage) from None
        except (ValueError, OSError, MemoryError) as e:
            self.close()
            raise SuspectError(Status.HARNESS_FAILED, f"{stage} could not be asked: {e}", stage) from e
        if answer.get("ok") is True:
            return answer
        raise self._refusal(stage, answer)

    def _place(self, tensors: list[Tensor], request: dict[str, Any]) -> tuple[int, ...]:
        """Write `tensors` to the request's arena; returns the descriptors that the suspect has not seen."""
        size = channel.packed_size(tensors)
        fds: list[int] = []
        if self._asked is None or self._asked.size < size:
            if self._asked is not None:
                self._asked.close()
            self._asked = Arena.create(max(size, MIN_ARENA), suspect_writes=False)
            fds.append(self._asked.fd)
        if len(self._answers) > 1:
            for arena in self._answers[:-1]:
                arena.close()
            del self._answers[:-1]
        metas = channel.write_tensors(tensors, self._asked)
        request["tensors"] = [m.to_json() for m in metas]
        request["asked"] = self._asked.size if fds else 0
        return tuple(fds)

    def _grow(self, wanted: Any, stage: str) -> Arena:
        held = sum(a.size for a in self._answers)
        if (
            type(wanted) is not int
            or not 0 < wanted <= channel.MAX_EXTENT
            or len(self._answers) >= MAX_ARENAS
        ):
            raise GarbageError("an impossible request for memory")
        if held + wanted > self.limits.memory_bytes:
            self.close()
            message = f"the results take more than the {self.limits.memory_bytes} bytes allowed"
            raise SuspectError(Status.OUT_OF_MEMORY, message, stage)
        room = min(max(wanted, 2 * held, MIN_ARENA), max(wanted, self.limits.memory_bytes - held))
        self._answers.append(Arena.create(room, suspect_writes=True))
        return self._answers[-1]

    def _decode(self, stage: str, parse: Any) -> Any:
        try:
            return parse()
        except MemoryError as e:
            self.close()
            raise SuspectError(Status.HARNESS_FAILED, "the judge has no memory for the results", stage) from e
        except Exception as e:
            raise self._garbage(stage, str(e)) from e

    # ------------------------------------------------------------ ends

    def _garbage(self, stage: str, what: str) -> SuspectError:
        self.close()
        return SuspectError(Status.GARBAGE, f"the suspect sent {clean(what, 200)}", stage)

    def _refusal(self, stage: str, answer: dict[str, Any]) -> SuspectError:
        status, message = answer.get("status"), answer.get("message")
        if not isinstance(status, str) or status not in MAY_REPORT or not isinstance(message, str):
            return self._garbage(stage, "an answer that is neither a result nor a known refusal")
        lost = answer.get("lost") is True
        if lost:  # it ends itself: what is asked next must not find it dying
            self.close()
        return SuspectError(Status(status), clean(message, MAX_MESSAGE), stage, alive=not lost)

    def _death(self, stage: str) -> SuspectError:
        self._read_exit(STATUS_GRACE_SECONDS)
        tail = self.tail().strip().splitlines()
        said = [line.strip() for line in tail if line.strip().startswith("what():")]  # before a trace of C++
        last = f"; last words: {[*tail, *said][-1]}" if tail else ""
        exit_ = self._exit
        self.close()
        if exit_ is None:
            return SuspectError(Status.CRASHED, f"the connection closed during {stage}{last}", stage)
        if exit_.signum == signal.SIGXCPU or (
            exit_.signum == signal.SIGKILL and exit_.seconds >= self.limits.cpu_seconds
        ):
            message = f"used more than {self.limits.cpu_seconds} s of processor time during {stage}"
            return SuspectError(Status.TIMED_OUT, message, stage)
        if exit_.signum == signal.SIGABRT and "bad_alloc" in last:
            return SuspectError(Status.OUT_OF_MEMORY, f"memory ran out during {stage}{last}", stage)
        return SuspectError(Status.CRASHED, f"the process ended with {exit_} during {stage}{last}", stage)

    def _read_exit(self, seconds: float) -> None:
        if self._exit is not None or not select.select([self._status], [], [], seconds)[0]:
            return
        body = os.read(self._status, 4096)
        if body:
            code, used = json.loads(body)
            self._exit = Exit(code, used)

    def _await_sweep(self) -> None:
        """The init holds the status pipe until everything below it is dead."""
        deadline = time.monotonic() + CLOSE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._status], [], [], left)[0] and not os.read(self._status, 4096):
                return


def _end_of(fd: int) -> bytes:
    """The last `TAIL_BYTES` of a file."""
    return os.pread(fd, TAIL_BYTES, max(0, os.fstat(fd).st_size - TAIL_BYTES))
