"""The recorded kernels: right under adversarial schedules, reproducible, and against independent oracles."""

import hashlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from lethe.ptx.examples import load, names, record
from lethe.ptx.examples.execute import agree, outcome
from lethe.ptx.examples.oracles import scan
from lethe.ptx.examples.tensors import TensorSpec, from_float, to_float

EXAMPLES = Path(record.__file__).parent


@pytest.mark.parametrize("name", [n for n in names() if not load(n).fault])
def test_right_and_the_same_bits_under_every_schedule(name):
    found = agree(load(name), ["early", "late", "reverse", 0])
    assert (found.status, found.difference) == ("right", ""), found


@pytest.mark.parametrize("name", ["chain_sm100", "gemm_sm90_wide"])
def test_twenty_schedules_one_answer(name):
    found = agree(load(name), ["early", "late", "reverse", *range(20)], seed=1)
    assert (found.status, found.difference, found.schedules) == ("right", "", 23), found


def test_the_published_defect_faults_where_it_stands():
    found = outcome(load("lifecycle_once_per_gemm"))
    assert (found.status, found.kind) == ("fault", "tmem")
    assert "tcgen05.alloc of 512 columns after tcgen05.relinquish_alloc_permit" in found.message


@pytest.mark.parametrize("name", [n for n in names() if "chain" in n or ("gemm_" in n and not load(n).fault)])
def test_integers_are_exact(name):
    """Sums of small integers are exact in float32, so the answer must be the oracle's to the last bit."""
    kernel = load(name)
    arrays = kernel.draw(3, "integers")
    expected = kernel.expected(arrays)
    from lethe.ptx.examples.execute import run

    run(kernel, arrays)
    for key, (value, _) in expected.items():
        np.testing.assert_array_equal(arrays[key], value)


def test_a_wrong_kernel_is_wrong():
    kernel = load("gemm_sm90")
    broken = kernel.ptx.replace("add.s32 \t%r", "sub.s32 \t%r", 1)
    assert broken != kernel.ptx and outcome(kernel, ptx=broken, limit=100_000).status != "right"


@pytest.mark.parametrize("name", names())
def test_records_come_from_these_sources(name):
    """A kernel's source was not edited after its PTX was recorded."""
    origin = load(name).origin
    sources = [EXAMPLES / origin["source"]]
    if origin["compiler"].startswith("nvidia"):
        sources.append(EXAMPLES / "parts.py")
    found = hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()
    assert found == origin["sha256"], "run python -m lethe.ptx.examples build"


@pytest.mark.parametrize("name", names())
def test_saving_a_record_gives_the_same_bytes(name, tmp_path):
    record.save(load(name), tmp_path)
    for suffix in (".json", ".ptx.gz"):
        assert (tmp_path / (name + suffix)).read_bytes() == (record.FOLDER / (name + suffix)).read_bytes()


def test_an_unknown_example_lists_those_there_are():
    with pytest.raises(FileNotFoundError, match="gemm_sm90"):
        load("nothing")


def test_scan_oracle_against_the_matrix_form():
    """Within one chunk and without decay the recurrence is (Q K^T, lower triangle) V."""
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((128, n)) for n in (4, 4, 3))
    found = scan({"q": q, "k": k, "v": v, "decay": np.ones(1)}, 0.0)
    np.testing.assert_allclose(found["y"][0], np.tril(q @ k.T) @ v, atol=1e-12)
    np.testing.assert_allclose(found["state"][0], v.T @ k, atol=1e-12)


def test_bfloat16_rounds_to_nearest_even():
    values = np.array(
        [1.0, 1.00390625, 1.01171875, -2.5]
    )  # 1 + 2^-8 is a tie, down to even; 1 + 3 * 2^-8, up
    np.testing.assert_array_equal(
        to_float(from_float(values, "bfloat16"), "bfloat16"), [1.0, 1.0, 1.015625, -2.5]
    )


def test_outputs_start_as_what_no_kernel_should_give():
    spec = TensorSpec("c", (2, 3), role="output")
    assert np.isnan(spec.array(np.random.default_rng(0))).all()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl")
def test_building_again_gives_the_same_record(tmp_path):
    from lethe.ptx.examples import build

    build.build(["gemm_sm90"], tmp_path)
    again = load("gemm_sm90", tmp_path)
    recorded = load("gemm_sm90")
    if again.origin["compiler"] != recorded.origin["compiler"]:
        pytest.skip(f"recorded with {recorded.origin['compiler']}, here is {again.origin['compiler']}")
    assert again == recorded
