"""Legal summation orders: computed as they say, accepted by the derived bands and by the judge itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

from lethe.evidence import orders, summation
from lethe.evidence.orders import ORDERS
from lethe.evidence.summation import JUDGED, OPERATORS
from lethe.verifier.judge import Judge


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def terms(n: int, rows: int = 2) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((rows, n), dtype=np.float32)


def left_to_right(values) -> np.float32:
    total = np.float32(0)
    for v in values:
        total = np.float32(total + v)
    return total


class TestOrders:
    @pytest.mark.parametrize("n", [1, 7, 1000])
    def test_sequential_is_one_rounding_per_term_from_the_left(self, n):
        x = terms(n)
        assert orders.sequential(x).tolist() == [left_to_right(row) for row in x]
        assert orders.reverse(x).tolist() == [left_to_right(row[::-1]) for row in x]

    def test_blocks_and_lanes_are_what_they_say(self):
        row = terms(70, 1)[0]
        blocks = [left_to_right(row[i : i + 32]) for i in range(0, 70, 32)]
        assert orders.blocked(row, 32) == left_to_right(blocks)
        lanes = [left_to_right(row[i::32]) for i in range(32)]
        assert orders.interleaved(row) == left_to_right(lanes)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        assert orders.warp_tree(row) == lanes[0]

    def test_pairwise_is_a_balanced_tree(self):
        a, b, c, d, e = row = terms(5, 1)[0]
        assert orders.pairwise(row) == ((a + b) + (c + d)) + e

    def test_a_fused_product_is_not_rounded(self):
        x = np.array([-1.0, 1 + 2.0**-12], np.float32)
        w = np.array([1 + 2.0**-11, 1 + 2.0**-12], np.float32)
        assert orders.sequential(x * w) == 0.0, "the product of two rounds its last bit away"
        assert orders.fused(x, w, lanes=1) == np.float32(2.0**-24)

    @pytest.mark.parametrize("order", ORDERS)
    def test_every_order_adds_every_term_once(self, order):
        for n in (1, 31, 33, 259):
            assert ORDERS[order](np.ones((3, n), np.float32)).tolist() == [n] * 3

    def test_the_orders_differ_from_one_another(self):
        x = terms(4096, 8)
        results = {name: tuple(order(x).tolist()) for name, order in ORDERS.items()}
        assert len(set(results.values())) == len(ORDERS)


@pytest.fixture(scope="module")
def cases() -> list[summation.Case]:
    torch.set_num_threads(1)
    wide = summation.legal_orders(sizes=(16, 1024))
    return wide + summation.legal_orders(operators=("sum",), sizes=(65_536,))


class TestBands:
    def test_no_legal_order_is_rejected(self, cases):
        assert [c for c in cases if c.rejected] == []
        assert all(c.charged for c in cases), "each case could have been rejected"
        assert {c.n for c in cases} == {16, 1024, 65_536}

    def test_the_theorem_leaves_gamma_a_margin_and_the_band_is_no_infinity(self, cases):
        constant = [c for c in cases if c.inputs == "constant" and c.dtype == "float32" and c.n > 16]
        assert 0.05 < max(c.derived for c in constant) <= 1

    def test_the_published_formula_rejects_legal_orders_of_long_sums(self, cases):
        rejected = {(c.order, c.inputs) for c in cases if c.rejected_by_paper}
        assert ("sequential", "sorted") in rejected and ("sequential", "constant") in rejected
        assert not [c for c in cases if c.rejected_by_paper and c.n == 16]

    def test_the_tables_count_what_the_cases_say(self, cases):
        found = summation.table(cases)
        assert len(found) == len(cases) and found["rejected"].sum() == 0
        counted = summation.summary(cases)
        assert counted["rejected_by_paper"].sum() == sum(c.rejected_by_paper for c in cases) > 0
        assert counted["cases"].sum() == len(cases)


@pytest.fixture(scope="module")
def verdicts():
    torch.set_num_threads(1)
    with Judge(device="cpu", quick=True) as judge:
        sums = summation.judged_orders(judge, operators=("sum",), n=256)
        others = summation.judged_orders(
            judge, operators=OPERATORS[1:], names=("sequential", "warp tree"), n=256
        )
        return sums + others


class TestJudge:
    def test_every_order_is_clean_before_the_judge(self, verdicts):
        assert {order for operator, order, _ in verdicts if operator == "sum"} == set(JUDGED)
        assert {operator for operator, _, _ in verdicts} == set(OPERATORS)
        assert {f"{o}, {n}: {v.message}" for o, n, v in verdicts if not v.clean} == set()

    def test_the_gates_that_ask_for_order_and_carry_were_applicable(self, verdicts):
        for _, _, verdict in verdicts:
            passed = {g.gate for g in verdict.gates if str(g.status) == "pass"}
            assert passed >= {"CMP-01", "ORD-01", "ORD-03", "PRC-02"}

    def test_the_table_shows_how_much_of_each_band_was_used(self, verdicts):
        found = summation.judged_table(verdicts)
        assert len(found) == len(verdicts) and found["clean"].all()
        assert (found[["CMP-01", "ORD-01", "ORD-03"]].max() <= 1).all()
        assert found["ORD-01"].max() > 0

    def test_the_candidates_add_in_the_order_they_claim(self):
        x = torch.from_numpy(terms(300, 4))
        for name in JUDGED:
            namespace: dict = {}
            exec(summation.candidate_source("sum", name), namespace)
            assert namespace["ModelNew"]()(x).tolist() == ORDERS[name](x.numpy()).tolist()


def test_orders_with_parameters_are_partial_functions():
    assert isinstance(ORDERS["blocked 8"], partial) and ORDERS["blocked 8"].keywords == {"block": 8}
