"""Misbehaving candidates: each ends in a typed status with one clear sentence, and the server survives."""

from __future__ import annotations

import gc
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from lethe.verifier.custody import Limits, Suspect, SuspectError
from lethe.verifier.problem import Candidate
from lethe.verifier.server import SuspectServer
from lethe.verifier.verdict import Status

SHORT = Limits(cpu_seconds=20, wall_seconds=8.0, memory_bytes=1 << 30, file_bytes=4 << 20, processes=24)
RELU = """
import torch, triton, triton.language as tl
import torch.nn as nn
@triton.jit
def relu(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    tl.store(y + o, tl.maximum(tl.load(x + o, mask=m), 0.0), mask=m)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 1024)
        return y
"""


def forward(body: str, top: str = "") -> str:
    """A candidate whose forward is `body`."""
    lines = dedent(body).strip().splitlines()
    return (
        "import ctypes, json, os, signal, socket, sys, threading, time\n"
        f"import torch\nimport torch.nn as nn\n{top}\n"
        "class ModelNew(nn.Module):\n    def forward(self, x):\n"
        + "\n".join(f"        {line}" for line in lines)
        + "\n"
    )


@pytest.fixture(scope="module")
def server():
    torch.set_num_threads(1)
    with SuspectServer() as s:
        yield s


def spawn(
    server: SuspectServer, source: str, limits: Limits = SHORT, executor: str = "cpu", **kwargs
) -> Suspect:
    language = "triton" if executor == "interpreter" else "python"
    options = {k: kwargs.pop(k) for k in ("entry", "kind") if k in kwargs}
    return server.spawn(
        Candidate("case", source, language, **options), executor=executor, limits=limits, **kwargs
    )


def outputs_of(server: SuspectServer, source: str, x: torch.Tensor, **kwargs):
    with spawn(server, source, **kwargs) as suspect:
        suspect.load()
        suspect.build([], 0)
        return suspect.run([x])[0].outputs


def assert_honest_still_right(server: SuspectServer) -> None:
    x = torch.randn(33)
    assert torch.equal(outputs_of(server, forward("return torch.relu(x)"), x), torch.relu(x))


@dataclass(frozen=True)
class Case:
    source: str
    status: Status | tuple[Status, ...]
    says: str
    """Part of the message."""
    limits: Limits = SHORT
    stage: str = "run"
    extra: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    """Without this mechanism the wall limit ends it."""


QUICK = Limits(cpu_seconds=20, wall_seconds=1.0, memory_bytes=1 << 30, file_bytes=4 << 20, processes=24)
MALFORMED, IMPORT, BUILD = Status.MALFORMED_CANDIDATE, Status.IMPORT_FAILED, Status.BUILD_FAILED
COMPILE, RUN, TYPE = Status.COMPILE_FAILED, Status.RUN_FAILED, Status.WRONG_TYPE
OOM, LIMIT, LATE = Status.OUT_OF_MEMORY, Status.RESOURCE_LIMIT, Status.TIMED_OUT
CRASH, GARBAGE = Status.CRASHED, Status.GARBAGE

CASES = {
    # ---- the text
    "syntax error": Case("import torch\ndef (", MALFORMED, "line 2", stage="load"),
    "NUL bytes": Case("x = 1\0", MALFORMED, "not valid Python", stage="load"),
    "binary file": Case("\x7fELF\x02\x01\udcff\udcfe\n", MALFORMED, "not valid Python", stage="load"),
    "nested too deeply to parse": Case("(" * 5000, MALFORMED, "not valid Python", stage="load"),
    "empty": Case("", MALFORMED, "defines no class ModelNew; it defines nothing", stage="load"),
    "no ModelNew": Case(
        "import torch.nn as nn\nclass Model(nn.Module): pass\ndef helper(): pass",
        MALFORMED, "defines no class ModelNew; it defines Model, helper", stage="load",
    ),
    "ModelNew is a function": Case("def ModelNew(x): return x", MALFORMED, "is a function", stage="load"),
    "no such function": Case(
        "def other(x): return x", MALFORMED, "defines no function relu; it defines other", stage="load",
        extra={"entry": "relu", "kind": "function"},
    ),
    "missing import": Case("import nonexistent_thing", IMPORT, "nonexistent_thing", stage="load"),
    "raises on import": Case("raise ValueError('no')", IMPORT, "ValueError: no (line 1)", stage="load"),
    "exits on import": Case("import sys; sys.exit(3)", CRASH, "sys.exit(3)", stage="load"),
    "loops on import": Case("while True: pass", LATE, "no answer to load within 1 s", QUICK, "load"),
    "constructor raises": Case(
        "import torch.nn as nn\nclass ModelNew(nn.Module):\n  def __init__(self): raise KeyError('width')",
        BUILD, "KeyError: 'width' (line 3)", stage="build",
    ),
    "constructor wants arguments": Case(
        "import torch.nn as nn\nclass ModelNew(nn.Module):\n  def __init__(self, n): super().__init__()",
        BUILD, "missing 1 required positional argument", stage="build",
    ),
    "compiler fails": Case(
        forward("import subprocess\n"
                "subprocess.run(['sh', '-c', 'echo k.cpp:3: error: no such type >&2; exit 1'],"
                " check=True, capture_output=True)"),
        COMPILE, "k.cpp:3: error: no such type",
    ),
    # ---- the call
    "raises": Case(forward("raise RuntimeError('boom\\nsecond line')"), RUN, "RuntimeError: boom"),
    "raises with an unprintable message": Case(
        forward("raise E()", "class E(Exception):\n  def __str__(self): raise ValueError"),
        RUN, "cannot be read",
    ),
    "calls sys.exit": Case(forward("sys.exit(0)"), CRASH, "sys.exit(0)"),
    "exits 0 early": Case(forward("os._exit(0)"), CRASH, "exit 0"),
    "exits 7": Case(forward("os._exit(7)"), CRASH, "exit 7"),
    "segmentation fault": Case(forward("ctypes.string_at(0)"), CRASH, "SIGSEGV"),
    "aborts": Case(forward("os.abort()"), CRASH, "SIGABRT"),
    "kills itself": Case(forward("os.kill(os.getpid(), signal.SIGKILL)"), CRASH, "SIGKILL"),
    "infinite loop": Case(forward("while True: pass"), LATE, "no answer to run within 1 s", QUICK),
    "sleeps": Case(forward("time.sleep(1000)"), LATE, "no answer to run within 1 s", QUICK),
    "ignores every signal and loops": Case(
        forward("for s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\n"
                "while True: pass"),
        LATE, "within 1 s", QUICK,
    ),
    "burns processor time": Case(
        forward("while True: pass"), LATE, "processor time",
        Limits(cpu_seconds=1, wall_seconds=20.0, memory_bytes=1 << 30),
    ),
    "deep recursion": Case(forward("return f(x)", "def f(x): return f(x)"), RUN, "RecursionError"),
    "recursion without limit": Case(
        forward("sys.setrecursionlimit(10**9)\nreturn C()(x)",
                "class C:\n  def __call__(self, x): return [0].__class__(map(self, [x]))"),
        (CRASH, OOM, RUN), "",
    ),
    # ---- resources
    "allocates 50 GB": Case(forward("return torch.empty(50 << 30, dtype=torch.uint8)"), OOM, "memory"),
    "allocates 50 GB in Python": Case(forward("return bytearray(50 << 30)"), OOM, "MemoryError"),
    "grows without end": Case(
        forward("kept = []\nwhile True: kept.append(bytes(16 << 20))"), OOM, "MemoryError"
    ),
    "maps shared memory without end": Case(
        forward("import mmap\nkept = []\nwhile True:\n  kept.append(mmap.mmap(-1, 256 << 20))"),
        OOM, "memory",
    ),
    "returns more than may travel": Case(
        forward("return torch.zeros(1).expand(1 << 40)"), OOM, "bytes allowed"
    ),
    "forks without end": Case(
        forward("while True:\n  if os.fork() == 0: time.sleep(1000)"), LIMIT, "BlockingIOError",
        needs="process_limit",
    ),
    "fork bomb": Case(
        forward("while True:\n  try: os.fork()\n  except OSError: time.sleep(0.05)"),
        (LATE, GARBAGE), "", QUICK,
    ),
    "threads without end": Case(
        forward("while True: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"),
        LIMIT, "start new thread", needs="process_limit",
    ),
    "opens files without end": Case(
        forward("kept = []\nwhile True: kept.append(open('/dev/null'))"), LIMIT, "Too many open files"
    ),
    "writes a large file": Case(
        forward("open('f', 'wb').write(bytes(64 << 20))"), LIMIT, "File too large"
    ),
    "fills the temporary directory": Case(
        forward("k = 0\nwhile True:\n  k += 1\n"
                "  open(f'{os.environ[\"TMPDIR\"]}/{k}', 'wb').write(bytes(3 << 20))"),
        LIMIT, "No space left", needs="private_scratch",
    ),
    "fills /tmp": Case(
        forward("k = 0\nwhile True:\n  k += 1\n  open(f'/tmp/fill{k}', 'wb').write(bytes(3 << 20))"),
        (LIMIT, RUN), "",
    ),
    "prints without end": Case(forward("while True: print('x' * 65536)"), LIMIT, "File too large"),
    # ---- what comes back
    "returns an object": Case(forward("return object()"), TYPE, "a value of type object"),
    "returns an array": Case(forward("return x.numpy()"), TYPE, "a value of type ndarray"),
    "returns a generator": Case(forward("return (t for t in [x])"), TYPE, "a value of type generator"),
    "returns a sparse tensor": Case(forward("return x.to_sparse()"), TYPE, "layout torch.sparse_coo"),
    "returns a meta tensor": Case(forward("return x.to('meta')"), TYPE, "device meta"),
    "returns a quantized tensor": Case(
        forward("return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)"), TYPE, "quantized"
    ),
    "returns a cycle": Case(forward("a = []; a.append(a)\nreturn a"), TYPE, "nested deeper"),
    "returns a million numbers": Case(
        forward("return list(range(1_000_000))"), (TYPE, OOM), ""
    ),
    # ---- attacks on the channel
    "writes garbage to every descriptor": Case(
        forward("for f in range(3, 256):\n  try: os.write(f, b'garbage garbage garbage')\n"
                "  except OSError: pass\n"
                "return torch.relu(x)"),
        GARBAGE, "bytes that are no frame",
    ),
    "forges a frame": Case(
        forward("b = json.dumps({'ok': True, 'reports': []}).encode()\n"
                "frame = struct.pack('<4sQI', b'LTH1', 0, len(b)) + b\n"
                "for f in range(3, 256):\n  try: os.write(f, frame)\n  except OSError: pass\n"
                "return torch.relu(x)", "import struct"),
        GARBAGE, "answers no question",
    ),
    "claims an endless frame": Case(
        forward("for f in range(3, 256):\n  try: os.write(f, struct.pack('<4sQI', b'LTH1', 0, 0xffffffff))\n"
                "  except OSError: pass\ntime.sleep(1000)", "import struct"),
        GARBAGE, "claims",
    ),
    "drips bytes": Case(
        forward("s = [f for f in range(3, 256) if os.path.exists(f'/proc/self/fd/{f}')]\n"
                "while True:\n  for f in s:\n    try: os.write(f, b'L')\n    except OSError: pass\n"
                "  time.sleep(0.2)"),
        (LATE, GARBAGE), "", QUICK,
    ),
    "closes every descriptor": Case(
        forward("os.closerange(0, 256)\nreturn torch.relu(x)"), CRASH, "exit"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_misbehaviour_has_a_typed_status(server: SuspectServer, name: str) -> None:
    case = CASES[name]
    wanted = case.status if isinstance(case.status, tuple) else (case.status,)
    with pytest.raises(SuspectError) as caught:
        outputs_of(server, case.source, torch.randn(64), limits=case.limits, **case.extra)
    if case.needs and server.isolation[case.needs] is not True:
        assert caught.value.status in (*wanted, Status.TIMED_OUT), caught.value
        return
    assert caught.value.status in wanted, caught.value
    assert caught.value.stage == case.stage
    assert case.says in caught.value.message
    assert (
        caught.value.message.strip() and "\n" not in caught.value.message and len(caught.value.message) < 700
    )
    assert_honest_still_right(server)
    assert os.getppid() > 0


HARMLESS = {
    "patches torch.allclose and torch.equal": "torch.allclose = torch.equal = lambda *a, **k: True",
    "patches os.write and os.read": "os.write = os.read = lambda *a, **k: 0",
    "patches json": "json.dumps = json.loads = None; json.JSONEncoder = None",
    "patches torch.load and torch.frombuffer": "torch.load = torch.save = torch.frombuffer = None",
    "patches time": "time.time = time.perf_counter = time.monotonic = lambda: 0.0",
    "patches tensor methods": "torch.Tensor.copy_ = torch.Tensor.view = torch.Tensor.cpu = None",
    "patches struct and socket": "import struct; struct.pack = struct.unpack = socket.socket = None",
    "patches the exit": "os._exit = sys.excepthook = lambda *a: None",
    "patches the harness's own structure": (
        "import lethe.verifier.structure as s; s.flatten = lambda v: ([], {'c': None})"
    ),
    "switches gradients off": "torch.set_grad_enabled(False)",
    "sets the default dtype": "torch.set_default_dtype(torch.float64)",
    "installs a signal handler": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "prints": "print('{\"ok\": true, \"passed\": 100}'); sys.stderr.write('noise')",
    "starts a thread": "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "changes directory": "os.chdir('/')",
    "clears sys.modules": "[sys.modules.pop(m) for m in list(sys.modules) if m.startswith('lethe')]",
    "Windows newlines": "y = 1\r\nz = 2\r\n",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_patched_process_still_answers_right(server: SuspectServer, name: str) -> None:
    x = torch.randn(64)
    got = outputs_of(server, forward("return x * 2.0", HARMLESS[name]), x)
    assert torch.equal(got, x * 2.0)


def test_patched_comparison_does_not_reach_the_judge(server: SuspectServer) -> None:
    got = outputs_of(
        server, forward("torch.equal = torch.allclose = lambda *a, **k: True\nreturn x + 1"), torch.ones(4)
    )
    assert not torch.equal(got, torch.ones(4)) and not torch.allclose(got, torch.ones(4))


def test_byte_order_mark_and_carriage_returns_are_read(server: SuspectServer) -> None:
    source = forward("return x * 2.0").replace("\n", "\r\n")
    assert torch.equal(outputs_of(server, source, torch.ones(3)), torch.full((3,), 2.0))


def test_parent_cannot_be_killed(server: SuspectServer) -> None:
    source = forward(
        "for p in (os.getppid(), 1, -1):\n  try: os.kill(p, signal.SIGKILL)\n  except OSError: pass\n"
        "return torch.relu(x)"
    )
    try:
        got = outputs_of(server, source, torch.ones(3))
        assert torch.equal(got, torch.ones(3))
    except SuspectError as e:
        assert e.status is Status.CRASHED
    assert_honest_still_right(server)


def test_judge_memory_cannot_be_read(server: SuspectServer) -> None:
    source = forward(
        f"for p in ({os.getpid()}, os.getppid(), 1):\n  try: open(f'/proc/{{p}}/mem', 'rb'); return x\n"
        "  except OSError: pass\nreturn -x"
    )
    assert torch.equal(outputs_of(server, source, torch.ones(3)), -torch.ones(3))


def test_files_of_the_judge_cannot_be_written(server: SuspectServer, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    precious.chmod(0o666)
    source = forward(f"try: open({str(precious)!r}, 'w').write('lost')\nexcept OSError: return -x\nreturn x")
    assert torch.equal(outputs_of(server, source, torch.ones(3)), -torch.ones(3))
    assert precious.read_text() == "kept"


def test_hidden_paths_are_not_seen(tmp_path: Path) -> None:
    secret = Path("/var/tmp") / f"lethe-secret-{os.getpid()}"
    secret.mkdir()
    (secret / "answer.txt").write_text("42")
    (secret / "answer.txt").chmod(0o644)
    source = forward(f"return x if os.path.exists({str(secret / 'answer.txt')!r}) else -x")
    try:
        with SuspectServer(hidden_paths=[str(secret)]) as hiding:
            suspect = spawn(hiding, source)
            if suspect.isolation.get("hidden_paths") is not True:
                pytest.skip(f"hidden_paths {suspect.isolation.get('hidden_paths')}")
            suspect.load()
            suspect.build([], 0)
            assert torch.equal(suspect.run([torch.ones(2)])[0].outputs, -torch.ones(2))
            suspect.close()
    finally:
        (secret / "answer.txt").unlink()
        secret.rmdir()


def test_network_is_out_of_reach(server: SuspectServer) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        source = forward(
            f"try: socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 1)\n"
            "except OSError: return -x\nreturn x"
        )
        with spawn(server, source) as suspect:
            if True not in (suspect.isolation["network_namespace"], suspect.isolation["landlock"]):
                pytest.skip("the host allows neither a network namespace nor Landlock")
        assert torch.equal(outputs_of(server, source, torch.ones(2)), -torch.ones(2))


def test_daemon_does_not_outlive_its_suspect(server: SuspectServer, tmp_path: Path) -> None:
    source = forward(
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    time.sleep(1000)\n"
        "  os._exit(0)\nreturn x"
    )
    with spawn(server, source) as suspect:
        suspect.load()
        suspect.build([], 0)
        suspect.run([torch.ones(2)])
        scratch = suspect.scratch.name
        assert suspect.close() == "killed"
    assert not [p for p in _processes() if scratch in p]


def _processes() -> list[str]:
    """Working directories of all processes, as far as they can be read."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found.append(os.readlink(f"/proc/{entry}/cwd"))
            except OSError:
                continue
    return found


def test_environment_is_scrubbed(server: SuspectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    source = forward("return (x, sorted(k for k in os.environ if 'SECRET' in k), os.environ['HOME'])")
    monkeypatch.setenv("LETHE_SECRET_TOKEN", "x")
    with SuspectServer() as fresh:
        _, secrets, home = outputs_of(fresh, source, torch.ones(2))
    assert secrets == []
    assert "lethe-suspect" in home


# ---------------------------------------------------------------- lifecycle


def test_thirty_suspects_leak_nothing(server: SuspectServer, tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def once() -> None:
        with spawn(server, "x = 1", cache_dir=tmp_path / "cache"):
            pass

    once()
    gc.collect()
    before = descriptors()
    for _ in range(30):
        once()
    gc.collect()
    assert descriptors() == before
    assert not _zombies()


def _zombies() -> list[int]:
    """Zombie children of this process or of the fork servers."""
    mine = {os.getpid()}
    states = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            states[int(entry)] = (state, int(parent))
    mine |= {pid for pid, (_, parent) in states.items() if parent == os.getpid()}
    return [pid for pid, (state, parent) in states.items() if state == "Z" and parent in mine]


def test_scratch_directory_is_removed(server: SuspectServer) -> None:
    source = forward("os.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)\nreturn x")
    with spawn(server, source) as suspect:
        suspect.load()
        suspect.build([], 0)
        suspect.run([torch.ones(2)])
        assert suspect.scratch.exists()
    assert not suspect.scratch.exists()


def test_server_restarts_after_it_was_killed() -> None:
    with SuspectServer() as s:
        assert_honest_still_right(s)
        for process in s._processes.values():
            os.kill(process._process.pid, signal.SIGKILL)
        time.sleep(0.1)
        assert_honest_still_right(s)


def test_a_closed_suspect_answers_with_a_status(server: SuspectServer) -> None:
    suspect = spawn(server, RELU)
    assert suspect.close() == suspect.close() == "killed"
    with pytest.raises(SuspectError, match="ended already"):
        suspect.load()


def test_requests_out_of_order_are_the_harness_s_fault(server: SuspectServer) -> None:
    with spawn(server, forward("return x")) as suspect, pytest.raises(SuspectError) as caught:
        suspect.run([torch.ones(1)])
    assert caught.value.status is Status.HARNESS_FAILED


def test_cache_survives_the_suspect(server: SuspectServer, tmp_path: Path) -> None:
    body = "p = os.environ['TRITON_CACHE_DIR']; os.makedirs(p, exist_ok=True)\n"
    write = forward(body + "open(p + '/built', 'w').write('once')\nreturn x")
    read = forward(body + "return x if os.path.exists(p + '/built') else -x")
    with spawn(server, write, cache_dir=tmp_path / "c") as suspect:
        if suspect.isolation["cache"] is not True:
            pytest.skip(str(suspect.isolation["cache"]))
    outputs_of(server, write, torch.ones(1), cache_dir=tmp_path / "c")
    assert outputs_of(server, read, torch.ones(1), cache_dir=tmp_path / "c") == 1


def test_isolation_is_reported(server: SuspectServer) -> None:
    with spawn(server, "x = 1") as suspect:
        assert {"pid_namespace", "network_namespace", "landlock", "memory_limit"} <= set(suspect.isolation)
        for name, outcome in suspect.isolation.items():
            assert outcome is True or str(outcome).startswith(("refused", "off")), (name, outcome)
        assert server.isolation == suspect.isolation


def test_suspect_can_be_asked_again_after_an_exception(server: SuspectServer) -> None:
    source = forward("if x.numel() == 1: raise ValueError('too small')\nreturn x + 1")
    with spawn(server, source) as suspect:
        suspect.load()
        suspect.build([], 0)
        with pytest.raises(SuspectError) as caught:
            suspect.run([torch.ones(1)])
        assert caught.value.alive
        assert torch.equal(suspect.run([torch.ones(2)])[0].outputs, torch.full((2,), 2.0))


def test_a_process_whose_device_is_lost_is_not_asked_again(server: SuspectServer) -> None:
    """It ends itself after its answer, and would be found dying by whatever is asked next."""
    why = "CUDA error: operation not permitted when stream is capturing"
    source = forward(f"if x.numel() == 1: raise RuntimeError({why!r})\nreturn x + 1")
    with spawn(server, source) as suspect:
        suspect.load()
        suspect.build([], 0)
        with pytest.raises(SuspectError) as caught:
            suspect.run([torch.ones(1)])
    assert caught.value.status is Status.CRASHED and not caught.value.alive
