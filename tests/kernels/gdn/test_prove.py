"""Kernels that no GPU of their kind has run: ``auto`` takes them where they were shown to be right."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from lethe.kernels.gdn import cute_sm100, dispatch, prove, torch_path
from lethe.kernels.gdn.architecture import SM100
from lethe.kernels.gdn.native import Kind, kind_of
from tests.kernels.gdn.test_dispatch import arguments, machine  # noqa: F401

KIND = Kind("bfloat16", 128, 64, "none", "none", "none", packed=False)
"""Of `arguments`."""


def kept(device="a GPU", passed=True, sources=None) -> None:
    """An outcome as `prove` leaves it."""
    row = {"kind": vars(KIND), "passed": passed}
    found = {"device": device, "sources": sources or prove.sources(SM100), "rows": [row]}
    prove.file(SM100).parent.mkdir(parents=True, exist_ok=True)
    prove.file(SM100).write_text(json.dumps(found))
    prove.proven.cache_clear()


def test_auto_warns_and_says_how_to_get_them(machine):  # noqa: F811
    machine((10, 0))
    a = arguments()
    choice = dispatch.choose(a, "auto")
    assert choice.backend == "torch" and "python -m lethe.kernels.gdn.prove" in str(choice)
    with pytest.warns(UserWarning, match="not been shown to be right on this GPU"):
        dispatch.warn_if_slow(choice, a)
    for asked in ("cute", "cute_sm100"):
        assert dispatch.choose(a, asked).backend == "cute_sm100"


def test_auto_takes_what_was_proven_on_this_gpu_from_these_sources(machine):  # noqa: F811
    machine((10, 0))
    kept()
    assert dispatch.choose(arguments(), "auto").backend == "cute_sm100"
    assert dispatch.choose(arguments(torch.float16), "auto").backend == "torch"
    for other in ({"device": "another"}, {"passed": False}, {"sources": "of yesterday"}):
        kept(**other)
        assert dispatch.choose(arguments(), "auto").backend == "torch", other


def test_an_outcome_that_cannot_be_read_proves_nothing(machine):  # noqa: F811
    machine((10, 0))
    kept()
    prove.file(SM100).write_text("{")
    prove.proven.cache_clear()
    assert dispatch.choose(arguments(), "auto").backend == "torch"


def test_every_kind_of_call_is_tried():
    tried = list(prove.kinds())
    assert len(set(tried)) == len(tried) == 2 * 7 * 2 * 2
    for kind in (tried[0], tried[-1]):
        assert kind_of(prove.draw(kind, "cpu")[0]) == kind


class Wrong:
    """The torch backend, with one gradient of another sign, or other bits the second time."""

    def __init__(self, how: str):
        self.how, self.calls = how, 0

    def forward(self, a, save):
        return torch_path.forward(a, save)

    def backward(self, a, do, dfinal, saved):
        self.calls += 1
        found = torch_path.backward(a, do, dfinal, saved)
        if self.how == "sign":
            found["w"] = -found["w"]
        if self.how == "bits" and self.calls == 2:
            found["q"] = found["q"] * (1 + 2**-7)
        return found


@pytest.mark.parametrize(("how", "passed"), [("right", True), ("sign", False), ("bits", False)])
def test_what_is_wrong_is_not_proven(how, passed):
    row = prove.outcome(Kind("float16", 128, 64, "head", "channel", "channel", True), Wrong(how), "cpu")
    assert row["passed"] is passed and row["same_bits"] is (how != "bits")
    assert len(row["errors"]) == 9


@pytest.mark.parametrize(
    ("program", "why"),
    [("", ""), ("import time; time.sleep(60)", "no answer within 1 s"), ("exit(7)", "status 7")],
    ids=["ends", "hangs", "dies"],
)
def test_a_child_that_hangs_or_dies_proves_nothing(program, why, machine):  # noqa: F811
    machine((10, 0))
    line = json.dumps({"kind": vars(KIND), "passed": True})
    command = [sys.executable, "-c", f"print({line!r}, flush=True); {program}"]
    rows, said = prove.prove("cute_sm100", 10.0 if not program or "exit" in program else 1.0, command)
    assert len(rows) == 1 and why in said and bool(said) == bool(why)
    expected = "torch" if why else "cute_sm100"
    assert dispatch.choose(arguments(), "auto").backend == expected
    assert cute_sm100.BACKEND.architecture is SM100


def test_without_such_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert prove.main([]) == 2
    assert capsys.readouterr().out.strip() == (
        "cute_sm100 needs a GPU of compute capability 10.0; there is none"
    )
