"""The few Linux system calls that Python 3.11 does not wrap, by ctypes.

Every function raises OSError with the kernel's errno; callers decide what a
refusal means.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18

_MOUNT_ATTR_RDONLY = 1
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_CAP_VERSION_3 = 0x2008_0522
_LAST_CAP = 63

_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK = (444, 445, 446)
"""create_ruleset, add_rule, restrict_self: the same numbers on every architecture."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, fstype: str | None, flags: int, data: str | None = None) -> None:
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            fstype.encode() if fstype else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount {target}",
    )


def set_read_only(path: str, value: bool, *, recursive: bool = False) -> None:
    """Make the mount at `path` (and, if asked, every mount below it) read-only, or writable again."""
    attr = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY if value else 0, 0 if value else _MOUNT_ATTR_RDONLY, 0, 0)
    buffer = ctypes.create_string_buffer(attr, len(attr))
    _check(
        _libc.syscall(
            _SYS_MOUNT_SETATTR,
            _AT_FDCWD,
            path.encode(),
            _AT_RECURSIVE if recursive else 0,
            buffer,
            ctypes.c_size_t(len(attr)),
        ),
        f"mount_setattr {path}",
    )


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), "prctl")


def set_parent_death_signal(signum: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signum)


def set_dumpable(value: bool) -> None:
    _prctl(_PR_SET_DUMPABLE, int(value))


def set_subreaper() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Empty the bounding, permitted, effective and inheritable sets of this process."""
    for cap in range(_LAST_CAP + 1):
        try:
            _prctl(_PR_CAPBSET_DROP, cap)
        except OSError as e:
            if e.errno == errno.EINVAL:
                break
            if e.errno != errno.EPERM:
                raise
    number = _SYS_CAPSET.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"capset: number unknown on {platform.machine()}")
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAP_VERSION_3, 0), 8)
    data = ctypes.create_string_buffer(24)
    _check(_libc.syscall(number, header, data), "capset")


def landlock_abi() -> int:
    """The kernel's Landlock version. Raises OSError where it has none."""
    return _check(_libc.syscall(_SYS_LANDLOCK[0], None, ctypes.c_size_t(0), 1), "landlock")


def landlock_restrict(ruleset: bytes, rules: list[tuple[int, int]]) -> None:
    """Restrict this process for good. `rules` are (allowed file accesses, descriptor of the hierarchy)."""
    buffer = ctypes.create_string_buffer(ruleset, len(ruleset))
    fd = _check(
        _libc.syscall(_SYS_LANDLOCK[0], buffer, ctypes.c_size_t(len(ruleset)), 0), "landlock_create_ruleset"
    )
    try:
        for access, hierarchy in rules:
            packed = struct.pack("=Qi", access, hierarchy)
            rule = ctypes.create_string_buffer(packed, len(packed))
            _check(_libc.syscall(_SYS_LANDLOCK[1], fd, 1, rule, 0), "landlock_add_rule")
        _check(_libc.syscall(_SYS_LANDLOCK[2], fd, 0), "landlock_restrict_self")
    finally:
        os.close(fd)
