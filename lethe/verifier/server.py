"""The fork server: a process with torch and triton loaded, from which each suspect is forked.

`SuspectServer` is the judge's handle. It starts one server process per way of running
Triton (interpreted or compiled: ``triton`` decides when it is imported), on first use,
and starts it again if it was killed. ``python -m lethe.verifier.server`` is the process
itself: it stays single-threaded, never touches CUDA, holds no judge's memory and only forks.
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.verifier import linux, sandbox
from lethe.verifier.sandbox import Limits
from lethe.verifier.verdict import Status
from lethe.verifier.warden import guard

if TYPE_CHECKING:
    from lethe.verifier.custody import Suspect
    from lethe.verifier.problem import Candidate

START_SECONDS = 120.0
"""Importing torch and triton from a cold disk has been seen to take 40 s."""
SPAWN_SECONDS = 60.0
"""A fork takes 10 ms; on an overloaded machine the judge waits this long before it gives up."""
MAX_CONTROL = 1 << 16

_KEPT_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "CC",
    "CXX", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TORCH_CUDA_ARCH_LIST",
    "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH",
)  # fmt: skip
"""All that a suspect inherits from the judge's environment."""


class SuspectServer:
    """Spawns suspects. Lazy, thread-safe, usable after a fork of the judge; close it or use ``with``."""

    def __init__(self, *, hidden_paths: tuple[str, ...] | list[str] = ()) -> None:
        self._hidden = tuple(str(p) for p in hidden_paths)
        self._processes: dict[str, ServerProcess] = {}
        self._lock = threading.Lock()
        self.isolation: sandbox.Isolation = {}
        """What the host allowed the latest suspect."""

    def __enter__(self) -> SuspectServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            for process in self._processes.values():
                process.close()
            self._processes.clear()

    def start(self, executor: str) -> float:
        """Start the server process for `executor` now; returns the seconds it took (0.0 if it ran)."""
        begun = time.monotonic()
        with self._lock:
            fresh = self._process(executor)[1]
        return time.monotonic() - begun if fresh else 0.0

    def spawn(
        self,
        candidate: Candidate,
        *,
        executor: str,
        limits: Limits | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> Suspect:
        """A fresh process for `candidate`, which has not read its source yet (`Suspect.load`).

        `cache_dir` is created if it does not exist and survives the suspect; None keeps builds
        in its scratch directory only. Raises SuspectError (HARNESS_FAILED) if no process can be had.
        """
        from lethe.verifier.custody import Suspect, SuspectError

        limits = limits or Limits()
        for retry in (True, False):
            try:
                with self._lock:
                    process, _ = self._process(executor)
                    suspect = Suspect.open(process, candidate, executor, limits, cache_dir, self._hidden)
                break
            except ServerLostError as e:
                with self._lock:
                    lost = self._processes.pop(_kind(executor), None)
                if lost is not None:
                    lost.close()
                if not retry:
                    message = f"the server that starts suspects was lost twice: {e}"
                    raise SuspectError(Status.HARNESS_FAILED, message, "spawn") from e
            except OSError as e:
                raise SuspectError(Status.HARNESS_FAILED, f"no suspect could be started: {e}", "spawn") from e
        suspect.greet(SPAWN_SECONDS)
        self.isolation = suspect.isolation
        return suspect

    def _process(self, executor: str) -> tuple[ServerProcess, bool]:
        kind = _kind(executor)
        process = self._processes.get(kind)
        if process is not None and process.usable():
            return process, False
        if process is not None:
            process.close()
        self._processes[kind] = ServerProcess(kind)
        return self._processes[kind], True


class ServerLostError(Exception):
    """The server process did not answer."""


def _kind(executor: str) -> str:
    if executor not in ("cpu", "interpreter", "cuda"):
        raise ValueError(f"unknown executor {executor!r}; use cpu, interpreter or cuda")
    return "interpreted" if executor == "interpreter" else "compiled"


class ServerProcess:
    """One running server process and the socket to it."""

    MODULE = "lethe.verifier.server"
    """What ``python -m`` runs: a module that calls `main`, with a body of its own if it forks no suspects."""

    def __init__(self, kind: str) -> None:
        self._judge = os.getpid()
        self._home = tempfile.mkdtemp(prefix="lethe-server-", dir=scratch_base())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    self.MODULE,
                    "--fd",
                    str(theirs.fileno()),
                    "--kind",
                    kind,
                ],
                pass_fds=(theirs.fileno(),),
                env=_environment(kind, self._home),
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._socket = ours
        try:
            hello = self._receive(START_SECONDS)
            if hello.get("threads") != 1:
                raise ServerLostError(f"it runs {hello.get('threads')} threads and could not fork safely")
        except ServerLostError:
            self.close()
            raise

    def usable(self) -> bool:
        """False once the process has ended, or in a fork of the judge that started it."""
        return self._judge == os.getpid() and self._process.poll() is None

    def fork(self, order: dict[str, Any], fds: list[int]) -> None:
        """Have a suspect forked that owns copies of `fds`. Raises ServerLostError."""
        try:
            self._socket.settimeout(SPAWN_SECONDS)
            socket.send_fds(self._socket, [json.dumps(order).encode()], fds)
        except OSError as e:
            raise ServerLostError(str(e)) from e
        answer = self._receive(SPAWN_SECONDS)
        if not answer.get("ok"):
            raise OSError(str(answer.get("error")))

    def _receive(self, seconds: float) -> dict[str, Any]:
        try:
            if not select.select([self._socket], [], [], seconds)[0]:
                raise ServerLostError(f"no answer within {seconds:.0f} s")
            body = self._socket.recv(MAX_CONTROL)
        except OSError as e:
            raise ServerLostError(str(e)) from e
        if not body:
            raise ServerLostError("it ended")
        answer: dict[str, Any] = json.loads(body)
        return answer

    def close(self) -> None:
        self._socket.close()
        if self._judge == os.getpid():
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self._home, ignore_errors=True)


def scratch_base() -> str:
    """A directory for temporary files that an unprivileged suspect can reach."""
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        if os.access(base, os.W_OK) and all(
            p.stat().st_mode & 0o001 for p in (Path(base), *Path(base).parents)
        ):
            return base
    return tempfile.gettempdir()


def _environment(kind: str, home: str) -> dict[str, str]:
    package_root = str(Path(__file__).resolve().parents[2])
    env = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    paths = [
        package_root,
        *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))),
    ]
    env.update(
        PATH=os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)]),
        HOME=home,
        TMPDIR=home,
        USER="suspect",
        LOGNAME="suspect",
        PYTHONPATH=os.pathsep.join(paths),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONHASHSEED="0",
        PYTHONUTF8="1",
        TRITON_CACHE_DIR=os.path.join(home, "triton"),
    )
    for pool in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
        env[f"{pool}_NUM_THREADS"] = "1"
    if kind == "interpreted":
        env["TRITON_INTERPRET"] = "1"
    return env


# ---------------------------------------------------------------- the server process


def main(body: Callable[..., None] | None = None) -> None:
    """Life of the server process. `body` is what a forked process does (None: be a suspect)."""
    parser = argparse.ArgumentParser(prog="python -m lethe.verifier.server", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--kind", required=True)
    arguments = parser.parse_args()
    control = socket.socket(fileno=arguments.fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    linux.set_subreaper()
    _preload()
    user_refusal = sandbox.probe_user_namespace()
    sandbox.python_paths()
    control.send(json.dumps({"threads": len(os.listdir("/proc/self/task"))}).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _serve(control, user_refusal, body)
    os._exit(0)


def _preload() -> None:
    """Import what suspects need, so that forking is all that is left to do."""
    import torch

    torch.set_num_threads(1)
    from lethe.verifier import suspect

    suspect.preload()
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket, user_refusal: str | None, body: Callable[..., None] | None) -> None:
    from lethe.verifier import suspect

    while True:
        try:
            message, fds, _, _ = socket.recv_fds(control, MAX_CONTROL, 8)
        except OSError:
            return
        if not message:
            return
        answer: dict[str, Any] = {"ok": True}
        pid = -1
        try:
            if (threads := len(os.listdir("/proc/self/task"))) != 1:
                raise OSError(errno.EBUSY, f"the server has {threads} threads")
            pid = os.fork()
        except OSError as e:
            answer = {"ok": False, "error": f"fork: {e.strerror}"}
        if pid == 0:
            try:
                control.close()
                guard(json.loads(message), fds, user_refusal, body or suspect.main)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        for fd in fds:
            os.close(fd)
        with suppress(OSError):
            control.send(json.dumps(answer).encode())


def order_for(executor: str, limits: Limits, rooms: sandbox.Rooms) -> dict[str, Any]:
    """The message that `ServerProcess.fork` sends."""
    return {"executor": executor, "limits": asdict(limits), "rooms": asdict(rooms)}


if __name__ == "__main__":
    main()
