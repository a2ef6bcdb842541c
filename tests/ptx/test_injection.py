"""Fault injection: operators edit one line, mutants parse, and the ways of noticing differ as they should."""

import pytest

from lethe.ptx.examples import load
from lethe.ptx.injection import KERNELS, OPERATORS, Mutation, detect, mutations, table
from lethe.ptx.parse import parse

SCHEDULES = ["late", "reverse", 0, 1]


def mutants(kernel, operator):
    record = load(kernel)
    found = [m for m in mutations(record) if m.operator == operator]
    assert found, f"{operator} finds nothing in {kernel}"
    return record, found


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "scan_sm100"])  # the longest text
def test_every_mutant_is_ptx_and_differs_in_one_line(kernel):
    record = load(kernel)
    before = record.ptx.splitlines()
    one_of_each = {m.operator: m for m in mutations(record)}
    for mutation in one_of_each.values():
        mutant = mutation.apply(record.ptx)
        parse(mutant)
        after = mutant.splitlines()
        assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [
            mutation.line - 1
        ]


def test_every_operator_finds_a_place():
    found = {m.operator for kernel in KERNELS for m in mutations(load(kernel))}
    assert found == {*OPERATORS, "early dealloc"}


@pytest.mark.parametrize(
    ("kernel", "operator"),
    [
        ("gemm_sm100_wide", "wrong phase"),
        ("gemm_sm100_wide", "TMA coordinates swapped"),
        ("gemm_sm100_wide", "expect_tx without arriving bytes"),
        ("gemm_sm90_wide", "descriptors swapped"),
    ],
)
def test_what_any_execution_notices(kernel, operator):
    record, found = mutants(kernel, operator)
    assert detect(record, found[0], []).answer


@pytest.mark.parametrize(
    ("kernel", "operator"), [("gemm_sm100_wide", "dropped wait::ld"), ("gemm_sm90_wide", "weaker wait_group")]
)
def test_what_only_checks_or_schedules_notice(kernel, operator):
    record, found = mutants(kernel, operator)
    verdicts = [detect(record, m, SCHEDULES) for m in found]
    assert not all(v.answer for v in verdicts) and all(v.schedules for v in verdicts)


@pytest.mark.parametrize(
    ("kernel", "operator"), [("chain_sm100", "dropped tcgen05 fence"), ("chain_sm90", "dropped wgmma fence")]
)
def test_dropped_fences_are_noticed_without_adversarial_schedules(kernel, operator):
    record, found = mutants(kernel, operator)
    verdicts = [detect(record, m, []) for m in found]
    assert len(found) == 2 and not any(v.answer for v in verdicts) and all(v.checks for v in verdicts)


def test_fences_with_nothing_to_order_are_no_mutants():
    record = load("chain_sm100")
    lines = record.ptx.splitlines()
    fences = [i + 1 for i, line in enumerate(lines) if "tcgen05.fence" in line]
    found = {m.line for m in mutations(record) if m.operator == "dropped tcgen05 fence"}
    assert found and not found & {*fences[:2], *fences[-2:]}


@pytest.mark.parametrize("operator", ["double relinquish", "dropped dealloc", "too few columns"])
def test_what_the_static_check_notices(operator):
    record, found = mutants("chain_sm100", operator)
    assert detect(record, found[0], []).lint


def test_the_kernel_itself_is_noticed_by_nothing():
    record = load("gemm_sm90_wide")
    lines = record.ptx.splitlines()
    verdict = detect(record, Mutation(record.name, "nothing", 1, lines[0], lines[0]), SCHEDULES)
    assert not verdict.detected


def test_table_counts_cumulatively():
    record, found = mutants("gemm_sm90_wide", "weaker wait_group")
    result = table([detect(record, m, SCHEDULES) for m in found])
    detected = result["detected"]
    assert result["mutants"] == len(found)
    assert detected["answer"] <= detected["checks"] <= detected["schedules"] <= detected["with lint"]
