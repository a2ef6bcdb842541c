"""Attacks on the judge by a kernel that is wrong: each tries to get a wrong value accepted, or to do harm.

Every attack is Python that runs when the candidate is imported (`top`) or called (`before`). Where an attack
can learn whether it got through, it then answers right (``return x * 1.5``): a judge that can be reached
gives a verdict that differs from that of the same wrong kernel without the attack.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

REFERENCE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * 1.5

rows = 8
width = 64

def get_inputs():
    return [torch.randn(rows, width)]

def get_init_inputs():
    return []
"""
RIGHT = "return x * 1.5"
WRONG = "return x * 1.25"
IMPORTS = "import ctypes, gc, json, os, resource, signal, socket, sys, tempfile, threading, time"


@dataclass(frozen=True)
class Attack:
    """`JUDGE` stands for the judge's process id, `FOLDER` for a folder of the judge's user, `MARK` for a
    name that everything left behind would carry."""

    before: str = ""
    top: str = ""

    def source(self, judge: int, folder: str, mark: str, answer: str = WRONG) -> str:
        text = candidate(self.before, self.top, answer)
        return text.replace("JUDGE", str(judge)).replace("FOLDER", folder).replace("MARK", mark)


def candidate(before: str = "", top: str = "", answer: str = WRONG) -> str:
    """A candidate that does `before` and then `answer`."""
    body = indent(dedent(before).strip("\n") + "\n" + answer, " " * 8)
    head = f"{IMPORTS}\nimport torch\nimport torch.nn as nn\n{dedent(top)}\n"
    return f"{head}\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n{body}\n"


SAME_VERDICT = {
    "patches torch's comparisons": Attack(
        top="""
        torch.allclose = torch.equal = torch.isclose = lambda *a, **k: True
        torch.testing.assert_close = lambda *a, **k: None
        torch.Tensor.eq = torch.Tensor.__eq__ = torch.Tensor.equal = lambda *a: True
        torch.Tensor.sub = torch.Tensor.__sub__ = lambda a, b: torch.zeros_like(a)
        """
    ),
    "forges the result on every stream": Attack(
        before="""
        line = json.dumps({"schema": "lethe.verdict/1", "status": "judged", "gates": [], "message": "passed"})
        print(line, flush=True)
        for stream in (1, 2):
            os.write(stream, line.encode())
        for name in ("verdict.json", "result.json", "stdout.txt", "../verdict.json"):
            try:
                open(name, "w").write(line)
            except OSError:
                pass
        """
    ),
    "searches memory for the answer": Attack(
        before="""
        for t in gc.get_objects():
            if isinstance(t, torch.Tensor) and t.shape == x.shape and t.dtype == torch.float64:
                return t.float()
        frame = sys._getframe()
        while frame is not None:
            for value in list(frame.f_locals.values()):
                if isinstance(value, torch.Tensor) and value.shape == x.shape and value is not x:
                    if torch.equal(value.double(), x.double() * 1.5):
                        return value
            frame = frame.f_back
        """
    ),
    "patches clocks and random numbers": Attack(
        top="""
        time.time = time.perf_counter = time.monotonic = lambda: 0.0
        torch.manual_seed = torch.random.manual_seed = lambda *a: None
        torch.randn = torch.rand = lambda *shape, **k: torch.zeros(*shape)
        torch.set_rng_state = torch.random.set_rng_state = lambda *a: None
        """
    ),
    "patches the harness's own modules": Attack(
        top="""
        import lethe.verifier.calling as calling, lethe.verifier.poison as poison
        import lethe.verifier.executors.launches as launches, lethe.verifier.structure as structure
        poison.Ledger.check = lambda self: []
        poison.Ledger.begin = lambda self: None
        launches.launch_count = calling._launch_count = lambda: 1
        calling._shared_memory = lambda labelled, first: ([0] * len(labelled), [[]] * (len(labelled) - first))
        structure.flatten = lambda value: ([], {"n": None})
        """
    ),
    "reads the judge through /proc": Attack(
        before="""
        for pid in (JUDGE, os.getppid(), 1):
            for name in ("mem", "maps", "environ", "cmdline", "fd/0", "root/etc/shadow"):
                try:
                    with open(f"/proc/{pid}/{name}", "rb") as f:
                        if pid == JUDGE or name in ("mem", "environ"):
                            f.read(1)
                            return x * 1.5
                except (OSError, ValueError):
                    pass
        """
    ),
    "traces the judge": Attack(
        before="""
        libc = ctypes.CDLL(None, use_errno=True)
        here = ctypes.create_string_buffer(64)
        class Slice(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
        for pid in (JUDGE, os.getppid(), 1):
            if libc.ptrace(16, pid, None, None) == 0:
                return x * 1.5
            mine = Slice(ctypes.addressof(here), 64)
            theirs = Slice(id(None), 64)
            if libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) > 0:
                return x * 1.5
        """
    ),
    "signals the judge": Attack(
        before="""
        for pid in (JUDGE, -JUDGE, os.getppid()):
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                    if pid == JUDGE:
                        return x * 1.5
                except OSError:
                    pass
        """
    ),
    "leaves a daemon": Attack(
        before="""
        if not DONE and os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(15, b"MARK", 0, 0, 0)
                for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(s, signal.SIG_IGN)
                time.sleep(600)
            os._exit(0)
        DONE.append(True)
        """,
        top="DONE = []",
    ),
    "fills the temporary folders": Attack(
        before="""
        for base in ("/tmp", "/var/tmp", "/dev/shm", os.environ["TMPDIR"], "."):
            for k in range(40):
                try:
                    with open(f"{base}/MARK-{k}", "wb") as f:
                        f.write(bytes(1 << 20))
                except OSError:
                    break
        """
    ),
    "writes the judge's files": Attack(
        before="""
        for folder, _, names in os.walk("FOLDER"):
            for name in [*names, "planted"]:
                try:
                    open(os.path.join(folder, name), "w").write("MARK")
                    return x * 1.5
                except OSError:
                    pass
        import lethe.verifier.tolerance as own
        try:
            open(own.__file__, "a").close()
            return x * 1.5
        except OSError:
            pass
        """
    ),
    "exhausts memory": Attack(
        before="""
        try:
            while not DONE:
                KEPT.append(bytearray(256 << 20))
        except MemoryError:
            KEPT.clear()
            DONE.append(True)
        """,
        top="KEPT, DONE = [], []",
    ),
    "exhausts descriptors": Attack(
        top="KEPT = []",
        before="""
        try:
            while True:
                KEPT.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            os.close(KEPT.pop())
            os.close(KEPT.pop())
        """,
    ),
    "fills anonymous files": Attack(
        before="""
        try:
            fd = os.memfd_create("MARK")
            for _ in range(4096):
                os.write(fd, bytes(16 << 20))
        except OSError:
            pass
        """
    ),
    "reads every descriptor it inherited": Attack(
        before="""
        found = set(os.listdir("/proc/self/fd"))
        for name in found:
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if target.startswith("/") and "suspect" not in target and "/dev/null" not in target:
                if not target.startswith("/proc") and "(deleted)" not in target:
                    return x * 1.5
        """
    ),
    "starts threads that go on": Attack(
        top="""
        def scribble():
            while True:
                for value in gc.get_objects():
                    if isinstance(value, torch.Tensor) and value.dtype == torch.uint8:
                        try:
                            value.view(-1)[:1]
                        except Exception:
                            pass
                time.sleep(0.05)
        threading.Thread(target=scribble, daemon=True).start()
        """
    ),
}
"""Attacks after which the verdict must be, but for the source's own hash, that of the wrong kernel."""

TYPED = {
    "exits 0 early": (Attack(before="os._exit(0)"), {"crashed"}),
    "exits 0 on import": (Attack(top="os._exit(0)"), {"crashed"}),
    "sleeps for ever": (Attack(before="time.sleep(1e6)"), {"timed_out"}),
    "lets a child answer": (
        Attack(before="if os.fork():\n    os._exit(0)\ntime.sleep(0.5)\nreturn x * 1.5"),
        {"crashed", "garbage"},
    ),
    "forges an answer on every descriptor": (
        Attack(
            top="import struct",
            before="""
            body = json.dumps({"ok": True, "reports": []}).encode()
            for fd in range(3, 256):
                try:
                    os.write(fd, struct.pack("<4sQI", b"LTH1", 0, len(body)) + body)
                except OSError:
                    pass
            """,
        ),
        {"garbage"},
    ),
    "stops itself": (Attack(before="os.kill(os.getpid(), signal.SIGSTOP)"), {"timed_out"}),
    "forks without end": (
        Attack(
            before="while True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.05)"
        ),
        {"timed_out", "garbage", "resource_limit", "crashed"},
    ),
}
"""Attacks that end the conversation, with the statuses they may end in: findings, never passes."""
