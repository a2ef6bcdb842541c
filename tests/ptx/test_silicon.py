"""The comparison with a GPU: distances, reasons, memory order; the GPU itself where there is one."""

import importlib.util

import numpy as np
import pytest

from lethe.ptx import silicon
from lethe.ptx.examples import load, names


def has_hopper():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def test_distance_counts_representable_numbers():
    one = np.float32(1)
    values = np.array([one, np.nextafter(one, np.float32(2)), np.float32(0.0), np.float32(-0.0)])
    assert silicon.distance(np.full(4, one), values, "float32")[:2].tolist() == [0, 1]
    zeros = np.zeros(2, np.float32)
    tiny = np.array([-1e-45, 1e-45], np.float32)
    assert silicon.distance(zeros, tiny, "float32").tolist() == [1, 1]
    assert silicon.distance(values[2:3], values[3:4], "float32").tolist() == [0]


def test_distance_of_integers_is_their_difference():
    assert silicon.distance(np.array([3, -4], np.int32), np.array([5, 4], np.int32), "int32").tolist() == [
        2,
        8,
    ]


def test_reasons_to_differ():
    gemm, softmax, histogram = (
        load(n) for n in ("gemm_sm90", "triton_softmax_sm90", "triton_histogram_sm90")
    )
    assert silicon.reason(gemm, "integers") == "" and "float32 accumulation" in silicon.reason(gemm, "normal")
    assert "ex2.approx" in silicon.reason(softmax, "integers")
    assert silicon.reason(histogram, "normal") == ""


def test_at_least_ten_kernels_can_be_compared():
    assert sum(load(n).origin["arch"] == "sm_90a" for n in names()) >= 10


@pytest.mark.parametrize("order", ["C", "F"])
def test_raw_bytes_come_back_in_the_same_memory_order(order):
    array = np.asarray(np.arange(6, dtype=np.float32).reshape(2, 3), order=order)
    raw = array.ravel(order="K").view(np.uint8)
    np.testing.assert_array_equal(silicon._like(array, raw), array)


@pytest.mark.skipif(has_hopper(), reason="this machine has the device")
def test_without_a_device_it_is_one_sentence(tmp_path, capsys):
    pytest.importorskip("torch")
    assert silicon.main(["--out", str(tmp_path / "x.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not has_hopper(), reason="needs a GPU of compute capability 9.0")
def test_silicon_agrees():
    for comparison in silicon.compare_all():
        assert comparison.agrees, comparison
