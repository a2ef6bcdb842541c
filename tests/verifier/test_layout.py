"""Strides, storage offsets and gaps reach the candidate, whatever device and dtype lie in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from lethe.verifier import inputs, layout, minimise_values
from lethe.verifier.counterexample_text import Inputs
from lethe.verifier.docket import Docket, cast_floating
from lethe.verifier.problem import Candidate, load_problem
from lethe.verifier.server import SuspectServer
from lethe.verifier.settings import Settings
from lethe.verifier.trial import Trial
from tests.verifier.problem_sources import rows

HEAD = "import torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
TELLS = HEAD + "        return x.clone(), torch.tensor([*x.stride(), x.data_ptr() % 64])\n"

LAYOUTS = {name: made[0] for name, made in inputs.layouts([torch.randn(6, 8)])}
LAYOUTS |= {
    "expanded": torch.randn(1, 8).expand(6, 8),
    "overlapping windows": torch.randn(13).as_strided((6, 8), (1, 1)),
    "far into its storage": torch.randn(200, 8)[129:135],
    "a column": torch.randn(6, 9)[:, 1:9:8],
    "empty": torch.randn(6, 8)[:0],
}


@pytest.fixture(scope="module")
def server() -> Iterator[SuspectServer]:
    torch.set_num_threads(1)
    with SuspectServer() as s:
        yield s


@pytest.fixture
def as_from_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving to the host copies here too, as it does from a GPU: gaps and offset are lost."""
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_copy_keeps_the_layout_and_the_gaps(name: str, dtype: torch.dtype) -> None:
    t = LAYOUTS[name]
    made = layout.copied(t, dtype=dtype, device="cpu")
    assert made.stride() == t.stride() and made.shape == t.shape and made.dtype == dtype
    assert layout.lead(made) == layout.lead(t) == t.storage_offset() % 1024
    assert torch.equal(made, t.to(dtype))
    assert made.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()
    if name in ("sliced", "padded"):
        reach = made.as_strided(((t.stride(0) * 5 + 8),), (1,))
        assert reach.isnan().any(), "what lies between the elements is copied too"
    assert cast_floating([t], "float16")[0].stride() == t.stride()


@pytest.mark.parametrize("name", [n for n in LAYOUTS if n != "empty"])
def test_a_case_drawn_on_a_device_reaches_the_candidate_in_its_layout(
    server: SuspectServer, tmp_path, as_from_a_device, name: str
) -> None:
    problem = load_problem(rows("torch.randn(6, 8)", "x * 2"))
    docket = Docket(problem, Settings(executor="cpu"))
    base, t = docket.case("normal", 0), LAYOUTS[name]
    case = docket.derived(base, f"layout:{name}", "layout", lambda: [t])
    docket.settings = replace(docket.settings, executor="cuda")
    trial = Trial(docket, Candidate("tells", TELLS, "python"), server, Settings(executor="cpu"), tmp_path)
    try:
        values, told = trial.run(case)[0].outputs
    finally:
        trial.close()
    assert torch.equal(values, t)
    assert told.tolist() == [*t.stride(), layout.lead(t) * 4 % 64]


@pytest.mark.parametrize("guard", [True, False])
def test_the_zone_around_an_input_that_begins_off_a_page_is_watched(server: SuspectServer, guard) -> None:
    body = "        ctypes.memset(x.data_ptr() - 4, 1, 4)\n        return x + x.storage_offset()\n"
    source = "import ctypes\n" + HEAD + body
    with server.spawn(Candidate("writes", source, "python"), executor="cpu", limits=_limits()) as suspect:
        suspect.load()
        suspect.build([], 0)
        (report,) = suspect.run([torch.zeros(9)[3:]], guard=guard)
    assert report.overrun == (["input:0: 4 bytes before its start"] if guard else [])
    assert int(report.outputs[0]) % 1024 == 3


@pytest.mark.parametrize("name", ["transposed", "sliced", "padded", "offset", "expanded"])
def test_a_script_lays_its_inputs_out_alike(as_from_a_device, name: str) -> None:
    from lethe.verifier import counterexample_body

    t = LAYOUTS[name]
    lines = Inputs([t], [], 0).lines
    space = dict(vars(counterexample_body))
    exec("def make():\n" + "\n".join(f"    {line}" for text in lines for line in text.splitlines()), space)
    (made,) = space["make"]()
    assert torch.equal(made, t) and made.stride() == t.stride() and layout.lead(made) == layout.lead(t)


def _limits():
    from lethe.verifier.custody import Limits

    return Limits(cpu_seconds=60, wall_seconds=30.0, memory_bytes=2 << 30)


def test_other_values_leave_an_expanded_layout() -> None:
    like = torch.randn(1, 8).expand(6, 8)
    values = torch.arange(48.0).reshape(6, 8)
    assert torch.equal(minimise_values._laid_out(values, like), values)
