"""What others' kernels compile beforehand: each configuration once, in shards; nothing is timed or kept."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lethe.evidence.gdn_gpu_baselines import WARMED, untimed

triton = pytest.importorskip("triton", reason="it is Triton's autotuner that is replaced")


class Launched(Exception):
    pass


def tuner(ran: list[int], *, fails: frozenset[int] = frozenset()):
    """An autotuner of four configurations whose kernel notes which of them it is launched with."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.autotuner import Autotuner

    def kernel(X: int) -> None:
        """Stands for the kernel's Python function."""

    def run(*args, X, **options):
        ran.append(X)
        if X in fails:
            raise CompileTimeAssertionFailure("", SimpleNamespace(lineno=1, col_offset=0), "no")

    configs = [triton.Config({"X": x}) for x in range(4)]
    made = Autotuner(kernel, ["X"], configs, ["X"], None, None, do_bench=never, cache_results=True)
    made.fn = SimpleNamespace(run=run)
    return made


def never(*_, **__):
    raise AssertionError("nothing may be timed")


@pytest.mark.parametrize(("shards", "expected"), [(1, [[0, 1, 2, 3]]), (2, [[0, 2], [1, 3]])])
def test_every_configuration_is_launched_by_one_shard(shards, expected):
    for shard in range(shards):
        ran: list[int] = []
        with untimed(shard, shards):
            tuner(ran).run(1)
        assert ran[:-1] == expected[shard] and ran[-1] == expected[shard][0], "and the first of them runs"


def test_more_shards_than_configurations_all_have_something_to_do():
    for shard in range(6):
        ran: list[int] = []
        with untimed(shard, 6):
            tuner(ran).run(1)
        assert ran == [shard % 4, shard % 4]


def test_a_configuration_that_does_not_compile_is_passed_over():
    ran: list[int] = []
    with untimed(0, 2):
        tuner(ran, fails=frozenset({0})).run(1)
    assert ran == [0, 2, 2]


def test_afterwards_an_autotuner_times_again():
    with untimed(0, 1):
        pass
    with pytest.raises(AssertionError, match="nothing may be timed"):
        made = tuner([])
        made.cache_results = False
        made.run(1)


def test_a_core_of_sixteen_for_each_process():
    assert sum(WARMED.values()) == 16
