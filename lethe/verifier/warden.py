"""The two processes between server and candidate: the guard, and the init that outlives the candidate."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lethe.verifier import linux, sandbox
from lethe.verifier.sandbox import Limits

PROTOCOL_FD = 113
"""The suspect's end of the channel: above any descriptor that honest code writes to by number."""
SWEEP_SECONDS = 0.005
"""Pause between two rounds of killing where no PID namespace does it."""


def guard(order: dict[str, Any], fds: list[int], user_refusal: str | None, body: Any) -> None:
    """First fork: namespaces and mounts. It leaves at once; its child is the init of the namespace."""
    protocol, lifeline, status, out, err = fds
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    limits, rooms = Limits(**order["limits"]), sandbox.Rooms(**order["rooms"])
    report: sandbox.Isolation = {}
    sandbox.enter_namespaces(report, user_refusal)
    sandbox.arrange_mounts(rooms, limits, report)
    if os.fork():
        os._exit(0)
    sandbox.mount_proc(report)
    wake, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if report["pid_namespace"] is not True:
        linux.set_subreaper()
    pid = os.fork()
    if pid:
        os.close(protocol)
        _attend(pid, lifeline, status, wake)
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    os.dup2(protocol, PROTOCOL_FD)
    os.closerange(3, PROTOCOL_FD)
    os.closerange(PROTOCOL_FD + 1, 1 << 16)
    cache = sandbox.drop_privileges(rooms, report)
    body(PROTOCOL_FD, order["executor"], limits, rooms.scratch, cache, report)


def _attend(pid: int, lifeline: int, status: int, wake: int) -> None:
    """Init of the suspect: reap, report how the candidate's process ended, kill all when told to."""
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        with suppress(BlockingIOError):
            while os.read(wake, 512):
                pass
        while True:
            try:
                ended, code, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if ended == 0:
                break
            if ended == pid:
                seconds = usage.ru_utime + usage.ru_stime
                with suppress(OSError):
                    os.write(status, json.dumps([code, seconds]).encode())
                _sweep(pid)
                return
        if lifeline in ready:
            _sweep(pid)
            return


def _sweep(pid: int) -> None:
    """Kill and reap all that is left, so that the end of this process is the end of everything."""
    sandbox.kill_group(pid)
    if os.getpid() == 1:
        with suppress(OSError):
            os.kill(-1, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.wait4(-1, 0)
    while children := _children():
        for child in children:
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.wait4(-1, os.WNOHANG)[0]:
                pass
        time.sleep(SWEEP_SECONDS)


def _children() -> list[int]:
    """Children of this process; orphans of the candidate become its children (subreaper)."""
    me = str(os.getpid())
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if state[1] == me:
                    found.append(int(entry))
    return found
