"""Tensor maps: bytes as the CuTe launcher writes them, refusals, and the fields of ``tensormap.replace``."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lethe.ptx import tensormap
from lethe.ptx.faults import Fault
from tests.ptx import record_tensor_maps

RECORDED = json.loads((Path(__file__).parent / "data" / "tensor_maps.json").read_text())["maps"]
GOOD: dict[str, Any] = {
    "dtype": "f16",
    "address": 0x7F0000001000,
    "dims": (200, 30, 5),
    "strides": (400, 12000),
    "box": (64, 8, 2),
    "swizzle": "128B",
}


@pytest.mark.parametrize("case", RECORDED, ids=[c["name"] for c in RECORDED])
def test_encode_writes_the_bytes_of_the_cute_launcher(case: dict[str, Any]) -> None:
    raw = tensormap.encode(
        case["dtype"], case["address"], case["dims"], case["strides"], case["box"], swizzle=case["swizzle"]
    )
    assert raw.nbytes == 128
    assert raw[:64].tobytes().hex() == case["bytes"]
    assert not raw[64:].any()


@pytest.mark.parametrize("case", RECORDED, ids=[c["name"] for c in RECORDED])
def test_decode_reads_the_bytes_of_the_cute_launcher(case: dict[str, Any]) -> None:
    garbage = np.random.default_rng(3).integers(0, 256, 64, dtype=np.uint8).tobytes()
    tmap = tensormap.decode(bytes.fromhex(case["bytes"]) + garbage)
    got = (tmap.dtype, tmap.address, tmap.shape, tmap.strides, tmap.box, tmap.swizzle)
    expected = (
        case["dtype"],
        case["address"],
        *(tuple(case[key]) for key in ("dims", "strides", "box")),
        case["swizzle"],
    )
    assert got == expected
    assert tmap.element_strides == (1,) * tmap.rank
    assert tmap.box_bytes == np.prod(tmap.box) * tmap.element_bytes


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="nvidia-cutlass-dsl is not installed")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_the_launcher_still_writes_the_recorded_bytes(tmp_path: Path) -> None:
    names = ["f16 rank 2, 128B swizzle", "tf32", "rank 1", "strides above 2^36 bytes"]
    record_tensor_maps.main(str(tmp_path / "maps.json"), *names)
    fresh = json.loads((tmp_path / "maps.json").read_text())["maps"]
    assert fresh == [case for name in names for case in RECORDED if case["name"] == name]


@pytest.mark.parametrize("rank", range(1, 6))
def test_round_trip_of_every_field(rank: int) -> None:
    rng = np.random.default_rng(rank)
    for dtype in tensormap.TYPES:
        size = tensormap.ELEMENT_BYTES[dtype]
        arguments = {
            "dtype": dtype,
            "address": int(rng.integers(1, 1 << 50)) * 16,
            "dims": tuple(int(n) for n in rng.integers(1, 1 << 32, rank)),
            "strides": tuple(int(n) * 16 for n in rng.integers(0, 1 << 36, rank - 1)),
            "box": (32 // size, *(int(n) for n in rng.integers(1, 257, rank - 1))),
            "element_strides": (1, *(int(n) for n in rng.integers(1, 9, rank - 1))),
            "swizzle": str(rng.choice(["none", "32B", "64B", "128B", "128B_ATOM_64B"])),
            "l2_promotion": str(rng.choice(tensormap.PROMOTIONS)),
            "fill": "nan" if dtype in tensormap.FLOATS else "zero",
        }
        tmap = tensormap.decode(tensormap.encode(**arguments))
        assert tmap.shape == arguments["dims"]
        for name in ("dtype", "address", "strides", "box", "element_strides", "swizzle", "fill"):
            assert getattr(tmap, name) == arguments[name]
        assert tmap.promotion == arguments["l2_promotion"]


def test_driver_enumerations_are_accepted_as_integers() -> None:
    by_name = tensormap.encode(**GOOD | {"l2_promotion": "128B", "fill": "nan"})
    by_code = tensormap.encode(**GOOD | {"dtype": 6, "swizzle": 3, "l2_promotion": 2, "fill": 1})
    assert by_name.tobytes() == by_code.tobytes()


def test_element_strides_thin_the_tile_out() -> None:
    tmap = tensormap.decode(tensormap.encode(**GOOD | {"box": (64, 9, 5), "element_strides": (7, 2, 3)}))
    assert tmap.element_strides == (1, 2, 3)
    assert tmap.tile == (64, 5, 2)
    assert tmap.box_bytes == 64 * 5 * 2 * 2


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"address": 0x1008}, "descriptor"),
        ({"address": 1 << 57}, "descriptor"),
        ({"dims": (0, 30, 5)}, "descriptor"),
        ({"dims": (200, 30, (1 << 32) + 1)}, "descriptor"),
        ({"strides": (392, 12000)}, "descriptor"),
        ({"strides": (400, 1 << 40)}, "descriptor"),
        ({"strides": (400,)}, "descriptor"),
        ({"box": (64, 257, 2)}, "descriptor"),
        ({"box": (64, 0, 2)}, "descriptor"),
        ({"box": (63, 8, 2)}, "descriptor"),
        ({"box": (128, 8, 2)}, "descriptor"),
        ({"box": (64, 8, 2), "swizzle": "64B"}, "descriptor"),
        ({"element_strides": (1, 9, 1)}, "descriptor"),
        ({"element_strides": (1, 0, 1)}, "descriptor"),
        ({"dtype": "f8"}, "descriptor"),
        ({"dtype": 13}, "descriptor"),
        ({"swizzle": "96B"}, "descriptor"),
        ({"dtype": "u16", "fill": "nan"}, "descriptor"),
        ({"dims": (), "strides": (), "box": ()}, "descriptor"),
        ({"dims": (8,) * 6, "strides": (16,) * 5, "box": (8,) * 6}, "descriptor"),
        ({"interleave": "16B"}, "unsupported"),
        ({"interleave": "32B", "swizzle": "32B", "box": (16, 8, 2)}, "unsupported"),
    ],
    ids=str,
)
def test_illegal_arguments_are_refused(change: dict[str, Any], kind: str) -> None:
    with pytest.raises(Fault) as fault:
        tensormap.encode(**GOOD | change)
    assert fault.value.kind == kind


@pytest.mark.parametrize("raw", [bytes(128), bytes(64), b"\xff" * 128], ids=["zeros", "short", "ones"])
def test_bytes_that_are_no_tensor_map_are_refused(raw: bytes) -> None:
    with pytest.raises(Fault) as fault:
        tensormap.decode(raw)
    assert fault.value.kind == "descriptor"


@pytest.mark.parametrize("dtype", ["u8", "f16", "f32", "f64", "bf16", "tf32", "tf32_ftz"])
def test_replace_builds_from_zeros_what_encode_writes(dtype: str) -> None:
    """The sequence with which Triton makes a descriptor on the device; codes from the table of the ISA."""
    codes = {"u8": 0, "f16": 6, "f32": 7, "f64": 9, "bf16": 10, "tf32": 11, "tf32_ftz": 12}
    size = tensormap.ELEMENT_BYTES[dtype]
    raw = np.zeros(128, np.uint8)
    steps = [
        ("global_address", None, 0x7F0000001000),
        ("rank", None, 2),
        *[("box_dim", d, n) for d, n in enumerate((64 // size, 8, 2))],
        *[("global_dim", d, n) for d, n in enumerate((200, 30, 5))],
        ("global_stride", 0, 3200),
        ("global_stride", 1, (1 << 37) + 96),
        *[("element_stride", d, n) for d, n in enumerate((1, 2, 1))],
        ("elemtype", None, codes[dtype]),
        ("interleave_layout", None, 0),
        ("swizzle_mode", None, 3),
        ("swizzle_atomicity", None, 1),
        ("fill_mode", None, 0),
    ]
    for step in steps:
        tensormap.replace(raw, *step)
    expected = tensormap.encode(
        dtype,
        0x7F0000001000,
        (200, 30, 5),
        (3200, (1 << 37) + 96),
        (64 // size, 8, 2),
        (1, 2, 1),
        swizzle="128B_ATOM_32B",
    )
    assert raw.tobytes() == expected.tobytes()


def test_replace_changes_one_field_only() -> None:
    raw = tensormap.encode(**GOOD)
    before = tensormap.decode(raw)
    tensormap.replace(raw, "global_dim", 1, 17)
    tensormap.replace(raw, "global_address", None, 0x5000)
    after = tensormap.decode(raw)
    assert (after.shape, after.address) == ((200, 17, 5), 0x5000)
    assert (after.strides, after.box, after.swizzle) == (before.strides, before.box, before.swizzle)


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (("box_dim", 5, 8), "descriptor"),
        (("box_dim", None, 8), "descriptor"),
        (("box_dim", 0, 257), "descriptor"),
        (("global_stride", 4, 16), "descriptor"),
        (("global_stride", 0, 24), "descriptor"),
        (("element_stride", 0, 9), "descriptor"),
        (("rank", None, 5), "descriptor"),
        (("elemtype", None, 13), "descriptor"),
        (("swizzle_mode", None, 4), "descriptor"),
        (("swizzle_atomicity", None, 4), "descriptor"),
        (("proxy", None, 0), "unsupported"),
    ],
    ids=str,
)
def test_illegal_replacements_are_refused(step: tuple[str, int | None, int], kind: str) -> None:
    with pytest.raises(Fault) as fault:
        tensormap.replace(tensormap.encode(**GOOD), *step)
    assert fault.value.kind == kind
