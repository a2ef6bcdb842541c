"""The bands on a GPU: what cuBLAS, cuDNN and torch's own kernels return is faithful, and TF32 is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lethe.verifier import conditioning, oracle, precision, tolerance
from tests.verifier.references import KINDS, REFERENCES, reference, scaled, tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def on_gpu(inst):
    return replace(inst, module=inst.module.cuda(), draw=lambda s: [t.cuda() for t in inst.draw(s)])


def plain(inst, inputs, **flags):
    """The module run outside the pinned backends, as a candidate would."""
    before = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = flags.get("tf32", False)
    torch.backends.cudnn.benchmark = flags.get("benchmark", False)
    try:
        return tensors(oracle.call(inst.module, oracle.cast_floating(inputs, torch.float32)))
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before[:2]
        torch.backends.cudnn.benchmark = before[2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFERENCES)
def test_gpu_kernels_are_accepted_also_under_cpu_bands(name, kind):
    inst = REFERENCES[name]()
    inputs = scaled(inst.draw(1), kind)
    cpu_truth, cpu_working = (
        tensors(oracle.run_float64(inst, inputs)),
        tensors(oracle.run_working(inst, inputs)),
    )
    operator = conditioning.profile_operator(inst, inst.draw(1))
    cpu_bands = tolerance.bands(inst, inputs, cpu_truth, cpu_working, operator=operator)
    gpu, moved = on_gpu(inst), [t.cuda() for t in inputs]
    value = plain(gpu, moved, benchmark=True)
    truth, working = tensors(oracle.run_float64(gpu, moved)), tensors(oracle.run_working(gpu, moved))
    gpu_bands = tolerance.bands(gpu, moved, truth, working, operator=operator)
    for v, e, b, ce, cb in zip(value, truth, gpu_bands, cpu_truth, cpu_bands, strict=True):
        assert e.device.type == b.bound.device.type == "cuda" or b.kind == "selection"
        assert tolerance.compare(v, e, b).within
        if (
            name != "lstm"
        ):  # cuDNN's gates err by 27 units, so only the reference's own run on a GPU excuses them
            assert tolerance.compare(v.cpu(), ce, cb).within


@pytest.mark.parametrize("size", [64, 1024, 4096])
def test_tf32_matmul_is_told_and_float32_is_not(size):
    inst = on_gpu(reference(lambda m, a, b: a @ b, (256, size), (size, 256)))
    x = inst.draw(1)
    truth, working = oracle.run_float64(inst, x), oracle.run_working(inst, x)

    def statistic(value):
        return tolerance.precision_statistic(inst, x, value, truth, working)

    assert statistic(plain(inst, x)).regime is None
    assert statistic(plain(inst, x, tf32=True)).regime == precision.ELEVEN_BITS
    assert statistic([(x[0].bfloat16() @ x[1].bfloat16()).float()]).regime == "bfloat16"


@pytest.mark.parametrize("channels", [16, 128])
def test_cudnn_may_choose_its_algorithm_but_not_tf32(channels):
    w = torch.randn(64, channels, 3, 3)
    inst = on_gpu(reference(lambda m, x: F.conv2d(x, m.w, padding=1), (4, channels, 56, 56), w=w))
    inst.module.w = inst.module.w.cuda()
    x = inst.draw(1)
    truth, working = oracle.run_float64(inst, x), oracle.run_working(inst, x)
    operator = conditioning.profile_operator(inst, x)
    band = tolerance.bands(inst, x, tensors(truth), tensors(working), operator=operator)[0]
    value = plain(inst, x, benchmark=True)
    assert tolerance.compare(value[0], tensors(truth)[0], band).within
    assert tolerance.precision_statistic(inst, x, value, truth, working).regime is None
    if channels == 128:  # with few channels cuDNN stays with float32 although it may use TF32
        narrow = plain(inst, x, tf32=True)
        assert tolerance.precision_statistic(inst, x, narrow, truth, working).regime == precision.ELEVEN_BITS


def test_gradients_on_the_gpu_lie_in_their_bands():
    for name in ("layernorm", "attention", "conv", "linear"):
        inst = REFERENCES[name]()
        x = inst.draw(1)
        up = [torch.randn(t.shape) for t in tensors(oracle.run_working(inst, x))]
        gpu, moved = on_gpu(inst), [t.cuda() for t in x]
        truth = oracle.gradients(gpu, moved, up)
        working = oracle.gradients(gpu, moved, up, "float32")
        spread = conditioning.gradient_spread(gpu, moved, up, truth, tolerance.UNIT["float32"])
        for n, t in truth.items():
            assert tolerance.compare(working[n], t, tolerance.gradient_band(t, None, spread[n])).within, (
                name,
                n,
            )
