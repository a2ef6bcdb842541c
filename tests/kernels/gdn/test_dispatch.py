"""The rule by which a backend is taken, on imagined machines: it looks at shapes, dtypes and devices."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lethe.kernels.gdn import cute_sm90, cute_sm100, dispatch, launch, prove
from lethe.kernels.gdn.checks import Arguments, check


def arguments(dtype=torch.bfloat16, dk=128, dv=64, device="cuda") -> Arguments:
    with FakeTensorMode():
        q, k = (torch.empty(1, 64, 2, dk, dtype=dtype, device=device) for _ in range(2))
        v = torch.empty(1, 64, 2, dv, dtype=dtype, device=device)
        return check(q, k, v, None, None, None, None, None, None)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU of some capability, every backend installed unless said otherwise, and built."""

    def make(capability, installed=dispatch.BACKENDS):
        for backend in (cute_sm90, cute_sm100):
            backend.BACKEND.ready.clear()
        monkeypatch.setattr(launch, "unavailable", lambda architecture, variant: "")
        monkeypatch.setattr(dispatch, "_capability", lambda index: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=None: "a GPU")
        monkeypatch.setenv("LETHE_GDN_CACHE", str(tmp_path))
        prove.proven.cache_clear()
        monkeypatch.setattr(dispatch, "INSTALLED", frozenset(installed))

    return make


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((9, 0), "cute_sm90"), ((10, 0), "torch"), ((10, 3), "torch"), ((8, 0), "torch")],
)
def test_each_gpu_gets_its_own_kernels_if_they_ever_ran_on_one(machine, capability, expected):
    machine(capability)
    assert dispatch.choose(arguments(), "auto").backend == expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dtype": torch.float32}, "q is torch.float32, the kernels take bfloat16 or float16"),
        ({"dk": 96}, "d_k is 96, the kernels are compiled for 128"),
        ({"dv": 256}, "d_v is 256, the kernels are compiled for 64 and 128"),
    ],
    ids=["dtype", "dk", "dv"],
)
def test_auto_warns_before_it_leaves_the_kernels_unused(machine, change, why):
    machine((9, 0))
    a = arguments(**change)
    choice = dispatch.choose(a, "auto")
    assert choice.backend == "torch"
    with pytest.warns(UserWarning, match=f"runs in torch: {why}"):
        dispatch.warn_if_slow(choice, a)
    with pytest.raises(ValueError, match=f"backend='cute_sm90' cannot run this call: {why}"):
        dispatch.choose(a, "cute_sm90")


def test_nobody_is_warned_where_there_is_no_choice(machine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine((8, 0))
        dispatch.warn_if_slow(dispatch.choose(arguments(), "auto"), arguments())
        machine((9, 0))
        dispatch.warn_if_slow(dispatch.choose(arguments(dk=96), "torch"), arguments(dk=96))


def test_a_backend_that_is_not_installed_is_refused_as_that(machine):
    machine((9, 0), installed=("torch",))
    assert "no cute_sm90 module" in dispatch.choose(arguments(), "auto").refusals["cute_sm90"]


def test_what_is_installed_is_a_module_of_the_package():
    assert "torch" in dispatch.INSTALLED
    for name in dispatch.INSTALLED:
        backend = dispatch.module(name)
        assert callable(backend.forward) and callable(backend.backward)


def test_cute_is_the_kernels_of_this_gpu_or_an_error(machine):
    machine((9, 0))
    choice = dispatch.choose(arguments(), "cute")
    assert choice.backend == "cute_sm90" and "cute_sm100" in str(choice)
    machine((8, 0))
    with pytest.raises(ValueError, match=r"'cute' cannot run this call: this GPU has .* 8\.0"):
        dispatch.choose(arguments(), "cute")
    with pytest.raises(ValueError, match=r"q is on cpu, the kernels need a CUDA device$"):
        dispatch.choose(arguments(device="cpu"), "cute")
    with pytest.raises(ValueError, match="choose auto, cute, cute_sm100, cute_sm90, torch"):
        dispatch.choose(arguments(), "triton")


def test_a_missing_library_leaves_torch_with_the_reason(machine, monkeypatch):
    machine((9, 0))
    why = lambda architecture, variant: f"{variant.name} is not built"  # noqa: E731
    monkeypatch.setattr(launch, "unavailable", why)
    a = arguments()
    choice = dispatch.choose(a, "auto")
    assert choice.backend == "torch"
    with pytest.warns(UserWarning, match="runs in torch: prep_.* is not built"):
        dispatch.warn_if_slow(choice, a)
