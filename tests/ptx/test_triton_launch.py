"""Triton-compiled PTX as a launch: arguments against parameters, with a stand-in for the compiled kernel."""

from types import SimpleNamespace

import numpy as np
import pytest

from lethe.ptx.launch import LaunchError, Pointer
from lethe.ptx.triton_launch import launch_of

PTX = """.visible .entry k(.param .u64 .ptr .global .align 1 k_param_0,
    .param .u32 k_param_1, .param .u64 k_param_2) {}"""


def compiled(ptx=PTX, **metadata):
    base = {"name": "k", "num_warps": 4, "shared": 64, "global_scratch_size": 0}
    return SimpleNamespace(metadata=SimpleNamespace(**{**base, **metadata}), asm={"ptx": ptx})


def test_arguments_become_parameters_and_scratch_is_null():
    x = np.zeros(4, np.float32)
    launch = launch_of(compiled(), {"x": x, "n": -4}, (2, 1, 1))
    assert (launch.block, launch.shared, launch.grid) == ((128, 1, 1), 64, (2, 1, 1))
    pointer, number, scratch = launch.parameters
    assert pointer.pointers == (Pointer(0, "x", 0),)
    assert number.data == (-4).to_bytes(4, "little", signed=True) and scratch.data == bytes(8)


@pytest.mark.parametrize(
    ("kernel", "arguments", "sentence"),
    [
        (compiled(global_scratch_size=128), {}, "128 bytes of global scratch"),
        (compiled(tensordesc_meta=[{}]), {}, "tensor descriptors"),
        (compiled(), {"a": 1, "b": 2, "c": 3, "d": 4}, "3 parameters, 4 arguments"),
        (compiled(), {"n": 1, "x": np.zeros(4)}, "'x' is a tensor, its parameter has 4 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(kernel, arguments, sentence):
    with pytest.raises(LaunchError, match=sentence):
        launch_of(kernel, arguments, (1, 1, 1))


@pytest.mark.slow
def test_compile_and_record_again():
    pytest.importorskip("triton")
    from lethe.ptx.examples import triton_kernels
    from lethe.ptx.examples.execute import outcome

    example = next(e for e in triton_kernels.EXAMPLES if e.name == "softmax")
    assert outcome(triton_kernels.record_example(example, 90)).status == "right"
