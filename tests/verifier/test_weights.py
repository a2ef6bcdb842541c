"""How a candidate comes to the reference's weights."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from lethe.verifier import weights
from lethe.verifier.weights import align

State = dict[str, Tensor]


@dataclass
class Built:
    state: State


def seeded(seed: int = 0, bias: bool = True) -> State:
    torch.manual_seed(seed)
    return {n: t.detach() for n, t in nn.Linear(6, 4, bias=bias).state_dict().items()}


REFERENCE = seeded()
OTHER = seeded(1)
TRIVIAL = {"norm.weight": torch.ones(4), "norm.steps": torch.tensor(0)}

CASES = {
    "neither holds any": ({}, {}, "none"),
    "only the candidate holds some": ({}, {"table": torch.rand(3)}, "none"),
    "identical": (REFERENCE, REFERENCE, "seeded"),
    "another name": (REFERENCE, {"w": REFERENCE["weight"], "b": REFERENCE["bias"]}, "seeded"),
    "transposed": (
        REFERENCE,
        {"weight_t": REFERENCE["weight"].T.contiguous(), "bias": REFERENCE["bias"]},
        "seeded",
    ),
    "transposed under the same name": (
        REFERENCE,
        {**REFERENCE, "weight": REFERENCE["weight"].T.contiguous()},
        "seeded",
    ),
    "half precision copy": (REFERENCE, {n: t.half() for n, t in REFERENCE.items()}, "seeded"),
    "constant tensors may be missing": ({**REFERENCE, **TRIVIAL}, REFERENCE, "seeded"),
    "derived tensors beside equal ones": (
        REFERENCE,
        {**REFERENCE, "packed": REFERENCE["weight"] * 2},
        "seeded",
    ),
    "other values": (REFERENCE, OTHER, "copied"),
    "a constant differs": ({"gain": torch.ones(4)}, {"gain": torch.zeros(4)}, "copied"),
    "other values and a constant extra": (REFERENCE, {**OTHER, "scratch": torch.zeros(9)}, "copied"),
}


@pytest.mark.parametrize(("reference", "candidate", "how"), CASES.values(), ids=CASES)
def test_alignment(reference: State, candidate: State, how: str) -> None:
    found = align(reference, Built(candidate))
    assert found.how == how and found.reason == ""
    if how == "copied":
        assert all(
            torch.equal(t, reference[n]) and candidate[n].shape == t.shape for n, t in found.state.items()
        )
        assert set(found.state) == set(reference)
    else:
        assert found.state == {}


AMBIGUOUS = {
    "names differ": (
        REFERENCE,
        {"w": OTHER["weight"], "b": OTHER["bias"]},
        "no tensor of the candidate holds the values of weight",
    ),
    "nothing held": (REFERENCE, {}, r"\(it holds no tensors\)"),
    "a bias is missing": (REFERENCE, seeded(1, bias=False), "values of bias"),
    "shape that would broadcast": (
        {"scale": torch.rand(4, 1)},
        {"scale": torch.rand(1, 4)},
        r"scale has shape \(1, 4\), the reference's has \(4, 1\)",
    ),
    "derived buffer would go stale": (
        REFERENCE,
        {**OTHER, "packed": OTHER["weight"] * 2},
        "could leave packed, .* stale",
    ),
}


@pytest.mark.parametrize(("reference", "candidate", "reason"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_is_ambiguous_is_not_audited(reference: State, candidate: State, reason: str) -> None:
    found = align(reference, Built(candidate))
    assert found.how == "not_auditable" and not found.state
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reason)


def test_an_extra_that_does_not_depend_on_the_seed_stays() -> None:
    table = torch.arange(9.0)
    built, again = Built({**OTHER, "table": table}), Built({**seeded(2), "table": table.clone()})
    assert align(REFERENCE, built).how == "not_auditable"
    assert align(REFERENCE, built, again).how == "copied"
    moved = Built({**seeded(2), "table": table + 1})
    assert align(REFERENCE, built, moved).how == "not_auditable"


def test_two_equal_tensors_are_matched_one_to_one() -> None:
    w = torch.rand(3, 3)
    reference = {"a": w, "b": w.clone()}
    assert align(reference, Built({"x": w.clone(), "y": w.clone()})).how == "seeded"
    assert align(reference, Built({"x": w.clone()})).how == "not_auditable"


def test_regular_parameters_count_as_what_no_seed_moves():
    module = torch.nn.Module()
    steps = torch.log(torch.arange(1.0, 17.0))
    module.A_log = torch.nn.Parameter(steps.repeat(5, 1))
    module.head = torch.nn.Parameter(steps.clone())
    module.frozen = torch.nn.Parameter(steps.clone(), requires_grad=False)
    module.drawn = torch.nn.Parameter(torch.randn(5, 16))
    module.register_buffer("frequencies", steps.clone())
    module.register_buffer("mask", torch.ones(4, 4).tril())
    assert weights.uniform_names(module) == ["A_log", "head"]
    weights.vary_uniform(module, 0)
    assert not torch.equal(module.A_log[0], module.A_log[1]) and not torch.equal(module.head, steps)
    assert torch.equal(module.frozen, steps) and torch.equal(module.frequencies, steps)
