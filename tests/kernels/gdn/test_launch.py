"""The loader of the kernels, without a GPU: declarations, what is packed, what is refused and how."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lethe.kernels.gdn import build, emulate, launch
from lethe.kernels.gdn.architecture import SM90, SM100
from lethe.kernels.gdn.declare import Argument, Variant, as_json, from_json
from lethe.ptx.launch import Argument as InHeader
from lethe.ptx.launch import build_library, tensor_struct
from tests.kernels.gdn import sm90_scan_case as cases

WITH_DSL = pytest.mark.skipif(find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl")
SMALL = {"dk": 128, "dv": 64, "erase": False, "packed": False, "direction": "both", "groups": 1}


def meaningful(parameter: bytes) -> bytes:
    """Half a tensor map, or an address and the first size: what stands behind may never have been written."""
    return parameter[:64] if len(parameter) == 128 else parameter[:12]


ROWS = Argument("x", "float16", ("slots", "H", 64, "d"))


def test_a_declaration_survives_the_manifest():
    scalar, output = Argument("scale", "float32"), Argument("y", "int32", ("n",), optional=True, output=True)
    variant = Variant("scan", {"dv": 64, "erase": True}, (ROWS, scalar, output))
    assert variant.name == "scan_dv64_erase1"
    assert from_json(as_json(variant)) == variant


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="argument n has dtype float16; choose float32, int32"):
        Argument("n", "float16")


def test_a_tensor_is_packed_as_the_header_lays_it_out():
    x, sizes = torch.zeros(3, 2, 64, 128, dtype=torch.float16), {}
    passed = launch.Passed(ROWS)
    found = struct.pack("@" + passed.format, *passed.fields(x, sizes))
    expected = tensor_struct(InHeader("x", 3, 3, 64), x, axes=(0, 1, 3))
    assert found == bytes(memoryview(expected))
    assert sizes == {"slots": 3, "H": 2, "d": 128}


def test_a_library_of_another_architecture_or_of_other_sources_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("LETHE_GDN_LIBRARIES", os.pathsep.join([str(tmp_path / "old"), str(tmp_path / "new")]))
    monkeypatch.setattr(launch, "available", lambda: False)
    variant = Variant("scan", {"dv": 7})

    def put(folder: str, arch: str, source: str) -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        manifest = tmp_path / folder / f"{variant.name}.json"
        manifest.with_suffix(".so").write_text("")
        manifest.write_text(json.dumps({"arch": arch, "source": source}))
        return manifest

    put("old", SM90.name, "of yesterday")
    assert "was built from other sources for sm_90a" in launch.unavailable(SM90, variant)
    put("old", SM100.name, SM90.source_hash("scan"))
    assert launch.unavailable(SM90, variant)
    manifest = put("new", SM90.name, SM90.source_hash("scan"))
    assert launch.find(SM90, variant) == manifest and launch.unavailable(SM90, variant) == ""
    manifest.with_suffix(".so").unlink()
    assert launch.unavailable(SM90, variant)


def test_an_absent_tensor_has_address_and_sizes_zero():
    passed = launch.Passed(Argument("S0", "float32", ("N", 4), optional=True))
    assert passed.fields(None, {}) == [0, 0]


@pytest.mark.parametrize(
    ("x", "sizes", "message"),
    [
        (torch.zeros(3, 2, 64, 128), {}, "x is torch.float32, the kernel takes torch.float16"),
        (
            torch.zeros(3, 2, 32, 128).half(),
            {"d": 128},
            r"x is \[3, 2, 32, 128\], the kernel takes \[3, 2, 64, 128\]",
        ),
        (torch.zeros(3, 2, 64).half(), {}, r"x is \[3, 2, 64\], the kernel takes \[slots, H, 64, d\]"),
        (torch.zeros(3, 2, 64, 128).half(), {"slots": 4}, r"the kernel takes \[4, H, 64, d\]"),
        (
            torch.zeros(3, 2, 64, 256).half()[..., ::2],
            {},
            "x must be contiguous, at an address that 16 divides",
        ),
        (torch.zeros(3 * 2 * 64 * 8 + 1).half()[1:].view(3, 2, 64, 8), {}, "at an address that 16 divides"),
        (None, {}, "x is missing"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(x, sizes, message):
    with pytest.raises(ValueError, match=message):
        launch.Passed(ROWS).fields(x, sizes)


def test_a_missing_library_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LETHE_GDN_CACHE", str(tmp_path))
    monkeypatch.setattr(launch, "available", lambda: False)
    with pytest.raises(
        launch.LibraryError, match=r"scan_dv7 is not built for sm_90a: run .*LETHE_GDN_LIBRARIES"
    ):
        launch.kernel(SM90, "scan", dv=7)


@WITH_DSL
def test_an_unknown_variant_lists_those_there_are(tmp_path):
    with pytest.raises(build.BuildError, match=r"scan has no variant with {'dv': 7}; there are scan_"):
        build.build(SM90, "scan", {"dv": 7}, tmp_path)


@WITH_DSL
@pytest.mark.slow
def test_a_library_loads_without_a_driver_and_refuses_cpu_tensors(tmp_path, monkeypatch):
    build.build(SM90, "scan", SMALL, tmp_path)
    monkeypatch.setenv("LETHE_GDN_LIBRARIES", str(tmp_path))
    monkeypatch.setattr(launch, "available", lambda: False)
    scan = launch.Kernel(launch.find(SM90, Variant("scan", SMALL)))
    values = {a.name: None for a in scan.variant.arguments} | {"U": torch.zeros(1, 1, 64, 64).half()}
    with pytest.raises(ValueError, match="takes CUDA tensors, not cpu tensors"):
        scan(**values)
    with pytest.raises(ValueError, match="takes \\['Kt', "):
        scan(U=values["U"])
    if not torch.cuda.is_available():
        with pytest.raises(launch.LibraryError, match=r"loading scan_.* failed: CUDA error"):
            scan._load(0)


def test_the_shim_needs_no_cuda_to_link(tmp_path):
    empty = tmp_path / "empty.c"
    empty.write_text("int nothing;\n")
    build.link(empty, tmp_path / "k.so")
    library = ctypes.CDLL(str(tmp_path / "k.so"))
    library.lethe_shim_error.restype = ctypes.c_char_p
    assert library.lethe_shim_error() == b""


@WITH_DSL
@pytest.mark.slow
def test_a_call_launches_what_the_emulator_runs(monkeypatch):
    """The loader against the CUDA runtime that launches nothing: same grid, block and parameters."""
    scan = emulate.load(SM90, "scan", **SMALL)
    case = cases.draw(dv=64, erase=False)
    arrays = case.arrays(scan)
    (expected,) = scan.launches(arrays)
    stem = scan.folder / scan.variant.name
    kernel = launch.Kernel(stem.with_suffix(".json"))
    library = ctypes.CDLL(str(build_library(stem.with_suffix(".o"))))
    library.lethe_shim_error = lambda: b""
    kernel._library, kernel._launch = library, getattr(library, kernel._launch.__name__)
    monkeypatch.setattr(kernel, "_check", lambda values: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    found = []

    def launched(name, grid, block, cluster, shared, parameters):
        sizes = [len(p.data) for p in expected.parameters]
        data = [ctypes.string_at(parameters[i], size) for i, size in enumerate(sizes)]
        found.append((name.decode(), tuple(grid[:3]), tuple(block[:3]), shared, data))
        return 0

    triple = ctypes.POINTER(ctypes.c_uint)
    addresses = ctypes.POINTER(ctypes.c_void_p)
    callback = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_char_p, triple, triple, triple, ctypes.c_size_t, addresses
    )
    on_launch, on_attribute = (
        callback(launched),
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: 232448),
    )
    library.lethe_capture_set(on_launch, on_attribute)
    kernel(**{k: torch.from_numpy(v) if hasattr(v, "ctypes") else v for k, v in arrays.items()})
    bound = expected.bind({k: v.ctypes.data for k, v in arrays.items() if hasattr(v, "ctypes")})
    ((name, grid, block, shared, data),) = found
    assert (name, grid, block, shared) == (expected.kernel, expected.grid, expected.block, expected.shared)
    assert [meaningful(d) for d in data] == [meaningful(d) for d in bound]
