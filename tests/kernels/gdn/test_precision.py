"""The precision plan: it holds the pins where the narrower one does not, and it does not depend on units."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from lethe import provenance
from lethe.evidence.gdn_precision import RECORD, Case, draw, emulate, errors, oracle, table
from lethe.kernels.gdn import cost
from lethe.kernels.gdn.precision import CHOSEN, PINS, PLANS, ROUNDOFF, power_for, round_to

SCALE = 128**-0.5
CASES = (
    Case("gdn2", "strong", "silu", dv=64, length=150, heads=1),
    Case("kda", "none", "silu", dv=128, length=150, heads=1),
    Case("gdn2", "unit", dv=64, io="fp16", length=150, heads=1),
)


def errors_of(case, plan):
    x = draw(case)
    return errors(x, oracle(x, SCALE), plan.rounding, SCALE)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.member}-{c.gate}-{c.io}")
def test_the_chosen_plan_holds_the_tighter_pin(case):
    """Half of 1e-3 is room for the larger maxima of longer inputs (2,048 tokens: see the record)."""
    assert max(errors_of(case, CHOSEN).values()) < 0.8 * PINS["fp16"]


def test_the_narrowest_plan_costs_several_times_the_accuracy():
    case = CASES[0]
    assert max(errors_of(case, PLANS[0]).values()) > 4 * max(errors_of(case, CHOSEN).values())


def test_float16_without_powers_or_tf32_fails_under_strong_decay():
    plain = next(plan for plan in PLANS if plan.name == "fp16")
    assert max(errors_of(CASES[0], plain).values()) == float("inf")


@pytest.mark.parametrize("log2", [-40, 30])
def test_gradients_of_any_size_are_as_accurate(log2):
    """dO and the final state's gradient scaled by a power of two scale every gradient by it, bit for bit."""
    x = draw(CASES[0])
    one = emulate(x, SCALE, CHOSEN.rounding)
    scaled = {n: t * 2.0**log2 if n in ("do", "dfinal") else t for n, t in x.items()}
    for name, gradient in emulate(scaled, SCALE, CHOSEN.rounding).items():
        assert torch.equal(gradient, one[name] * 2.0**log2), name


def test_values_of_any_size_are_as_accurate():
    """v and the initial state scaled up leave dv's bits alone and scale those of dq, dk, dg, db, dw."""
    x = draw(CASES[0])
    one = emulate(x, SCALE, CHOSEN.rounding)
    scaled = {n: t * 2.0**20 if n in ("v", "initial_state") else t for n, t in x.items()}
    for name, gradient in emulate(scaled, SCALE, CHOSEN.rounding).items():
        unchanged = name in ("v", "initial_state")
        assert torch.equal(gradient, one[name] * (1.0 if unchanged else 2.0**20)), name


@pytest.mark.parametrize("form", ["tf32", "fp16", "bf16", "bf16x2"])
def test_formats_round_by_their_roundoff(form):
    r = torch.Generator().manual_seed(0)
    x = torch.rand(64, 64, generator=r) + 0.5
    error = ((round_to(x, form).double() - x.double()) / x.double()).abs().max()
    assert 0.5 * ROUNDOFF[form] < error <= ROUNDOFF[form]


def test_nan_and_infinity_pass_every_format():
    x = torch.tensor([[float("nan"), 1.0], [float("inf"), -2.0]])
    for form in ("fp32", "tf32", "fp16", "bf16"):
        y = round_to(x, form)
        assert torch.isnan(y[0, 0]) and y[1, 0] == float("inf"), form


def test_powers_put_the_largest_value_below_the_target():
    largest = torch.tensor([1.0, 0.99, 3e-9, 7e8])
    found = torch.ldexp(largest, power_for(largest, 8))
    assert ((found >= 2.0**7) & (found < 2.0**8)).all()


def test_the_design_quotes_the_cost_model():
    """Bytes, megabytes, microseconds and tensor clocks of DESIGN.md are those of `cost`."""
    text = (Path(cost.__file__).parent / "DESIGN.md").read_text()
    chunks, bandwidth = 1024, 4.3e12
    for stage, size in cost.traffic().items():
        row = next(line for line in text.splitlines() if re.match(rf"\| {stage} \| [\d,]+ \|", line))
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert cells[1] == f"{size:,}"
        assert cells[2] == f"{size * chunks / 1e6:.1f}"
        assert cells[3] == f"{size * chunks / bandwidth * 1e6:.1f} us"
        if stage != "scan":
            assert cells[4] == f"{cost.tensor_work()[stage] / 2048:,.0f}"


def test_a_table_has_every_plan_and_marks_what_is_not_finite():
    row = {"plan": "fp16", "io": "bf16", "errors": {"q": 1e-4, "k": None}}
    found = {
        r["plan"]: r for r in table([row, {**row, "plan": "bf16", "errors": {"q": 1e-4, "k": 4e-3}}], "bf16")
    }
    assert set(found) == {plan.name for plan in PLANS}
    assert found["fp16"]["k"] is None and not found["fp16"]["holds"]
    assert found["bf16"]["worst"] == 4e-3 and found["bf16"]["holds"]


def test_the_record_says_that_the_chosen_plan_is_the_cheapest_that_holds():
    """Cheapest in what bounds the kernels: bytes between stages first, products second."""
    samples = provenance.load(RECORD).samples
    for io in PINS:
        holding = [r for r in table(samples, io) if r["holds"] and r["plan"] != "fp16"]
        assert min(holding, key=lambda r: (r["handed"], r["mmac"]))["plan"] == CHOSEN.name
