"""How judge and suspect talk: framed JSON on a socket, tensors in sealed shared memory.

A frame is ``magic, nonce, length`` and that many bytes of JSON. The judge draws a
nonce per request and takes only a reply that echoes it. Tensors never travel as
pickle: they lie, contiguous and 64-byte aligned, in arenas (memfds) that the judge
creates at a fixed size and seals, so that a suspect can neither shrink one under the
judge's feet nor grow it. Requests and replies use arenas of their own.

Everything that arrives from a suspect goes through `decode_json` and `decode_tensors`,
which raise `GarbageError` and nothing else on any content whatever.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import mmap
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAGIC = b"LTH1"
FRAME = struct.Struct("<4sQI")
MAX_JSON = 8 << 20
"""A header names tensors and holds source text; 8 MiB is some hundred times the largest seen."""
MAX_TENSORS = 1 << 16
MAX_RANK = 64
"""torch's own limit on the number of dimensions is 64."""
MAX_EXTENT = 1 << 48
ALIGN = 64
"""torch aligns CPU allocations to 64 bytes; vectorised loads rely on it."""

DTYPES = (
    "float64", "float32", "float16", "bfloat16",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
    "complex128", "complex64", "complex32",
)  # fmt: skip
"""The dtypes that may travel."""

_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_FUTURE_WRITE = 1, 2, 4, 16


class GarbageError(Exception):
    """What arrived is not a frame, or its content breaks the protocol."""


class GoneError(Exception):
    """The other side closed the connection or died."""


class LateError(Exception):
    """No complete frame arrived before the deadline."""


# ---------------------------------------------------------------- frames


def pack_frame(nonce: int, value: Any) -> bytes:
    """One frame. Raises ValueError if the JSON is longer than `MAX_JSON`."""
    body = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > MAX_JSON:
        raise ValueError(f"a header of {len(body)} bytes is longer than the protocol allows ({MAX_JSON})")
    return FRAME.pack(MAGIC, nonce, len(body)) + body


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def decode_json(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises GarbageError on anything else, however it is malformed."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise GarbageError(f"a frame that is not JSON ({type(e).__name__})") from e
    if not isinstance(value, dict):
        raise GarbageError("a frame whose JSON is not an object")
    return value


def send_frame(
    sock: socket.socket, nonce: int, value: Any, deadline: float, fds: tuple[int, ...] = ()
) -> None:
    """Send one frame (with descriptors) on a non-blocking socket; raises GoneError or LateError."""
    data = memoryview(pack_frame(nonce, value))
    while data:
        _wait(sock, select.POLLOUT, deadline)
        try:
            if fds:
                sent = socket.send_fds(sock, [data[: 1 << 16]], list(fds))
            else:
                sent = sock.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            continue
        except OSError as e:
            raise GoneError(str(e)) from e
        fds = ()
        data = data[sent:]


def receive_frame(
    sock: socket.socket, nonce: int, deadline: float, watch: int | None = None
) -> dict[str, Any]:
    """Read one frame; `watch` is a descriptor that becomes readable when the other side has died.

    Raises GarbageError, GoneError or LateError; a slow drip of bytes does not extend the deadline.
    """
    head = _read_exactly(sock, FRAME.size, deadline, watch)
    magic, echoed, length = FRAME.unpack(head)
    if magic != MAGIC:
        raise GarbageError(f"bytes that are no frame: {head!r}")
    if length > MAX_JSON:
        raise GarbageError(f"a frame that claims {length} bytes of header")
    body = _read_exactly(sock, length, deadline, watch)
    if echoed != nonce:
        raise GarbageError("a frame that answers no question")
    return decode_json(body)


def pending(sock: socket.socket) -> bool:
    """True if unread bytes lie on the socket (end of file is not counted)."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


def _wait(sock: socket.socket, event: int, deadline: float, watch: int | None = None) -> None:
    poller = select.poll()
    poller.register(sock, event)
    if watch is not None:
        poller.register(watch, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise LateError
        ready = poller.poll(math.ceil(left * 1000))
        if any(fd == sock.fileno() for fd, _ in ready):
            return
        if ready:
            raise GoneError("the process ended")


def _read_exactly(sock: socket.socket, count: int, deadline: float, watch: int | None) -> bytes:
    chunks: list[bytes] = []
    missing = count
    while missing:
        _wait(sock, select.POLLIN, deadline, watch)
        try:
            chunk = sock.recv(min(missing, 1 << 20))
        except (BlockingIOError, InterruptedError):
            continue
        except OSError as e:
            raise GoneError(str(e)) from e
        if not chunk:
            raise GoneError("end of file")
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


# ---------------------------------------------------------------- arenas


class Arena:
    """Shared memory of fixed size: created and sealed by the judge, mapped by both sides."""

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        self.fd = fd
        self.size = size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.memory = mmap.mmap(fd, size, mmap.MAP_SHARED, protection)

    @classmethod
    def create(cls, size: int, *, suspect_writes: bool) -> Arena:
        """A new arena of at least `size` bytes (rounded up to pages).

        The suspect may write to it only if `suspect_writes`; where the kernel lacks that seal
        (before Linux 5.1) it may, which endangers nothing but the suspect's own inputs.
        """
        size = max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE
        fd = os.memfd_create("lethe-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            arena = cls(fd, size, writable=True)
        except BaseException:
            os.close(fd)
            raise
        if not suspect_writes:
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
        return arena

    def close(self) -> None:
        """Give the descriptor and, if no tensor still looks into it, the mapping back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        with contextlib.suppress(BufferError):
            self.memory.close()


# ---------------------------------------------------------------- tensors


@dataclass(frozen=True)
class TensorMeta:
    """Where a tensor lies in an arena, and the stride pattern it had."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    arena: int
    offset: int

    def to_json(self) -> list[Any]:
        return [self.dtype, list(self.shape), list(self.stride), self.arena, self.offset]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def packed_size(tensors: list[Tensor]) -> int:
    """Bytes that `write_tensors` needs for `tensors`."""
    return sum(-(-t.numel() * t.element_size() // ALIGN) * ALIGN for t in tensors)


def write_tensors(tensors: list[Tensor], arena: Arena, offset: int = 0, index: int = 0) -> list[TensorMeta]:
    """Copy tensors into `arena` from `offset` on, each contiguous. Raises ValueError if they do not fit."""
    import torch

    metas = []
    for t in tensors:
        size = t.numel() * t.element_size()
        if offset + size > arena.size:
            raise ValueError("the tensors do not fit into the arena")
        if size:
            plain = t.detach().resolve_conj().resolve_neg().contiguous()
            # a contiguous tensor may have any stride along dimensions of size 1
            flat = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
            torch.frombuffer(arena.memory, dtype=torch.uint8, count=size, offset=offset).copy_(flat)
        metas.append(TensorMeta(dtype_name(t.dtype), tuple(t.shape), tuple(t.stride()), index, offset))
        offset += -(-size // ALIGN) * ALIGN
    return metas


def parse_metas(value: Any) -> list[TensorMeta]:
    """Tensor descriptions from JSON. Raises GarbageError unless every field is plausible."""
    if not isinstance(value, list) or len(value) > MAX_TENSORS:
        raise GarbageError("a list of tensors that is not one")
    metas = []
    for item in value:
        if not isinstance(item, list) or len(item) != 5:
            raise GarbageError("a tensor without description")
        dtype, shape, stride, arena, offset = item
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise GarbageError(f"a tensor of dtype {str(dtype)[:40]!r}")
        for ints in (shape, stride):
            if not isinstance(ints, list) or len(ints) > MAX_RANK or not all(_is_extent(x) for x in ints):
                raise GarbageError("a tensor with an impossible shape or stride")
        if len(shape) != len(stride) or not _is_extent(arena) or not _is_extent(offset):
            raise GarbageError("a tensor with an impossible place")
        metas.append(TensorMeta(dtype, tuple(shape), tuple(stride), arena, offset))
    return metas


def _is_extent(x: Any) -> bool:
    return type(x) is int and 0 <= x <= MAX_EXTENT


def decode_tensors(metas: list[TensorMeta], arenas: list[Arena]) -> list[Tensor]:
    """Copy the described tensors out of `arenas`, contiguous.

    They must lie in order and apart, so that a small arena cannot describe a large result.
    Raises GarbageError.
    """
    import torch

    ends = [0] * len(arenas)
    out = []
    for m in metas:
        dtype: torch.dtype = getattr(torch, m.dtype)
        size = math.prod(m.shape) * dtype.itemsize
        if m.arena >= len(arenas) or m.offset < ends[m.arena] or m.offset % ALIGN:
            raise GarbageError("a tensor outside its arena")
        if m.offset + size > arenas[m.arena].size:
            raise GarbageError("a tensor that reaches past the end of its arena")
        ends[m.arena] = m.offset + size
        if size == 0:
            out.append(torch.empty(m.shape, dtype=dtype))
            continue
        raw = torch.frombuffer(arenas[m.arena].memory, dtype=torch.uint8, count=size, offset=m.offset).clone()
        out.append((raw != 0 if dtype is torch.bool else raw.view(dtype)).reshape(m.shape))
    return out


def span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many elements of storage a strided tensor reaches over."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
