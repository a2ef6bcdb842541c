"""KernelBench's check: what it does, theirs run from a checkout, and the log."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lethe.audit import agreement, differential, kernelbench_check, kernelbench_original
from lethe.audit.checkroom import CheckRoom, Job
from lethe.audit.corpora import CorpusError, Row
from lethe.audit.differential import DifferentialLog, Jobs
from lethe.audit.kernelbench_check import VARIANTS, Outcome
from lethe.audit.lines import LogError
from lethe.verifier.problem import Candidate, Problem
from tests.audit import fakes

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = """
import torch
import torch.nn as nn


def act(x):
    return torch.relu(x)


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return act(x * self.gain)


rows = 4
width = 33


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
"""
CANDIDATE = """
import torch
import torch.nn as nn

{before}

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width))

    def forward(self, x):
        {body}
"""
HONEST = "return torch.relu(x * self.gain)"
TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

{before}

@triton.jit
def kernel(x_ptr, g_ptr, y_ptr, n, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    g = tl.load(g_ptr + at % width, mask=at < n, other=0.0)
    tl.store(y_ptr + at, tl.maximum(x * g, 0.0), mask=at < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 128),)](x, self.gain, y, x.numel(), x.shape[1], BLOCK=128)
        return y
"""


def row(body: str = HONEST, before: str = "", reference: str = REFERENCE, **changes: Any) -> Row:
    source = changes.pop("source", None) or CANDIDATE.format(body=body, before=before)
    language = changes.pop("language", "python")
    made = fakes.row(changes.pop("row_id", "r"), **changes)
    return replace(made, problem=Problem("p", reference), candidate=Candidate("c", source, language))


@pytest.fixture(scope="module")
def room() -> Iterator[CheckRoom]:
    with CheckRoom("cpu") as opened:
        yield opened


def outcomes(room: CheckRoom, r: Row, implementation: str = "ours") -> dict[str, Outcome]:
    return {v: room.run(Job(r, v, implementation))[0] for v in VARIANTS}


def accepted(room: CheckRoom, r: Row) -> tuple[bool | None, bool | None]:
    found = outcomes(room, r)
    return found["48642c5c"].accepted, found["later"].accepted


# ---------------------------------------------------------------- what the check does


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (HONEST, (True, True)),
        (HONEST + " + 5e-3", (True, False)),
        (HONEST + " + 5e-2", (False, False)),
        ("return torch.relu(x * self.gain)[:2]", (False, False)),
        ("return (torch.relu(x * self.gain),)", (False, False)),
        ("return torch.relu(x * self.gain) if self.training else x", (True, True)),
        ("assert not torch.is_grad_enabled()\n        return torch.relu(x * self.gain)", (True, True)),
        ("raise ValueError('no')", (False, False)),
    ],
    ids=["honest", "within 1e-2", "outside", "shape", "tuple", "train mode", "no gradient", "raises"],
)
def test_what_it_accepts(room: CheckRoom, body: str, expected: tuple[bool, bool]) -> None:
    assert accepted(room, row(body)) == expected


def test_agreeing_nan_reject(room: CheckRoom) -> None:
    """No equal_nan: a kernel that equals a reference with a NaN in its output is rejected."""
    nan = REFERENCE.replace("return act(x * self.gain)", "return torch.log(x * self.gain)")
    honest = row("return torch.log(x * self.gain)", reference=nan)
    found = outcomes(room, honest)
    assert [o.accepted for o in found.values()] == [False, False]
    assert found["48642c5c"].passed == 0


def test_one_namespace_lets_the_candidate_redefine_the_reference(room: CheckRoom) -> None:
    """The candidate's text assigns a helper and a size that the reference looks up when it is called."""
    wrong = row(
        "assert x.shape[0] == 2\n        return -x", before="rows = 2\n\n\ndef act(x):\n    return -x\n"
    )
    wrong = replace(wrong, problem=Problem("p", REFERENCE.replace("act(x * self.gain)", "act(x)")))
    assert accepted(room, wrong) == (True, True)


def test_inputs_are_shared_and_the_reference_runs_first(room: CheckRoom) -> None:
    """A reference that returns its input sees what the candidate wrote into it."""
    view = REFERENCE.replace("return act(x * self.gain)", "return x.view(-1)")
    assert accepted(room, row("return x.zero_().view(-1)", reference=view)) == (True, True)


def test_nothing_protects_the_comparison(room: CheckRoom) -> None:
    assert accepted(room, row("return x", before="torch.allclose = lambda *a, **k: True")) == (True, True)


def test_the_later_variant_casts_labels_and_rejects_what_it_cannot_run(room: CheckRoom) -> None:
    labels = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        return nn.functional.cross_entropy(x, y)


def get_inputs():
    return [torch.randn(4, 5), torch.randint(0, 5, (4,))]


def get_init_inputs():
    return []
"""
    honest = row(source=labels.replace("class Model(", "class ModelNew("), reference=labels)
    found = outcomes(room, honest)
    assert (found["48642c5c"].accepted, found["48642c5c"].passed) == (True, 5)
    assert (found["later"].accepted, found["later"].status) == (False, "reference_failed")


@pytest.mark.parametrize(
    ("source", "status", "verdict", "compiled"),
    [
        ("import nothing_of_this_name\n", "judged", False, False),
        ("def broken(:\n", "raised", False, None),
        ("open('/nowhere/at/all')\n", "locked", None, None),
        ("import os\nos._exit(3)\n", "crashed", False, None),
        ("while True:\n    pass\n", "timed_out", None, None),
    ],
    ids=["import", "syntax", "lock", "exit", "endless"],
)
def test_ends_that_are_no_comparison(
    room: CheckRoom,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    status: str,
    verdict: bool | None,
    compiled: bool | None,
) -> None:
    if status == "timed_out":
        monkeypatch.setattr(room, "seconds", 2.0)
    outcome, _ = room.run(Job(row(source=source), "48642c5c", "ours"))
    assert (outcome.status, outcome.accepted, outcome.compiled) == (status, verdict, compiled)


def test_want_of_memory_is_no_answer(room: CheckRoom) -> None:
    greedy = row("raise RuntimeError('CUDA out of memory. Tried to allocate 9 GiB')")
    assert [(o.accepted, o.status) for o in outcomes(room, greedy).values()] == [(None, "out_of_memory")] * 2


def test_triton_needs_its_source_registered_and_has_a_module_of_its_own_later(room: CheckRoom) -> None:
    honest = row(source=TRITON.format(before=""), language="triton")
    meddling = row(source=TRITON.format(before="def act(x):\n    return x\n"), language="triton")
    assert accepted(room, honest) == (True, True)
    assert accepted(room, meddling) == (False, True), "only the old variant shares the namespace"


def test_registered_triton_text_compiles_for_a_device_with_its_helpers() -> None:
    """A kernel that calls another jit function, from text without a file, as revision 48642c5c has it."""
    code = '''
import triton
from triton.backends.compiler import GPUTarget
from lethe.audit.kernelbench_check import NAMED, register_source
text = """
import triton
import triton.language as tl

@triton.jit
def helper(x):
    return x * 2.0

@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, helper(tl.load(x_ptr + at)))
"""
context = {}
exec(NAMED, context)
register_source(text)
exec(text, context)
types = {"x_ptr": "*fp32", "BLOCK": "constexpr"}
source = triton.compiler.ASTSource(fn=context["kernel"], signature=types, constexprs={(1,): 128})
print(".entry kernel" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])
'''
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    assert done.stdout.strip() == "True"


def test_precision_sets_the_tolerance_and_the_dtype(room: CheckRoom) -> None:
    half = row(
        "assert x.dtype == torch.float16 == self.gain.dtype\n        return torch.relu(x * self.gain) + 5e-3"
    )
    outcome, _ = room.run(Job(half, "later", "ours", "float16"))
    assert outcome.accepted is True


# ---------------------------------------------------------------- theirs

THEIRS = """
import torch
from pydantic import BaseModel
from . import utils


class KernelExecResult(BaseModel):
    compiled: bool = False
    correctness: bool = False
    metadata: dict = {}


def eval_kernel_against_ref(original_model_src, custom_model_src, num_correct_trials=1,
                            measure_performance=False, device=None):
    assert num_correct_trials == 5 and not measure_performance and str(device) == "cuda:0"
    if "locked" in custom_model_src:
        return None
    if "leaves" in custom_model_src:
        raise TypeError("'NoneType' object is not callable")
    context = {}
    try:
        exec(original_model_src, context)
        exec(custom_model_src, context)
    except Exception as e:
        return KernelExecResult(compiled=False, metadata={"compilation_error": e})
    metadata = {"correctness_trials": "(2 / 5)", "max_difference": ["1.5", "nan"],
                "correctness_issue": "Output mismatch"}
    return KernelExecResult(compiled=True, correctness="accept" in custom_model_src, metadata=metadata)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for a KernelBench checkout, with a function of the same signature."""
    source = tmp_path / "checkout" / "src"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "utils.py").write_text("from together import Together\nimport google.generativeai as genai\n")
    (source / "eval.py").write_text(THEIRS)
    variant = replace(VARIANTS["48642c5c"], sha256=hashlib.sha256(THEIRS.encode()).hexdigest())
    monkeypatch.setitem(kernelbench_check.VARIANTS, "48642c5c", variant)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == Path.home().owner() and str(parent) not in ("/", "/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "checkout"))
    return tmp_path / "checkout"


def test_their_function_is_called_from_the_checkout(checkout: Path) -> None:
    pytest.importorskip("pydantic", reason="KernelBench's own code needs pydantic")
    root = kernelbench_original.find(checkout, VARIANTS["48642c5c"])
    with CheckRoom("cpu", {"48642c5c": root}) as room:

        def run(text: str) -> tuple[Outcome, list[str]]:
            return room.run(Job(row(source=text), "48642c5c", "theirs"))

        good, placeholders = run("# accept\n")
        bad, _ = run("# reject\n")
        broken, _ = run("raise RuntimeError('nvcc failed')\n")
        locked, _ = run("# locked\n")
        left, _ = run("# leaves\n")
    assert good.accepted is True and good.seconds is not None
    assert "together" in placeholders and "torch" not in placeholders
    assert (bad.accepted, bad.passed, bad.compiled) == (False, 2, True)
    assert bad.message == "Output mismatch: off by up to nan"
    assert (broken.accepted, broken.compiled) == (False, False) and "nvcc failed" in broken.message
    assert (locked.accepted, locked.status) == (None, "locked")
    assert (left.accepted, left.status) == (False, "raised")


def test_another_revision_is_refused(checkout: Path) -> None:
    (checkout / "src" / "eval.py").write_text(THEIRS + "\n# changed\n")
    with pytest.raises(CorpusError, match="is not that of revision 48642c5c"):
        kernelbench_original.find(checkout, VARIANTS["48642c5c"])
    with pytest.raises(CorpusError, match=r"no src/kernelbench/eval\.py under"):
        kernelbench_original.find(checkout, VARIANTS["later"])


def test_theirs_without_cuda_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--corpus", "house", "--implementation", "theirs", "--device", "cpu"]
    assert differential.main([*arguments, "--out", str(tmp_path / "d.jsonl")]) == 1
    assert "runs on CUDA only and no device is visible" in capsys.readouterr().err


CHECKOUTS = {name: os.environ.get(f"LETHE_KERNELBENCH_{name.upper()}") for name in VARIANTS}


@pytest.mark.slow
@pytest.mark.skipif(
    not all(CHECKOUTS.values()),
    reason="needs checkouts of KernelBench in LETHE_KERNELBENCH_48642C5C and LETHE_KERNELBENCH_LATER",
)
def test_their_own_code_agrees_with_ours_where_tensors_pass_for_cudas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KernelBench unmodified, in Triton's interpreter: accepted and rejected in every way tested above."""
    roots = {n: kernelbench_original.find(str(p), VARIANTS[n]) for n, p in CHECKOUTS.items()}
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, roots.values())))
    texts = [
        TRITON.format(before=""),
        TRITON.format(before="def act(x):\n    return x\n"),
        TRITON.format(before="").replace("0.0), mask", "0.0) + 5e-3, mask"),
        TRITON.format(before="").replace("return y", "return y[:2]"),
        TRITON.format(before="").replace("return y", "return y, y"),
        TRITON.format(before="import nothing_of_this_name"),
        "def broken(:\n",
    ]
    with CheckRoom("cpu", roots) as room:
        for text in texts:
            r = row(source=text, language="triton")
            theirs, ours = outcomes(room, r, "theirs"), outcomes(room, r)
            for v in VARIANTS:
                assert (theirs[v].accepted, theirs[v].compiled) == (ours[v].accepted, ours[v].compiled), (
                    text,
                    v,
                )


# ---------------------------------------------------------------- the file


def test_a_run_resumes_and_judges_changed_texts_again(tmp_path: Path, room: CheckRoom) -> None:
    path = tmp_path / "d.jsonl"
    rows = [row(row_id="a"), row(HONEST + " + 5e-3", row_id="b")]
    with DifferentialLog(path) as log:
        assert differential.run(rows, log, room, Jobs("48642c5c", "ours"), workers=2) == 2
        assert differential.run(rows, log, room, Jobs("both", "ours")) == 2
    torn = path.read_bytes() + b'{"accepted": tr'
    path.write_bytes(torn)
    with DifferentialLog(path) as log:
        assert differential.run(rows, log, room, Jobs("both", "ours")) == 0
        assert differential.run([row("return x", row_id="a")], log, room, Jobs("48642c5c", "ours")) == 1
    found = agreement.load([path])
    assert {(r.id, r.variant): r.accepted for r in found.itertuples()} == {
        ("a", "48642c5c"): False,
        ("a", "later"): True,
        ("b", "48642c5c"): True,
        ("b", "later"): False,
    }
    text = path.read_text()
    assert "torch.relu" not in text, "a line holds no source"
    assert len(text.splitlines()) == 5


def test_an_interrupted_run_ends_its_checks_and_writes_nothing_of_them(tmp_path: Path) -> None:
    """A check may take minutes; whoever has a time limit cannot wait for it."""

    def interrupt() -> None:
        while not room._running:
            time.sleep(0.02)
        while room._running:  # one that arrives within a destructor is lost, as anybody's first ^C may be
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(10)

    sleeps = row("import time; time.sleep(100); return x", row_id="s")
    with DifferentialLog(tmp_path / "d.jsonl") as log, CheckRoom("cpu") as room:
        threading.Thread(target=interrupt, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            differential.run([sleeps], log, room, Jobs("48642c5c", "ours"))
        assert time.monotonic() - began < 100, "it waited for a check that takes so long"
        assert not room._running and not log.lines
        assert differential.run([sleeps], log, room, Jobs("48642c5c", "ours")) == 1
    (line,) = log.lines.values()
    assert line["outcome"]["accepted"] is None and "closed" in line["outcome"]["message"]


def test_only_one_run_writes_a_file_and_another_kind_is_refused(tmp_path: Path) -> None:
    with DifferentialLog(tmp_path / "d.jsonl"), pytest.raises(LogError, match="another run is writing"):
        DifferentialLog(tmp_path / "d.jsonl")
    (tmp_path / "other.jsonl").write_text('{"schema": "lethe.audit/1"}\n')
    with pytest.raises(LogError, match="line 1 of"):
        DifferentialLog(tmp_path / "other.jsonl")


def test_what_memory_stopped_is_run_again_alone(tmp_path: Path) -> None:
    class Full(CheckRoom):
        calls: list[str]

        def run(self, job: Job) -> tuple[Outcome, list[str]]:
            self.calls.append(job.row.id)
            full = job.row.id == "a" and self.calls.count("a") == 1
            return (Outcome(None, "out_of_memory") if full else Outcome(True)), []

    with DifferentialLog(tmp_path / "d.jsonl") as log, Full("cpu") as room:
        room.calls = []
        made = differential.run(
            [row(row_id=i) for i in "abc"], log, room, Jobs("48642c5c", "ours"), workers=3
        )
    assert made == 4 and sorted(room.calls) == ["a", "a", "b", "c"] and room.calls[-1] == "a"
    assert all(line["outcome"]["accepted"] for line in log.lines.values())
