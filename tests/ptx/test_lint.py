"""Static lifecycle checks: working kernels are clean, each rule has a kernel that trips it."""

import re

import pytest

from lethe.ptx.examples import load, names
from lethe.ptx.lint import DEFECT, lint
from lethe.ptx.parse import parse


def rules(ptx, threads=0):
    return {f.rule for found in lint(parse(ptx), threads).values() for f in found}


def edit(ptx, pattern, replacement):
    edited, count = re.subn(pattern, replacement, ptx, count=1)
    assert count == 1, f"{pattern} is not in the kernel"
    return edited


@pytest.mark.parametrize("name", [n for n in names() if "sm90" not in n and not load(n).fault])
def test_a_working_kernel_is_clean(name):
    record = load(name)
    assert rules(record.ptx, record.launch.block[0]) == set()


def test_the_published_defect_is_reported_by_name():
    record = load("lifecycle_once_per_gemm")
    (finding,) = lint(parse(record.ptx))[record.launch.kernel]
    assert finding.rule == DEFECT and "512 columns again" in finding.message
    assert "tcgen05.alloc" in finding.text and record.ptx.splitlines()[finding.line - 1].strip().startswith(
        "tcgen05.alloc"
    )


def chain(pattern, replacement):
    return edit(load("chain_sm100").ptx, pattern, replacement)


def test_no_deallocation():
    assert rules(chain(r"\ttcgen05\.dealloc.*\n", "")) == {"dealloc"}


def test_two_deallocations():
    assert rules(chain(r"(\ttcgen05\.dealloc.*\n)", r"\1\1")) == {"dealloc"}


def test_deallocation_on_some_paths_only():
    assert rules(chain(r"\ttcgen05\.dealloc", "\telect.sync _|%p1, -1;\n\t@%p1 tcgen05.dealloc")) == {
        "dealloc"
    }


def test_no_relinquish():
    assert rules(chain(r"\ttcgen05\.relinquish.*\n", "")) == {"relinquish"}


def test_two_relinquishes():
    assert rules(chain(r"(\ttcgen05\.relinquish.*\n)", r"\1\1")) == {"relinquish"}


def test_two_allocations_before_the_relinquish():
    assert DEFECT in rules(chain(r"(\ttcgen05\.alloc.*\n)", r"\1\1"))


@pytest.mark.parametrize("columns", [16, 48, 1024])
def test_columns_that_hardware_refuses(columns):
    assert "columns" in rules(chain(r"(tcgen05\.alloc.*\], )%r\d+;", rf"\g<1>{columns};"))


def test_columns_that_are_not_static():
    assert "columns" in rules(chain(r"(tcgen05\.alloc.*\], )%r\d+;", r"mov.u32 %r1, %clock; \g<1>%r1;"))


def test_accumulator_beyond_the_allocation():
    assert rules(chain(r"(tcgen05\.alloc.*\], )%r\d+;", r"\g<1>128;")) == {"accumulator", "dealloc"}


def test_a_load_beyond_the_allocation():
    assert rules(chain(r"(tcgen05\.ld[^\]]*\[%r\d+)\]", r"\1+250]")) == {"accumulator"}


def test_an_address_that_cannot_be_followed_is_undecided_not_clean():
    assert "undecided" in rules(chain(r"(tcgen05\.ld[^\]]*\[)%r\d+\]", r"mov.u32 %r1, %clock; \1%r1]"))


def test_a_kernel_without_tensor_memory_has_nothing_to_check():
    assert rules(load("gemm_sm90").ptx) == set()
