"""RES-02's numbers: recorded launches, compiled for NVIDIA targets on a machine without a GPU."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lethe.verifier.executors import resources as resources_module
from lethe.verifier.executors.resources import LIMITS, KernelResource, capability, exceeded
from tests.verifier.forked import interpreted

ROOMY = KernelResource("k", "sm_100", 4, 3, 128, 0, 0, 48 * 1024, 256)


def test_a_kernel_that_fits_exceeds_nothing() -> None:
    assert exceeded(ROOMY) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shared_bytes": 227 * 1024 + 1}, "232449 bytes of shared memory on sm_100, which has 232448"),
        ({"tmem_columns": 544}, "544 tensor-memory columns on sm_100, which has 512"),
        ({"registers": 256, "num_warps": 1}, "256 registers a thread on sm_100, which has 255"),
        ({"registers": 129, "num_warps": 16}, "69632 registers a block on sm_100, which has 65536"),
        ({"num_warps": 64, "registers": 16}, "2048 threads a block on sm_100, which has 1024"),
        ({"target": "sm_120", "tmem_columns": 0, "shared_bytes": 100 * 1024}, "which has 101376"),
        ({"target": "sm_90"}, "256 tensor-memory columns on sm_90, which has 0"),
    ],
    ids=["shared", "tmem", "registers", "block-registers", "threads", "sm_120", "sm_90-has-no-tmem"],
)
def test_each_limit_is_held(change: dict[str, Any], words: str) -> None:
    sentences = exceeded(dataclasses.replace(ROOMY, **change))
    assert len(sentences) == 1 and words in sentences[0]


@pytest.mark.parametrize("target", list(LIMITS))
def test_targets_are_known_by_name(target: str) -> None:
    assert f"sm_{capability(target)}" == target


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown target 'sm_75'"):
        capability("sm_75")


def _matmul(k: Any, m: int, n: int, depth: int, dtype: torch.dtype, **options: Any) -> torch.Tensor:
    a, b = torch.ones(m, 2 * depth, dtype=dtype), torch.ones(2 * depth, n, dtype=dtype)
    c = torch.empty(m, n, dtype=dtype)
    k.long_matmul[(1, 1)](a, b, c, 2 * depth, m, n, depth, **options)
    return c


@interpreted
def _compile(k: Any, cache: str, targets: list[str], options: dict[str, Any]) -> dict[str, Any]:
    os.environ["XDG_CACHE_HOME"] = cache
    os.environ["TRITON_CACHE_DIR"] = f"{cache}/triton"
    from lethe.verifier.executors import resources

    seen = resources.capture(lambda: _matmul(k, dtype=torch.float16, **options))
    rows = {target: resources.compile_only(seen, target) for target in targets}
    again = {target: resources.compile_only(seen, target) for target in targets}
    still_interprets = _matmul(k, 16, 16, 16, torch.float32)[0, 0].item()
    return {"rows": rows, "again": again, "still": still_interprets, "plain": resources.resources(targets[0])}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    cache = tmp_path_factory.mktemp("resources")
    options = {"m": 64, "n": 32, "depth": 32, "num_warps": 8, "num_stages": 2}
    return cache, _compile(str(cache), ["sm_90", "sm_100"], options)


@pytest.mark.parametrize(("target", "columns"), [("sm_90", 0), ("sm_100", 32)])
def test_a_launched_kernel_is_compiled_as_it_was_launched(small: Any, target: str, columns: int) -> None:
    (row,) = small[1]["rows"][target]
    assert (row.name, row.target, row.error) == ("long_matmul", target, None)
    assert (row.num_warps, row.num_stages) == (8, 2)
    assert 16 <= row.registers <= 255 and row.spill_bytes == 0
    assert 64 * 32 * 2 <= row.shared_bytes <= 64 * 1024
    assert row.tmem_columns == columns
    assert exceeded(row) == []


def test_results_are_cached_by_source(small: Any) -> None:
    cache, answers = small
    assert answers["again"] == answers["rows"]
    assert len(list((cache / "lethe" / "resources").glob("*.json"))) >= 2


def test_the_process_still_interprets_after_compiling(small: Any) -> None:
    assert small[1]["still"] == pytest.approx(1.0, abs=1e-6)
    assert {row["name"] for row in small[1]["plain"]} == {"long_matmul"}


def test_too_much_shared_memory_is_reported(tmp_path: Path) -> None:
    options = {"m": 128, "n": 128, "depth": 128, "num_warps": 8, "num_stages": 3}
    answers = _compile(str(tmp_path), ["sm_120"], options)
    (row,) = answers["rows"]["sm_120"]
    assert row.error is None
    assert any("bytes of shared memory on sm_120, which has 101376" in s for s in exceeded(row))


@interpreted
def _records(k: Any) -> list[tuple[str, str, dict[str, Any]]]:
    from lethe.verifier.executors import resources

    def launches() -> None:
        for n in (48, 64, 1, 7, 9):  # 16 divides the first two; 1 is a constant; 7 and 9 are alike
            k.double[(1,)](torch.ones(128), torch.zeros(128), n, BLOCK=64)
        x = torch.ones(129)[1:]
        k.double[(1,)](x, torch.zeros(128), 7, BLOCK=64)
        k.double[(1,)](x, torch.zeros(128), 7, BLOCK=32, num_warps=2)

    return [(r.name, repr(r.args[:2]), r.kwargs) for r in resources.capture(launches)]


def test_one_record_for_each_specialisation() -> None:
    aligned, shifted = "(torch.float32+0, torch.float32+0)", "(torch.float32+4, torch.float32+0)"
    assert _records() == [
        ("double", aligned, {"BLOCK": 64}),
        ("double", aligned, {"BLOCK": 64}),
        ("double", aligned, {"BLOCK": 64}),
        ("double", shifted, {"BLOCK": 64}),
        ("double", shifted, {"BLOCK": 32, "num_warps": 2}),
    ]


@interpreted
def _uncompilable(k: Any) -> list[KernelResource]:
    from lethe.verifier.executors import resources

    a = torch.ones(4, 4, dtype=torch.float16)
    # The interpreter multiplies any sizes; the compiler wants a depth of at least 16.
    seen = resources.capture(lambda: k.matmul[(1,)](a, a, torch.empty(4, 4), 4, False, 4))
    return resources.compile_only(seen, "sm_90")


def test_a_kernel_that_does_not_compile_says_why() -> None:
    (row,) = _uncompilable()
    assert row.error is not None and "CompilationError" in row.error
    assert row.registers == -1 and exceeded(row) == []


@interpreted
def _nothing(k: Any) -> list[dict[str, Any]]:
    from lethe.verifier.executors import resources

    return resources.resources("sm_90")


def test_a_candidate_without_launches_needs_nothing() -> None:
    assert _nothing() == []


@interpreted
def _timeout(k: Any) -> list[KernelResource]:
    from lethe.verifier.executors import resources

    seen = resources.capture(lambda: _matmul(k, 64, 32, 32, torch.float16))
    return resources.compile_only(seen, "sm_90", seconds=0.05)


def test_a_slow_compilation_is_stopped() -> None:
    (row,) = _timeout()
    assert row.error == "compiling took longer than 0.05 s"


def test_what_fails_outside_a_kernel_is_told() -> None:
    def broken() -> Any:
        yield {"name": "first"}
        raise RuntimeError("no compiler here")

    rows, trouble = resources_module._in_child(broken, 60.0)
    assert rows == [{"name": "first"}]
    assert trouble == "the compiler process failed: RuntimeError: no compiler here"


def test_the_compiler_process_needs_no_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "devnull", "/nonexistent/null")
    rows, _ = resources_module._in_child(lambda: iter([{"name": "kernel"}]), 60.0)
    assert rows == [{"name": "kernel"}]
