"""Tensor copies one at a time on the machine: loads, stores, reductions, maps made on the device.

The expected values come from the loops and tables of the other tests of this folder.
"""

from __future__ import annotations

import numpy as np
import pytest

from lethe.ptx import tma
from tests.ptx import test_tma
from tests.ptx.tensor_kernels import MBARRIER, TILE, aligned, copy_in, copy_out, execute, mbarrier, wait

schedules = pytest.mark.parametrize("schedule", ["early", "late", 1, 2])


TMA_CASES = [
    ("f32", (50,), (16,), (1,), (40,), "none"),
    ("f16", (100, 40), (64, 16), (1, 1), (64, 30), "128B"),
    ("bf16", (70, 9, 4), (16, 8, 2), (1, 1, 1), (60, -3, 3), "32B"),
    ("u8", (64, 6, 5, 3), (64, 3, 2, 2), (1, 2, 1, 1), (0, 4, -1, 2), "64B"),
    ("s32", (40, 4, 3, 3, 2), (32, 3, 2, 2, 2), (1, 1, 1, 1, 1), (16, 2, -1, 1, 1), "128B_ATOM_32B"),
]


def unswizzled(image: np.ndarray, mode: str) -> np.ndarray:
    """Undo the documented pattern on a tile at a 1024-byte boundary."""
    granules = image.reshape(-1, 16)
    order = [8 * (i // 8) + test_tma.PATTERNS[mode][i // 8 % 8][i % 8] for i in range(len(granules))]
    return granules[order].reshape(-1)


@schedules
@pytest.mark.parametrize(("dtype", "dims", "box", "steps", "coords", "mode"), TMA_CASES, ids=lambda v: str(v))
def test_tensor_loads(dtype, dims, box, steps, coords, mode, schedule) -> None:  # type: ignore[no-untyped-def]
    data, strides = test_tma.tensor(dtype, dims, 32)
    data = aligned(data)
    raw = aligned(tma.encode(dtype, data.ctypes.data, dims, strides, box, steps, swizzle=mode))
    tmap = tma.decode(raw)
    out = np.zeros(-(-tmap.box_bytes // 128) * 128, np.uint8)
    where = ", ".join(str(c) for c in coords)
    body = f"""
{mbarrier()}
@!%p1 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r3+{MBARRIER}], {tmap.box_bytes};
add.s32 %r11, %r3, {TILE};
cp.async.bulk.tensor.{len(dims)}d.shared::cta.global.mbarrier::complete_tx::bytes
  [%r11], [%rd10, {{{where}}}], [%r3+{MBARRIER}];
ISSUED:
{wait()}
{copy_out(1, tmap.box_bytes)}
"""
    execute(body, [raw, out, data], schedule=schedule)
    expected, _ = test_tma.by_loops(data, tmap, coords, bytes(tmap.element_bytes))
    assert unswizzled(out, mode)[: tmap.box_bytes].tobytes() == expected


@schedules
@pytest.mark.parametrize("op", [None, "add", "max"])
def test_tensor_stores_and_reductions(op: str | None, schedule: str | int) -> None:
    rng = np.random.default_rng(3)
    old = rng.integers(0, 100, (12, 20)).astype(np.float16)
    tile = rng.integers(0, 100, (8, 16)).astype(np.float16)
    wide = aligned(np.zeros((12, 24), np.float16))
    wide[:, :20] = old
    raw = aligned(tma.encode("f16", wide.ctypes.data, (20, 12), (48,), (16, 8)))
    form = (
        f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}"
        if op
        else "cp.async.bulk.tensor.2d.global.shared::cta"
    )
    body = f"""
{copy_in(1, 256)}
@!%p1 bra DONE;
add.s32 %r11, %r3, {TILE};
{form}.tile.bulk_group [%rd10, {{8, 6}}], [%r11];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
"""
    execute(body, [raw, tile, wide], schedule=schedule)
    expected = np.zeros_like(wide)
    expected[:, :20] = old
    part = tile[:6, :12]
    rule = {None: lambda x, y: y, "add": np.add, "max": np.maximum}[op]
    expected[6:12, 8:20] = rule(old[6:12, 8:20], part)
    assert np.array_equal(wide, expected)


@schedules
def test_a_tensor_map_made_on_the_device(schedule: str | int) -> None:
    data = aligned(np.arange(64 * 40, dtype=np.uint16).reshape(40, 64))
    raw, out = aligned(np.zeros(128, np.uint8)), np.zeros((8, 64), np.uint16)
    fields = [
        "global_address.b64 [%rd3], %rd12", "rank.b32 [%rd3], 1",
        "box_dim.b32 [%rd3], 0, 64", "box_dim.b32 [%rd3], 1, 8",
        "global_dim.b32 [%rd3], 0, 64", "global_dim.b32 [%rd3], 1, 40",
        "global_stride.b64 [%rd3], 0, 128", "element_stride.b32 [%rd3], 0, 1",
        "element_stride.b32 [%rd3], 1, 1", "elemtype.b32 [%rd3], 1",
        "interleave_layout.b32 [%rd3], 0", "swizzle_mode.b32 [%rd3], 3",
        "fill_mode.b32 [%rd3], 0",
    ]  # fmt: skip
    names = [field.replace(".b", ".shared::cta.b1024.b") for field in fields]
    replaced = "\n".join(f"@%p1 tensormap.replace.tile.{name};" for name in names)
    body = f"""
mov.b32 %r20, 0;
shl.b32 %r4, %r2, 2;
add.s32 %r4, %r4, %r3;
@%p2 st.shared.b32 [%r4+512], %r20;
bar.sync 0;
cvt.u64.u32 %rd3, %r3;
add.s64 %rd3, %rd3, 512;
{replaced}
bar.sync 0;
@!%p2 bra COPIED;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd10], [%rd3], 128;
fence.proxy.tensormap::generic.acquire.gpu [%rd10], 128;
COPIED:
{mbarrier()}
@!%p1 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r3+{MBARRIER}], 1024;
add.s32 %r11, %r3, {TILE};
cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes
  [%r11], [%rd10, {{0, 36}}], [%r3+{MBARRIER}];
ISSUED:
{wait()}
{copy_out(1, 1024)}
"""
    execute(body, [raw, out, data], schedule=schedule)
    assert tma.decode(raw).address == data.ctypes.data
    got = unswizzled(out.reshape(-1).view(np.uint8), "128B").view(np.uint16).reshape(8, 64)
    assert np.array_equal(got[:4], data[36:])
    assert not got[4:].any()
