"""What the red team taught the verifier: each gap that a cheat went through, and the innocent beside it."""

from __future__ import annotations

import pytest

from lethe.evidence.redteam import load
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.verdict import GateStatus, Verdict

CORPUS = load(cuda=False)


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


def judged(judge: Judge, row_id: str, gates: list[str]) -> Verdict:
    row = CORPUS.get(row_id)
    return judge.verify(row.problem, row.candidate, gates=gates)


def mechanisms(v: Verdict, gate: str) -> set[str]:
    return {f.mechanism for f in v.gate(gate).findings}


def probes(v: Verdict) -> set[str]:
    return {f.mechanism for f in v.integrity}


def test_a_reused_buffer_shows_after_another_gate_saw_the_later_call(judge):
    """ORD-02's later call on other inputs was answered from memory when CMP-01 had asked for it before."""
    v = judged(judge, "buffer_aliasing/scale", ["CMP-01", "ORD-02"])
    assert v.failed == ("ORD-02",) and "aliasing" in mechanisms(v, "ORD-02")


@pytest.mark.parametrize("memo", ["caches_by_identity", "caches_by_pointer_and_sum"])
def test_an_answer_remembered_by_its_tensor_is_stale(judge, memo):
    """Fresh tensors for each call never showed it; static buffers are how kernels are called."""
    v = judged(judge, f"{memo}/row_sum", ["ORD-02"])
    assert "stale" in mechanisms(v, "ORD-02")
    assert judged(judge, f"{memo}/row_sum/honest", ["ORD-02"]).clean


def test_a_cache_of_another_kind_is_honest(judge):
    """Keeping what depends on shapes alone is no memo of an answer."""
    row = CORPUS.get("returns_cached/scale")
    source = row.candidate.source.replace(
        "if 'y' not in KEPT:\n            KEPT['y'] = (x * 1.5)\n        return KEPT['y'].clone()",
        "factor = KEPT.setdefault(x.shape, torch.full_like(x, 1.5))\n        return x * factor",
    )
    assert "factor" in source
    assert judge.verify(row.problem, load_candidate(source), gates=["ORD-02"]).clean


def test_a_rare_race_shows_in_many_repeats(judge):
    """A last element that is lost once in 16 calls: twelve repeats miss it nearly every second time."""
    v = judged(judge, "rare_race/scale", ["ORD-02"])
    assert mechanisms(v, "ORD-02") == {"nondeterministic"}


@pytest.mark.parametrize("operator", ["scale", "softmax", "row_sum"])
def test_nan_on_subnormals_is_charged_to_every_operator(judge, operator):
    v = judged(judge, f"nan_on_subnormal/{operator}", ["EXC-02"])
    assert "minted" in mechanisms(v, "EXC-02")


def test_a_nan_that_a_flush_of_the_inputs_explains_is_not_charged(judge):
    """x log x is 0 * -inf on a device that flushes its inputs: rule 14 forgives the flush, and so the NaN."""
    reference = load_problem(
        "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return x * torch.log(x)\n\nrows = 12\nwidth = 64\n\ndef get_inputs():\n"
        "    return [torch.randn(rows, width).abs() + 0.1]\n\ndef get_init_inputs():\n    return []\n"
    )
    flushing = (
        "import torch\nimport torch.nn as nn\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
        "        x = torch.where(x.abs() < 2.0**-126, torch.zeros_like(x), x)\n"
        "        return x * torch.log(x)\n"
    )
    v = judge.verify(reference, load_candidate(flushing), gates=["EXC-02"])
    assert v.gate("EXC-02").status is not GateStatus.FAIL, v.gate("EXC-02")


@pytest.mark.parametrize("operator", ["scale", "row_sum"])
def test_what_goes_wrong_beyond_three_thousand_columns_is_found(judge, operator):
    assert judged(judge, f"wrong_when_wide/{operator}", ["CMP-03"]).failed == ("CMP-03",)


def test_a_decoy_is_told_from_a_kernel_by_what_depends_on_it(judge):
    empty = judged(judge, "side_channel_no_op/softmax", ["RES-01"])
    one_row = judged(judge, "decoy_kernel/softmax", ["RES-01"])
    assert probes(empty) == probes(one_row) == {"decoy"}
    assert empty.integrity[0].metric == 0.0
    assert one_row.integrity[0].metric == pytest.approx(1 / 24)
    assert judged(judge, "decoy_kernel/softmax/honest", ["RES-01"]).clean


def test_a_tail_left_to_torch_is_no_decoy(judge):
    row = CORPUS.get("decoy_kernel/softmax")
    source = row.candidate.source.replace("launch(x[:1])", "launch(x[:-3])").replace("x[1:]", "x[-3:]")
    assert judge.verify(row.problem, load_candidate(source), gates=["RES-01"]).clean


def test_a_kernel_that_stores_what_was_there_already_is_no_decoy(judge):
    """In place on a copy: most of what it stores equals what it found."""
    row = CORPUS.get("decoy_kernel/scale")
    reference = load_problem(row.problem.source.replace("x * 1.5", "x.clamp(-3, 3)"), "clamp")
    source = (
        row.candidate.source.replace("x * 1.5, mask", "tl.minimum(tl.maximum(x, -3.0), 3.0), mask")
        .replace("y = torch.empty_like(x)", "y = x.clone()")
        .replace(
            "kernel[(triton.cdiv(x.numel(), 1024),)](x, y", "kernel[(triton.cdiv(x.numel(), 1024),)](y, y"
        )
    )
    start = source.index("        return torch.cat")
    v = judge.verify(
        reference, load_candidate(source[:start] + "        return launch(x)\n"), gates=["CMP-03"]
    )
    assert v.clean and not v.integrity, v.message


def test_reads_past_the_end_are_found_though_every_value_is_right(judge):
    for operator in ("scale", "softmax", "row_sum", "matmul"):
        v = judged(judge, f"reads_past_the_end/{operator}", ["RES-01"])
        assert probes(v) == {"out_of_bounds_read"} and not v.failed, operator


def test_a_slice_of_one_element_travels_whatever_its_stride(judge):
    """``view`` refused a length-1 tensor of stride 512, and the candidate was charged with refusing it."""
    row = CORPUS.get("returns_input/row_sum")
    source = row.candidate.source.replace("return x[:, 0]", "return x.cumsum(1)[:, -1]")
    assert "cumsum" in source
    v = judge.verify(row.problem, load_candidate(source), gates=["CMP-03"])
    assert v.clean, v.gate("CMP-03").findings
