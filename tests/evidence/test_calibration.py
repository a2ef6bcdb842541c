"""Calibration: the search for an onset, the dial of error, and rows measured through the real judge."""

from __future__ import annotations

import json
import math

import pytest
import torch

from lethe.evidence.calibration import carry, measure, run
from lethe.evidence.calibration.measure import GATES, THIN, UNIT, Bench, margins
from lethe.evidence.calibration.operators import BY_NAME, CARRY, INJECTED, OPERATORS, TILE
from lethe.evidence.calibration.search import CEILING, WIDTH, Probe, largest, onset
from lethe.verifier.docket import Docket
from lethe.verifier.judge import Judge
from lethe.verifier.precision import rounded
from lethe.verifier.problem import instantiate
from lethe.verifier.settings import Settings
from lethe.verifier.tolerance import paper_bound


def names(operators=OPERATORS):
    return [pytest.param(o, id=o.name) for o in operators]


class TestSearch:
    @pytest.mark.parametrize("true", [3e-7, 1e-4, 0.02, 40.0])
    def test_the_onset_is_bracketed_with_and_without_a_ratio(self, true):
        for told in (True, False):
            calls = []

            def check(eps, told=told, calls=calls):
                calls.append(eps)
                return Probe(eps > true, math.hypot(0.1, eps / true) if told else None)

            found = onset(check)
            assert found.amount is not None and true < found.amount <= WIDTH * true
            assert found.passes <= true and found.probes == len(calls)

    def test_a_ratio_saves_probes(self):
        def count(told):
            return onset(lambda e: Probe(e > 7e-6, e / 7e-6 if told else None)).probes

        assert count(True) <= 4 < count(False)

    def test_a_misleading_ratio_is_survived(self):
        found = onset(lambda e: Probe(e > 1e-5, 1e6))
        assert found.amount is not None and 1e-5 < found.amount <= 1e-5 * WIDTH

    def test_what_is_never_seen_has_no_onset(self):
        seen = []
        found = onset(lambda e: Probe(bool(seen.append(e))))
        assert found.amount is None and max(seen) == CEILING == found.passes

    @pytest.mark.parametrize("true", [2, 9, 23])
    def test_the_largest_failing_number(self, true):
        assert largest(lambda n: n <= true, 2, 23) == true

    def test_no_failing_number(self):
        assert largest(lambda n: False, 2, 23) is None


class TestDial:
    @pytest.mark.parametrize("operator", names())
    def test_the_honest_kernel_is_another_way_to_the_same_result(self, operator):
        instance = instantiate(operator.problem(), seed=measure_seed())
        inputs = instance.draw(1)
        with torch.no_grad():
            expected = instance.module(*inputs)
        got = measure._output(operator.candidate(), operator, inputs)
        assert got.shape == expected.shape and got.dtype == expected.dtype
        # a slip in the formula, not rounding: the gates' own bands judge the same kernel in the rows below
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert operator.name == "exp" or not torch.equal(got, expected)

    @pytest.mark.parametrize("pattern", INJECTED)
    def test_an_injected_error_has_its_size_and_its_place(self, pattern):
        operator = BY_NAME["gelu"]
        inputs = instantiate(operator.problem()).draw(0)
        right, wrong = (
            measure._output(operator.candidate(e, pattern), operator, inputs) for e in (0.0, 1e-2)
        )
        relative = ((wrong.double() - right.double()) / right.double()).flatten()
        touched = relative.abs() > 1e-3
        torch.testing.assert_close(
            relative[touched].abs(), torch.full((int(touched.sum()),), 1e-2).double(), rtol=1e-4, atol=0
        )
        share = {"uniform": right.numel(), "random_sign": right.numel(), "element": 1, "tile": TILE}
        assert int(touched.sum()) == share[pattern]
        if pattern == "random_sign":
            assert 0.4 < float((relative > 0).double().mean()) < 0.6

    def test_a_narrow_carry_rounds_as_the_verifier_does(self):
        space = {}
        exec(BY_NAME["row_sum"].candidate(bits=11).source, space)
        x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
        assert torch.equal(space["carry"](x).double(), rounded(x.double(), "tf32"))

    def test_only_accumulators_have_a_carry(self):
        assert all((CARRY in o.patterns) == o.accumulates for o in OPERATORS)

    def test_sizes_can_be_replaced(self):
        assert instantiate(BY_NAME["row_sum"].problem(width=77)).draw(0)[0].shape == (48, 77)


def measure_seed() -> int:
    from lethe.audit.acceptance import SEED

    return SEED


class TestMargins:
    def test_thin_is_said(self):
        wide = margins(0.1, {"threshold": 1e-5, "onset": 1e-5})
        assert wide["below"] == pytest.approx(10) and wide["above"] == pytest.approx(10) and not wide["thin"]
        assert margins(0.6, {"threshold": 1e-5, "onset": 1e-5})["thin"]
        assert margins(0.01, {"threshold": 1e-5, "onset": 1.5e-7})["thin"]

    def test_an_exact_kernel_has_no_noise_and_no_ratio_to_it(self):
        found = margins(0.0, {"threshold": 1e-5, "onset": UNIT})
        assert found["below"] is None and found["above"] is None and found["onset_units"] == 1.0


class TestKernelBench:
    def test_the_first_rejected_error_is_that_of_allclose(self):
        """|eps y| > tol + tol |y| first at the largest |y| of five trials."""
        operator = BY_NAME["row_sum"]
        largest_output = max(float(e.abs().max()) for _, e in measure._trials(operator))
        for tol in (1e-2, 1e-4):
            found = measure.accepted_up_to(operator, "uniform", tol)
            assert found == pytest.approx(tol * (1 + 1 / largest_output), rel=WIDTH - 1)


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


class TestRows:
    def bench(self, judge, name):
        return Bench(judge, BY_NAME[name], BY_NAME[name].problem())

    def test_a_row_of_a_band_gate(self, judge):
        row = measure.row(self.bench(judge, "row_sum"), "ORD-01", "uniform")
        assert row["status"] == "measured" and 0 < row["noise"] < 1 / THIN and not row["thin"]
        assert row["noise_error"] < row["threshold"] and row["below"] > THIN and row["above"] > THIN
        # with one factor on every element, the tightest relative bound is where the gate tips
        assert row["onset"] == pytest.approx(row["threshold"], rel=0.15)
        assert row["kernelbench"]["0.01"] > row["kernelbench"]["0.0001"] > row["onset"]

    def test_the_tolerance_free_check_of_a_band_gate_comes_first(self, judge):
        """Exact integers: a linear operator may not be off by a single spacing."""
        row = measure.row(self.bench(judge, "row_sum"), "CMP-01", "uniform")
        assert row["exact_onset"] < 2 * UNIT < row["onset"] and row["mechanism"] == "value"

    @pytest.mark.slow
    def test_a_carry_of_half_precision_is_seen_by_the_accumulator_gate(self, judge):
        row = measure.row(self.bench(judge, "row_sum"), "PRC-02", CARRY)
        assert row["bits"] >= 11 and row["onset"] == 2.0 ** -row["bits"] and row["above"] > THIN

    def test_a_gate_that_does_not_apply_says_so(self, judge):
        row = measure.row(self.bench(judge, "exp"), "ORD-01", "uniform")
        assert row["status"] == "not_applicable" and row["reason"] == "not_a_reduction"

    def test_a_rejected_honest_kernel_is_a_row_and_not_a_crash(self):
        def reject():
            raise measure.CalibrationError("rejected")

        assert measure.each(reject) == {"status": "rejected", "reason": "rejected"}


class TestCarrySweep:
    @pytest.mark.parametrize("name", ["row_sum", "matmul", "scan"])
    @pytest.mark.parametrize("length", [64, 512])
    def test_narrow_carries_stand_clear_of_a_wide_one(self, name, length):
        row = carry.row(name, length)
        assert row["status"] == "measured" and not row["thin"]
        assert row["noise_error"] < row["threshold"] < min(row["levels"][k] for k in carry.NARROW)
        # bfloat16 has 8 significant bits, float16 11: a factor of 8 between their carries
        assert 4 < row["separation"]["bfloat16"] / row["separation"]["float16"] < 16

    def test_the_error_of_a_carry_that_is_rounded_after_each_term_grows_with_the_length(self):
        short, long = (carry.row("row_sum", n)["per_term"]["float16"] for n in (64, 1024))
        assert long > 4 * short

    def test_the_model_of_a_narrow_carry_is_the_carry(self):
        row = carry.row("row_sum", 512)
        for kind in carry.NARROW:
            assert row["levels"][kind] == pytest.approx(row["modelled"][kind], rel=0.05)


class TestRun:
    @pytest.fixture
    def fake(self, monkeypatch):
        measured = []

        def rows(wanted, device="cpu", *, quick=False):
            for p in wanted:
                measured.append(p)
                key = dict(
                    zip(("gate", "operator", "pattern", "profile", "device"), p.key(device), strict=True)
                )
                yield {"schema": run.SCHEMA, **key, "digest": run.digest(device), "quick": quick}

        monkeypatch.setattr(run, "rows", rows)
        return measured

    def test_every_band_gate_meets_every_operator(self):
        plans = list(run.plans())
        seen = {(p.gate, p.operator) for p in plans if p.profile == "derived"}
        assert seen == {(g, o.name) for g in GATES for o in OPERATORS}
        assert len({p.key("cpu") for p in plans}) == len(plans)
        assert set(run.plans(quick=True)) < set(plans)
        assert {p.operator for p in run.plans(operators=["row_sum"])} == {"row_sum"}
        with pytest.raises(ValueError, match="no operator 'rowsum'"):
            list(run.plans(operators=["rowsum"]))
        assert {p.pattern for p in plans if "sweep" in p.pattern} == {f"sweep:N={n}" for n in carry.LENGTHS}

    def test_a_second_run_measures_nothing_again(self, fake, tmp_path):
        path = tmp_path / "c.jsonl"
        first = list(run.run(path, quick=True))
        assert list(run.run(path, quick=True)) == [] and len(fake) == len(first)
        assert run.read(path) == first

    def test_an_interrupted_run_resumes_after_a_torn_line(self, fake, tmp_path):
        path = tmp_path / "c.jsonl"
        whole = list(run.run(path, quick=True))
        text = path.read_text()
        path.write_text(text[: len(text) // 2])
        kept = len(run.read(path))
        assert 0 < kept < len(whole)
        assert len(list(run.run(path, quick=True))) == len(whole) - kept
        assert len(run.read(path)) == len(whole)

    def test_other_sources_are_measured_again(self, fake, tmp_path, monkeypatch):
        path = tmp_path / "c.jsonl"
        first = list(run.run(path, quick=True))
        monkeypatch.setattr(run, "digest", lambda device: "another")
        assert len(list(run.run(path, quick=True))) == len(first)
        assert {r["digest"] for r in run.read(path)} == {"another"}

    def test_a_file_of_another_kind_is_refused(self, tmp_path):
        path = tmp_path / "c.jsonl"
        path.write_text(json.dumps({"schema": "lethe.audit/1"}) + "\n")
        with pytest.raises(ValueError, match=r"line 1 .* does not have schema"):
            run.read(path)


def test_the_published_profile_has_a_bound_of_its_own_for_each_gate():
    """ORD-01 and ORD-03 were once judged by CMP-01's formula."""
    docket = Docket(BY_NAME["softmax"].problem(), Settings(executor="cpu", profile="paper"))
    case = docket.case("normal", 0)
    truth, n = docket.truth(case), case.inputs[0].numel()
    bounds = {g: truth.bands(g)[0].bound for g in ("CMP-01", "ORD-01", "ORD-03")}
    for gate, bound in bounds.items():
        torch.testing.assert_close(bound, paper_bound(truth.expected[0], n, gate=gate)[0])
    assert float(bounds["ORD-03"].max()) > 10 * float(bounds["CMP-01"].max())
    derived = Docket(BY_NAME["softmax"].problem(), Settings(executor="cpu"))
    truth = derived.truth(derived.case("normal", 0))
    assert truth.bands("CMP-01") is truth.bands("ORD-01")


def test_the_figure_holds_every_row_and_the_published_ones():
    from matplotlib import pyplot as plt

    from lethe.plotting import calibration

    ours = {"gate": "CMP-01", "operator": "exp", "noise_error": 1e-7, "threshold": 2e-6, "onset": 2e-6}
    silent = {**ours, "operator": "gelu", "threshold": None}
    published = {"CMP-01": {"noise_floor": 3e-7, "trip": 4e-5, "onset": 2e-3}}
    figure = calibration([ours, silent, {**ours, "operator": "scan", "thin": True}], published)
    ax = figure.axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["CMP-01 exp", "CMP-01 scan", "CMP-01 published"]
    assert ax.get_xscale() == "log" and "  thin" in [t.get_text() for t in ax.texts]
    assert 2e-3 in [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 1]
    plt.close(figure)


@pytest.mark.slow
def test_the_published_accumulator_gate_misses_what_its_bound_lets_through():
    """2e-2 of the largest output: a sum whose carry keeps 12 bits passes it, and fails the derived gate."""
    operator = BY_NAME["row_sum"]
    statuses = {}
    for profile in ("paper", "derived"):
        with Judge(device="cpu", quick=True, profile=profile) as judge:
            bench = Bench(judge, operator, operator.problem())
            statuses[profile] = [
                str(bench.read("PRC-02", operator.candidate(bits=b)).result.status) for b in (24, 12, 4)
            ]
    assert statuses == {"paper": ["pass", "pass", "fail"], "derived": ["pass", "fail", "fail"]}
