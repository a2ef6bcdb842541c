"""Frames, arenas and tensor descriptions: whatever a suspect sends, the judge gets data or a typed error."""

from __future__ import annotations

import copy
import json
import mmap
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lethe.verifier import channel
from lethe.verifier.channel import Arena, GarbageError, GoneError, LateError, TensorMeta
from lethe.verifier.custody import Limits, Suspect, SuspectError
from lethe.verifier.problem import Candidate
from lethe.verifier.verdict import Status


@pytest.fixture
def pair():
    a, b = socket.socketpair()
    a.setblocking(False)
    with a, b:
        yield a, b


def soon(seconds: float = 2.0) -> float:
    return time.monotonic() + seconds


# ---------------------------------------------------------------- frames


def test_frame_round_trip(pair) -> None:
    a, b = pair
    b.sendall(channel.pack_frame(7, {"x": [1, None, "ü", 2.5]}))
    assert channel.receive_frame(a, 7, soon()) == {"x": [1, None, "ü", 2.5]}
    channel.send_frame(a, 9, {"y": 1}, soon())
    assert b.recv(1000) == channel.pack_frame(9, {"y": 1})


BAD_FRAMES = {
    "text": b"result: ok, everything passed",
    "wrong magic": b"LTH2" + bytes(12),
    "other nonce": channel.pack_frame(8, {}),
    "endless header": channel.FRAME.pack(channel.MAGIC, 7, 0xFFFFFFFF),
    "not JSON": channel.FRAME.pack(channel.MAGIC, 7, 4) + b"{{{{",
    "not UTF-8": channel.FRAME.pack(channel.MAGIC, 7, 2) + b"\xff\xfe",
    "a list": channel.FRAME.pack(channel.MAGIC, 7, 2) + b"[]",
    "NaN": channel.FRAME.pack(channel.MAGIC, 7, 9) + b'{"a":NaN}',
    "nested deeply": channel.FRAME.pack(channel.MAGIC, 7, 200_000) + b"[" * 200_000,
    "a number of ten thousand digits": channel.FRAME.pack(channel.MAGIC, 7, 10_005)
    + b'{"a":'
    + b"1" * 9999
    + b"}",
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frame_is_garbage(pair, name: str) -> None:
    a, b = pair
    threading.Thread(target=b.sendall, args=(BAD_FRAMES[name],), daemon=True).start()
    with pytest.raises(GarbageError):
        channel.receive_frame(a, 7, soon())


def test_end_of_file_is_gone(pair) -> None:
    a, b = pair
    b.sendall(channel.pack_frame(7, {"x": 1})[:-1])
    b.close()
    with pytest.raises(GoneError):
        channel.receive_frame(a, 7, soon())
    with pytest.raises(GoneError):
        channel.send_frame(a, 7, {}, soon())


def test_death_is_seen_though_a_descendant_holds_the_socket(pair) -> None:
    a, _ = pair
    reader, writer = os.pipe()
    os.close(writer)
    begun = time.monotonic()
    with pytest.raises(GoneError):
        channel.receive_frame(a, 7, soon(5.0), watch=reader)
    assert time.monotonic() - begun < 2.0
    os.close(reader)


def test_slow_drip_does_not_extend_the_deadline(pair) -> None:
    a, b = pair
    stop = threading.Event()

    def drip() -> None:
        for byte in channel.pack_frame(7, {"x": "y" * 1000}):
            if stop.wait(0.02):
                return
            b.send(bytes([byte]))

    thread = threading.Thread(target=drip)
    thread.start()
    begun = time.monotonic()
    with pytest.raises(LateError):
        channel.receive_frame(a, 7, soon(0.3))
    assert time.monotonic() - begun < 2.0
    stop.set()
    thread.join()


def test_reader_that_never_reads_is_late(pair) -> None:
    a, _ = pair
    with pytest.raises(LateError):
        channel.send_frame(a, 7, {"x": "y" * (4 << 20)}, soon(0.3))


# ---------------------------------------------------------------- arenas


def test_arena_cannot_be_resized_or_scribbled_by_the_suspect() -> None:
    asked = Arena.create(10_000, suspect_writes=False)
    assert asked.size == 3 * mmap.PAGESIZE
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(asked.fd, size)
    with pytest.raises(PermissionError):
        mmap.mmap(asked.fd, asked.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.pwrite(asked.fd, b"x", 0)
    asked.memory[:2] = b"ok"
    assert os.pread(asked.fd, 2, 0) == b"ok"
    answers = Arena.create(10, suspect_writes=True)
    os.pwrite(answers.fd, b"x", 0)
    assert answers.memory[:1] == b"x"
    for arena in (asked, answers):
        arena.close()
        arena.close()


def test_tensors_round_trip_with_alignment() -> None:
    tensors = [
        torch.randn(3, 5).t(),
        torch.tensor(True),
        torch.zeros(0, 4),
        torch.arange(7, dtype=torch.int8),
        torch.tensor([1 + 2j]).conj(),
        torch.full((2,), float("nan"), dtype=torch.bfloat16),
    ]
    arena = Arena.create(channel.packed_size(tensors), suspect_writes=True)
    metas = channel.parse_metas(
        json.loads(json.dumps([m.to_json() for m in channel.write_tensors(tensors, arena)]))
    )
    assert all(m.offset % channel.ALIGN == 0 for m in metas)
    assert metas[0].stride == (1, 5)
    for got, want in zip(channel.decode_tensors(metas, [arena]), tensors, strict=True):
        assert got.dtype == want.dtype and torch.equal(got.nan_to_num(), want.nan_to_num())
    arena.close()


def test_too_small_an_arena_is_refused() -> None:
    arena = Arena.create(1, suspect_writes=True)
    with pytest.raises(ValueError, match="do not fit"):
        channel.write_tensors([torch.zeros(5000)], arena)
    arena.close()


GOOD_META = ["float32", [2, 3], [3, 1], 0, 0]


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param(["float31", [2], [1], 0, 0], id="unknown dtype"),
        pytest.param(["qint8", [2], [1], 0, 0], id="dtype that may not travel"),
        pytest.param(["Tensor", [2], [1], 0, 0], id="attribute of torch"),
        pytest.param(["float32", [-1], [1], 0, 0], id="negative extent"),
        pytest.param(["float32", [2.0], [1], 0, 0], id="extent that is a float"),
        pytest.param(["float32", [True], [1], 0, 0], id="extent that is a bool"),
        pytest.param(["float32", [1 << 60], [1], 0, 0], id="extent beyond memory"),
        pytest.param(["float32", [1 << 40, 1 << 40], [1, 1], 0, 0], id="product beyond 64 bits"),
        pytest.param(["float32", [1] * 65, [1] * 65, 0, 0], id="too many dimensions"),
        pytest.param(["float32", [2, 2], [1], 0, 0], id="stride of another rank"),
        pytest.param(["float32", [2], [1], 1, 0], id="arena that does not exist"),
        pytest.param(["float32", [2], [1], -1, 0], id="negative arena"),
        pytest.param(["float32", [2], [1], 0, 4], id="unaligned"),
        pytest.param(["float32", [2], [1], 0, 4096], id="past the end"),
        pytest.param(["float32", [1025], [1], 0, 0], id="one element too many"),
        pytest.param(["float32", [2], [1], 0], id="field missing"),
        pytest.param({"dtype": "float32"}, id="an object"),
        pytest.param(None, id="null"),
    ],
)
def test_impossible_tensor_is_garbage(meta: Any) -> None:
    arena = Arena.create(4096, suspect_writes=True)
    with pytest.raises(GarbageError):
        channel.decode_tensors(channel.parse_metas([GOOD_META, meta][1:]), [arena])
    arena.close()


def test_a_small_arena_cannot_describe_a_large_result() -> None:
    arena = Arena.create(4096, suspect_writes=True)
    with pytest.raises(GarbageError, match="outside"):
        channel.decode_tensors([TensorMeta("float32", (1024,), (1,), 0, 0)] * 2, [arena])
    arena.close()


def test_strange_bytes_of_a_bool_are_true() -> None:
    arena = Arena.create(64, suspect_writes=True)
    arena.memory[:3] = b"\x00\x01\x7f"
    (got,) = channel.decode_tensors([TensorMeta("bool", (3,), (1,), 0, 0)], [arena])
    assert got.view(torch.uint8).tolist() == [0, 1, 1]
    arena.close()


# ---------------------------------------------------------------- a hostile suspect


class Puppet:
    """A suspect whose answers the test writes itself."""

    def __init__(self, tmp_path: Path, answer: Callable[[dict[str, Any]], Any], wall: float = 2.0) -> None:
        ours, self.socket = socket.socketpair()
        ours.setblocking(False)
        lifeline, held = os.pipe()
        status, self.told = os.pipe()
        self.answer = answer
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        self.suspect = Suspect(
            Candidate("puppet", "", "python"), Limits(wall_seconds=wall, memory_bytes=1 << 24), scratch,
            _socket=ours, _lifeline=held, _status=status, _streams=(),
        )  # fmt: skip
        self._lifeline = lifeline
        threading.Thread(target=self._act, daemon=True).start()

    def _read(self, count: int) -> bytes:
        try:
            return self.socket.recv(count, socket.MSG_WAITALL)
        except OSError:
            return b""

    def _act(self) -> None:
        with self.socket, os.fdopen(self._lifeline), os.fdopen(self.told, "w"):
            while head := self._read(channel.FRAME.size):
                _, nonce, length = channel.FRAME.unpack(head)
                request = json.loads(self._read(length))
                for reply in self.answer(request):
                    data = reply if isinstance(reply, bytes) else channel.pack_frame(nonce, reply)
                    try:
                        self.socket.sendall(data)
                    except OSError:
                        return


def report(**changes: Any) -> dict[str, Any]:
    good = {
        "outputs": {"t": 0},
        "tensors": [["float32", [0], [1], 0, 0]],
        "meta": [{"device": "cpu", "contiguous": True, "requires_grad": False, "storage": 0, "aliases": []}],
        "after": None,
        "grads": [],
        "overrun": [],
        "launches": 0,
        "kernels": [],
        "choices": 0,
        "configurations": [],
        "elapsed": 0.1,
    }
    return {**good, **changes}


def ask(tmp_path: Path, *replies: Any, wall: float = 2.0) -> Any:
    """Let the puppet grow one arena, then send `replies` to a run of one call."""

    def answer(request: dict[str, Any]) -> list[Any]:
        return [{"grow": 4096}] if "op" in request else list(replies)

    puppet = Puppet(tmp_path, answer, wall)
    try:
        return puppet.suspect.run([torch.ones(2)])
    finally:
        puppet.suspect.close()


def test_puppet_with_a_right_answer_is_believed(tmp_path: Path) -> None:
    (got,) = ask(tmp_path, {"ok": True, "reports": [report()]})
    assert got.outputs.shape == (0,) and got.guards_intact and got.grads == {}


HOSTILE: dict[str, Any] = {
    "no reports": {"ok": True},
    "too many reports": {"ok": True, "reports": [report(), report()]},
    "report without tensors": {"ok": True, "reports": [report(tensors=[])]},
    "unannounced tensors": {"ok": True, "reports": [report(tensors=[["float32", [0], [1], 0, 0]] * 2)]},
    "skeleton names a missing tensor": {"ok": True, "reports": [report(outputs={"t": 5})]},
    "skeleton overflows a float": {"ok": True, "reports": [report(outputs={"f": "0x1p99999"})]},
    "skeleton with a dtype that is none": {"ok": True, "reports": [report(outputs={"dtype": "load"})]},
    "skeleton nested deeply": {"ok": True, "reports": [report(outputs=eval("[" * 60 + "]" * 60))]},
    "fewer inputs than announced": {"ok": True, "reports": [report(after=3)]},
    "a gradient without tensor": {"ok": True, "reports": [report(grads=[["input:0", True]])]},
    "negative launches": {"ok": True, "reports": [report(launches=-1)]},
    "launches as text": {"ok": True, "reports": [report(launches="12")]},
    "unprintable kernel": {"ok": True, "reports": [report(kernels=["\x1b[2J"])]},
    "endless time": {"ok": True, "reports": [report(elapsed=1e300)]},
    "unknown status": {"ok": False, "status": "passed", "message": "all good"},
    "judged": {"ok": False, "status": "judged", "message": "all good"},
    "status without message": {"ok": False, "status": "run_failed"},
    "neither": {},
    "truthy": {"ok": 1, "reports": [report()]},
    "asks for negative memory": {"grow": -5},
    "asks for memory by name": {"grow": "lots"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answer_is_garbage(tmp_path: Path, name: str) -> None:
    with pytest.raises(SuspectError) as caught:
        ask(tmp_path, HOSTILE[name])
    assert caught.value.status is Status.GARBAGE and caught.value.message


def test_endless_growth_ends(tmp_path: Path) -> None:
    puppet = Puppet(tmp_path, lambda request: [{"grow": 1 << 20}], wall=5.0)
    with pytest.raises(SuspectError) as caught:
        puppet.suspect.run([torch.ones(2)])
    assert caught.value.status in (Status.OUT_OF_MEMORY, Status.GARBAGE)


def test_second_answer_to_one_question_is_garbage(tmp_path: Path) -> None:
    answer = {"ok": True, "reports": [report()]}

    def twice(request: dict[str, Any]) -> list[Any]:
        return [{"grow": 4096}] if "op" in request else [answer, answer]

    puppet = Puppet(tmp_path, twice)
    puppet.suspect.run([torch.ones(2)])
    time.sleep(0.05)
    with pytest.raises(SuspectError) as caught:
        puppet.suspect.run([torch.ones(2)])
    assert caught.value.status is Status.GARBAGE


def test_silence_is_a_time_out(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(SuspectError) as caught:
        ask(tmp_path, channel.FRAME.pack(channel.MAGIC, 0, 100) + b"{", wall=0.3)
    assert caught.value.status is Status.TIMED_OUT and time.monotonic() - begun < 6.0


def _mutated(value: Any, rng: random.Random) -> Any:
    """`value` with one random place replaced by something odd."""
    odd: list[Any] = [
        None,
        True,
        -1,
        1 << 70,
        1.5,
        "",
        "\0",
        "x" * 300,
        [],
        {},
        [[]],
        {"t": 0},
        {"t": 1, "c": 2},
        {"i": "z"},
    ]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return {**value, key: _mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        k = rng.randrange(len(value))
        return [*value[:k], _mutated(value[k], rng), *value[k + 1 :]]
    return copy.deepcopy(rng.choice(odd))


def test_four_hundred_mutated_answers_raise_nothing_else(tmp_path: Path) -> None:
    rng = random.Random(0)
    base = {
        "ok": True,
        "reports": [
            report(
                outputs={"tuple": [{"t": 0}, {"dict": [["a", {"f": "0x1p3"}], ["b", {"dtype": "float32"}]]}]},
                tensors=[["float32", [2], [1], 0, 0], ["bool", [3], [1], 0, 64], ["int64", [1], [1], 0, 128]],
                after=1, grads=[["input:0", True], ["param:w", False]], overrun=["out: 1"], kernels=["k"],
            )
        ],
    }  # fmt: skip
    outcomes = {"accepted": 0, "refused": 0}
    puppet, current = None, base

    def answer(request: dict[str, Any]) -> list[Any]:
        return [{"grow": 4096}] if "op" in request else [current]

    for _ in range(400):
        if puppet is None:
            puppet = Puppet(tmp_path, answer)
        current = _mutated(base, rng)
        try:
            puppet.suspect.run([torch.ones(2)])
            outcomes["accepted"] += 1
        except SuspectError as e:
            assert e.status in (Status.GARBAGE, Status.HARNESS_FAILED), e
            outcomes["refused"] += 1
            puppet.suspect.close()
            puppet = None
    if puppet is not None:
        puppet.suspect.close()
    assert outcomes["refused"] > 200
