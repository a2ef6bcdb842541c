"""How a suspect is locked in: users, namespaces, mounts, Landlock and resource limits.

Each mechanism is tried on its own. What the host refuses is recorded in the
isolation report (``True``, or a sentence that begins with "refused" or "off") and
is never fatal: a verdict tells how well its suspect was isolated.

The steps follow the three processes between server and candidate:

* the *guard* calls `enter_namespaces`, which also prepares the mounts;
* the *init* (process 1 of its PID namespace) calls `mount_proc`, waits for the candidate
  and takes every process left behind with it when it ends;
* the *candidate's process* calls `drop_privileges` and `set_limits` before it reads any
  source text.

As root the mounts are made by the real root and the candidate becomes nobody: root in a
user namespace could still write the judge's files. An ordinary user enters a user
namespace of his own first. Landlock adds what works without any privilege.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lethe.verifier import landlock, linux

Isolation = dict[str, bool | str]

NOBODY = 65534
"""Uid and gid of nobody on Linux (the kernel's overflow id)."""
SCRATCH_FILES = 4
"""The scratch file system holds so many files of the largest allowed size."""
SCRATCH_INODES = 20_000
"""A build of a large C++ extension makes some hundred files."""
DESCRIPTORS = 256
CPU_GRACE_SECONDS = 2
"""Between SIGXCPU and SIGKILL."""
ADDRESS_SPACE_FACTOR = 3
"""RLIMIT_DATA is the limit that counts; address space also holds shared mappings (two arenas)."""


@dataclass(frozen=True)
class Limits:
    """What one suspect process may use; beyond it is a typed status, never an exception."""

    cpu_seconds: int = 120
    """Processor time of the whole process."""
    wall_seconds: float = 60.0
    """Per request."""
    memory_bytes: int = 8 << 30
    """Data segment beyond what the warm server holds; on CUDA the share of the device's memory."""
    file_bytes: int = 256 << 20
    """Largest file; the scratch file system holds `SCRATCH_FILES` of them."""
    processes: int = 64
    """Processes and threads."""
    threads: int = 1
    """Intra-operator threads of torch, and OMP_NUM_THREADS."""


def _attempt(report: Isolation, name: str, step: Callable[[], None]) -> bool:
    try:
        step()
    except OSError as e:
        report[name] = f"refused: {e.strerror or e}"
        return False
    report[name] = True
    return True


# ---------------------------------------------------------------- namespaces (guard)

_NAMESPACES = {
    "mount_namespace": linux.CLONE_NEWNS,
    "pid_namespace": linux.CLONE_NEWPID,
    "network_namespace": linux.CLONE_NEWNET,
    "ipc_namespace": linux.CLONE_NEWIPC,
    "host_name_namespace": linux.CLONE_NEWUTS,
}


def probe_user_namespace() -> str | None:
    """Why this user may not have a user namespace of its own, or None; tried in a child.

    A kernel may allow the namespace and refuse the map of its users afterwards (AppArmor on
    Ubuntu 24.04, root without CAP_SETFCAP); there would be no way back.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _own_user_namespace(os.geteuid(), os.getegid())
        except OSError as e:
            os.write(writer, (e.strerror or str(e)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as f:
        reason = f.read().decode()
    os.waitpid(pid, 0)
    return reason or None


def enter_namespaces(report: Isolation, user_refusal: str | None) -> None:
    """Unshare what the host allows; the next fork is process 1 of the new PID namespace.

    `user_refusal` is what `probe_user_namespace` found.
    """
    privileged = os.geteuid() == 0
    if privileged and _attempt(report, "mount_namespace", lambda: linux.unshare(linux.CLONE_NEWNS)):
        for name, flag in _NAMESPACES.items():
            if name != "mount_namespace":
                _attempt(report, name, lambda flag=flag: linux.unshare(flag))  # type: ignore[misc]
        report["user_namespace"] = "off: entered later, as nobody"
    elif user_refusal is not None:
        report["user_namespace"] = f"refused: {user_refusal}"
        for name in _NAMESPACES:
            report.setdefault(name, "refused: no user namespace")
    else:
        uid, gid = os.geteuid(), os.getegid()
        _attempt(report, "user_namespace", lambda: _own_user_namespace(uid, gid))
        for name, flag in _NAMESPACES.items():
            _attempt(report, name, lambda flag=flag: linux.unshare(flag))  # type: ignore[misc]
    if report["mount_namespace"] is True:
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)


def _own_user_namespace(uid: int, gid: int) -> None:
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


# ---------------------------------------------------------------- mounts (guard and init)


@dataclass(frozen=True)
class Rooms:
    """Directories of one suspect, as absolute paths on the host."""

    scratch: str
    """Working directory, home and TMPDIR: a private tmpfs where mounts are allowed."""
    cache: str
    """Where builds are kept between spawns."""
    hidden: tuple[str, ...] = ()
    """Files and directories that the suspect must not see."""

    def bound_cache(self, report: Isolation) -> str | None:
        """Where `cache` appears in a private /tmp or else /dev/shm; None where neither is private.

        The same for each suspect with that cache: ninja builds anew when a path changes.
        """
        private = {"/tmp": "private_tmp", "/dev/shm": "private_shm"}
        base = next((path for path, name in private.items() if report[name] is True), None)
        return base and f"{base}/lethe-cache-{hashlib.sha256(self.cache.encode()).hexdigest()[:16]}"


def arrange_mounts(rooms: Rooms, limits: Limits, report: Isolation) -> None:
    """Everything read-only but scratch and cache; private /tmp and /dev/shm; hidden paths covered."""
    if report["mount_namespace"] is not True:
        for name in ("read_only_files", "private_scratch", "private_tmp", "private_shm", "private_proc"):
            report[name] = "refused: no mount namespace"
        if rooms.hidden:
            report["hidden_paths"] = "refused: no mount namespace"
        return
    cache = os.open(rooms.cache, os.O_PATH | os.O_DIRECTORY)
    needed = [(p, os.open(p, os.O_PATH)) for p in python_paths()]
    tmpfs = f"size={limits.file_bytes * SCRATCH_FILES},nr_inodes={SCRATCH_INODES}"

    def cover(path: str, mode: str) -> None:
        linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"{tmpfs},mode={mode}")

    def make_readable() -> None:
        for closed in _closed_ancestors(python_paths()):
            cover(closed, "0755")
            for path, fd in needed:
                if path.startswith(closed + os.sep):
                    _bind(fd, path)

    def hide() -> None:
        for path in rooms.hidden:
            real = os.path.realpath(path)
            kept = [rooms.scratch, *(p for p, _ in needed)]
            if any(p == real or p.startswith(real + os.sep) for p in kept):
                raise OSError(
                    errno.EBUSY, f"{path} holds the interpreter, a library or the scratch directory"
                )
            if os.path.isdir(real):
                cover(real, "0000")
            elif os.path.exists(real):
                linux.mount("/dev/null", real, None, linux.MS_BIND)

    def own_scratch() -> None:
        if not os.path.isdir(rooms.scratch):
            os.makedirs(rooms.scratch)
        cover(rooms.scratch, "0700")
        give(rooms.scratch)

    def own_tmp() -> None:
        if any(p == "/tmp" or p.startswith("/tmp/") for p, _ in needed):
            raise OSError(errno.EBUSY, "/tmp holds the interpreter or a library")
        cover("/tmp", "1777")

    _attempt(report, "read_only_files", lambda: linux.set_read_only("/", True, recursive=True))
    if _closed_ancestors(python_paths()):
        _attempt(report, "interpreter_uncovered", make_readable)
    if rooms.hidden:
        _attempt(report, "hidden_paths", hide)
    _attempt(report, "private_tmp", own_tmp)
    _attempt(report, "private_shm", lambda: cover("/dev/shm", "1777"))
    _attempt(report, "private_scratch", own_scratch)

    def keep_cache() -> None:
        place = rooms.bound_cache(report) or rooms.cache
        os.makedirs(place, mode=0o755, exist_ok=True)
        _bind(cache, place)
        linux.set_read_only(place, False)

    _attempt(report, "cache", keep_cache)
    for fd in (cache, *(fd for _, fd in needed)):
        os.close(fd)


def _bind(fd: int, path: str) -> None:
    """Mount what `fd` (O_PATH) refers to at `path`, also where its own path is covered by now."""
    source = f"/proc/self/fd/{fd}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
    linux.mount(source, path, None, linux.MS_BIND | linux.MS_REC)


def mount_proc(report: Isolation) -> None:
    """A /proc that shows this PID namespace only; to be called by its process 1."""
    if report["mount_namespace"] is True and report["pid_namespace"] is True:
        _attempt(report, "private_proc", lambda: linux.mount("proc", "/proc", "proc", linux.MS_NOSUID))
    else:
        report["private_proc"] = "refused: no PID namespace"


@functools.cache
def python_paths() -> tuple[str, ...]:
    """Where the interpreter, its libraries and this package lie (real paths, outermost only).

    The server asks once, before it forks.
    """
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    paths.update(sysconfig.get_paths().values())
    paths.update(p for p in sys.path if p)
    paths.add(str(Path(__file__).resolve().parents[1]))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        paths.add(os.environ.get(variable, ""))
    real = sorted({os.path.realpath(p) for p in paths if p and os.path.exists(p)} - {"/"})
    return tuple(p for p in real if not any(p.startswith(q + os.sep) for q in real))


def _closed_ancestors(paths: Iterable[str]) -> list[str]:
    """Outermost directories above `paths` that nobody may not pass (root's own home, usually)."""
    if os.geteuid() != 0:
        return []
    closed: list[str] = []
    for path in paths:
        for parent in reversed(Path(path).parents):
            mode = parent.stat()
            if not mode.st_mode & 0o001 and mode.st_uid != NOBODY:
                if str(parent) not in closed:
                    closed.append(str(parent))
                break
    return closed


def give(path: str | Path) -> None:
    """Make a directory of ours writable for the user that the suspect will be."""
    if os.geteuid() == 0:
        try:
            os.chown(path, NOBODY, NOBODY)
        except OSError:
            os.chmod(path, 0o777)


# ---------------------------------------------------------------- privileges (candidate's process)


def drop_privileges(rooms: Rooms, report: Isolation) -> str:
    """Become nobody (from root), enter a user namespace, lock files by Landlock, drop every capability.

    Returns the path at which the process finds its cache directory.
    """
    if os.geteuid() != 0:
        report["unprivileged_user"] = True
    elif report["user_namespace"] is True:
        report["unprivileged_user"] = "refused: root of a user namespace of its own"
    elif _closed_ancestors(python_paths()):
        report["unprivileged_user"] = "refused: nobody could not read the interpreter's files"
    else:
        _attempt(report, "unprivileged_user", _become_nobody)
    if os.geteuid() == 0:
        for path in (rooms.scratch, rooms.cache):
            with suppress(OSError):
                os.chown(path, 0, 0)
    linux.set_parent_death_signal(signal.SIGKILL)
    linux.set_dumpable(True)
    if report["user_namespace"] is not True and os.geteuid() != 0:
        _attempt(report, "user_namespace", lambda: _own_user_namespace(os.geteuid(), os.getegid()))
    _attempt(report, "no_new_privileges", linux.set_no_new_privileges)
    cache = _cache(rooms, report)
    _attempt(report, "landlock", lambda: landlock.restrict(_writable(rooms, cache, report)))
    _attempt(report, "no_capabilities", linux.drop_capabilities)
    linux.set_dumpable(report["pid_namespace"] is True or report["landlock"] is True)
    return cache


def _cache(rooms: Rooms, report: Isolation) -> str:
    """The cache directory as this process can reach it; else a directory that dies with it."""
    bound = rooms.bound_cache(report) if report.get("cache") is True else None
    for path in (bound, rooms.cache) if bound else (rooms.cache,):
        if os.access(path, os.W_OK | os.X_OK):
            report["cache"] = True
            return path
    report["cache"] = "refused: not reachable from the sandbox, builds are not kept"
    private = os.path.join(rooms.scratch, "builds")
    os.makedirs(private, exist_ok=True)
    return private


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _writable(rooms: Rooms, cache: str, report: Isolation) -> list[str]:
    """What the suspect may write to, Landlock or not."""
    private = {"private_tmp": "/tmp", "private_shm": "/dev/shm"}
    found = ["/dev/null", "/dev/zero", "/proc", rooms.scratch, cache]
    found += [str(p) for p in Path("/dev").glob("nvidia*")]
    return found + [path for name, path in private.items() if report[name] is True]


# ---------------------------------------------------------------- limits (candidate's process)


def set_limits(limits: Limits, executor: str, report: Isolation) -> None:
    """Resource limits of this process and everything it starts."""
    used = _status_bytes()
    wanted = {
        "cpu_limit": (resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + CPU_GRACE_SECONDS),
        "core_limit": (resource.RLIMIT_CORE, 0, 0),
        "file_limit": (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        "descriptor_limit": (resource.RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS),
        "message_queue_limit": (resource.RLIMIT_MSGQUEUE, 0, 0),
    }
    own = limits.processes
    if report.get("user_namespace") is not True:
        own += _tasks_of(os.getuid())
    wanted["process_limit"] = (resource.RLIMIT_NPROC, own, own)
    if executor == "cuda":
        report["memory_limit"] = "off: a limit on address space breaks CUDA; the device's share is limited"
    else:
        data = used["VmData"] + limits.memory_bytes
        space = used["VmSize"] + ADDRESS_SPACE_FACTOR * limits.memory_bytes
        wanted["memory_limit"] = (resource.RLIMIT_DATA, data, data)
        wanted["address_space_limit"] = (resource.RLIMIT_AS, space, space)
    for name, (kind, soft, hard) in wanted.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        try:
            resource.setrlimit(kind, (soft, hard))
            report[name] = True
        except (OSError, ValueError) as e:
            report[name] = f"refused: {e}"
    if os.getuid() == 0 and report.get("user_namespace") is not True:
        report["process_limit"] = "refused: it does not bind root"


def _status_bytes() -> dict[str, int]:
    """VmData and VmSize of this process."""
    found = {"VmData": 0, "VmSize": 0}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) << 10
    return found


def _tasks_of(uid: int) -> int:
    """Processes and threads that `uid` runs now: RLIMIT_NPROC counts them outside a user namespace."""
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == uid:
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:
                continue
    return count


def kill_group(pid: int) -> None:
    """SIGKILL for a process group; one that has gone is as good."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
