"""Landlock: file, network and signal rules that a process may put on itself without any privilege.

Constants: Linux, include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import os
import struct

from lethe.verifier import linux

_READ = 1 | 4 | 8
"""EXECUTE, READ_FILE, READ_DIR."""
_WRITE = 2 | 16 | 32 | 64 | 128 | 256 | 512 | 1024 | 2048 | 4096
"""WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_* (ABI 1)."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_ON_FILES = 1 | 2 | 4 | _TRUNCATE
"""The accesses that a rule on something other than a directory may grant."""
_BIND_AND_CONNECT = 3
_SCOPES = 3
"""Abstract sockets and signals reach only processes under the same rules (ABI 6)."""


def restrict(writable: list[str]) -> None:
    """From now on this process may write below `writable` only, reach no TCP port, and signal no outsider.

    Raises OSError where the kernel has no Landlock. What an older ABI cannot restrict stays open.
    """
    abi = linux.landlock_abi()
    files = _READ | _WRITE
    if abi >= 2:
        files |= _REFER
    if abi >= 3:
        files |= _TRUNCATE
    ruleset = struct.pack("=Q", files)
    if abi >= 4:
        ruleset += struct.pack("=Q", _BIND_AND_CONNECT)
    if abi >= 6:
        ruleset += struct.pack("=Q", _SCOPES)
    opened: list[int] = []
    try:
        rules = []
        for path, access in [("/", _READ), *((p, files) for p in writable)]:
            opened.append(os.open(path, os.O_PATH))
            rules.append((access if os.path.isdir(path) else access & _ON_FILES & files, opened[-1]))
        linux.landlock_restrict(ruleset, rules)
    finally:
        for fd in opened:
            os.close(fd)
