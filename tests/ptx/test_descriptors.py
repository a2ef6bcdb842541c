"""Matrix and instruction descriptors: bit fields, canonical layouts of shared memory, and what is illegal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lethe.ptx import descriptors
from lethe.ptx.descriptors import Instruction, SharedMatrix
from lethe.ptx.faults import Fault
from tests.ptx.cute_layout import SPAN, canonical

LAYOUT_CODES = {"none": 0, "128B_ATOM_32B": 1, "128B": 2, "64B": 4, "32B": 6}


def descriptor(start: int, leading: int, stride: int, layout: int, base: int = 0) -> int:
    """Table "Shared memory descriptor layout" of tcgen05."""
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 0b001 << 46 | base << 49 | layout << 61


@pytest.mark.parametrize("mode", LAYOUT_CODES)
def test_fields_of_a_tcgen05_matrix(mode: str) -> None:
    bits = descriptor(0x3FFF0, 0x120, 0x400, LAYOUT_CODES[mode], 5)
    matrix = descriptors.tcgen05_matrix(bits)
    assert matrix == SharedMatrix(0x3FFF0, 0x120, 0x400, mode, 5)
    assert descriptors.encode_tcgen05(matrix) == bits


@pytest.mark.parametrize(("code", "mode"), list(enumerate(["none", "128B", "64B", "32B"])))
def test_fields_of_a_wgmma_matrix(code: int, mode: str) -> None:
    bits = 0x1230 >> 4 | 0x80 >> 4 << 16 | 0x400 >> 4 << 32 | 3 << 49 | code << 62
    matrix = descriptors.wgmma_matrix(bits)
    assert matrix == SharedMatrix(0x1230, 0x80, 0x400, mode, 3)
    assert descriptors.encode_wgmma(matrix) == bits


@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (descriptor(0x1000, 16, 1024, 3), "descriptor"),
        (descriptor(0x1000, 16, 1024, 5), "descriptor"),
        (descriptor(0x1000, 16, 1024, 7), "descriptor"),
        (descriptor(0x1000, 16, 1024, 2) & ~(1 << 46), "descriptor"),
        (descriptor(0x1000, 16, 1024, 2) | 1 << 47, "descriptor"),
        (descriptor(0x1000, 16, 1024, 2) | 1 << 14, "descriptor"),
        (descriptor(0x1000, 16, 1024, 2) | 1 << 31, "descriptor"),
        (descriptor(0x1000, 16, 1024, 2) | 1 << 57, "descriptor"),
        (descriptor(0x1000, 16, 1024, 2) | 1 << 52, "unsupported"),
        (0, "descriptor"),
    ],
    ids=lambda value: hex(value) if isinstance(value, int) else value,
)
def test_illegal_tcgen05_matrices(bits: int, kind: str) -> None:
    with pytest.raises(Fault) as fault:
        descriptors.tcgen05_matrix(bits)
    assert fault.value.kind == kind


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 48, 52, 61])
def test_illegal_wgmma_matrices(bit: int) -> None:
    with pytest.raises(Fault) as fault:
        descriptors.wgmma_matrix(1 << 62 | 1 << bit)
    assert fault.value.kind == "descriptor"


@pytest.mark.parametrize("field", ["start", "leading", "stride"])
def test_a_misaligned_matrix_cannot_be_encoded(field: str) -> None:
    matrix = replace(SharedMatrix(0x1000, 16, 1024, "128B"), **{field: 0x1008})
    for encode in (descriptors.encode_tcgen05, descriptors.encode_wgmma):
        with pytest.raises(Fault) as fault:
            encode(matrix)
        assert fault.value.kind == "alignment"


def offsets_of(mode: str, mn_major: bool, rows: int, k: int, size: int) -> tuple[int, int]:
    """Leading and stride offsets of a dense tile, with a gap so that they cannot be confused."""
    if mn_major and mode == "none":
        return 8 * 16 * (rows * size // 16) + 256, 8 * 16
    if mn_major:
        columns = 4 if mode == "128B_ATOM_32B" else 8
        atom = SPAN[mode] * 16 * columns
        return atom * (k // columns), atom
    if mode == "none":
        return 8 * 16, 8 * 16 * 2 + 512
    return 16, SPAN[mode] * 16 * 8


CANONICAL = [
    (mode, mn_major, size)
    for mode in LAYOUT_CODES
    for mn_major in (False, True)
    for size in (2, 4)
    if mode != "128B_ATOM_32B" or (mn_major and size == 4)
]


@pytest.mark.parametrize(("mode", "mn_major", "size"), CANONICAL, ids=str)
@pytest.mark.parametrize("rows", [64, 128, 256])
def test_canonical_layouts(mode: str, mn_major: bool, size: int, rows: int) -> None:
    k = 32 // size
    leading, stride = offsets_of(mode, mn_major, rows, k, size)
    where = canonical(mode, mn_major, rows, k, size, 0x2000, leading, stride)
    assert np.unique(where).size == rows * k
    shared = np.zeros(1 << 17, np.uint8)
    values = np.random.default_rng(rows).integers(0, 1 << 8 * size, (rows, k)).astype(f"u{size}")
    for byte in range(size):
        shared[where + byte] = values >> 8 * byte & 0xFF
    matrix = descriptors.tcgen05_matrix(descriptor(0x2000, leading, stride, LAYOUT_CODES[mode]))
    chunks = descriptors.granules(matrix, rows, 32, size, mn_major)
    assert np.array_equal(descriptors.read_matrix(shared, chunks, size, mn_major), values)
    assert np.array_equal(np.unique(chunks), np.unique(where & ~15))


def test_small_n_of_an_mn_major_matrix_stays_inside_the_atom() -> None:
    where = canonical("128B", True, 8, 16, 2, 0x2000, 0x8000, 1024)
    matrix = SharedMatrix(0x2000, 0x8000, 1024, "128B")
    chunks = descriptors.granules(matrix, 8, 32, 2, True)
    assert np.array_equal(np.unique(chunks), np.unique(where & ~15))


@pytest.mark.parametrize("advance", [32, 64, 96])
def test_advancing_along_k_inside_a_swizzled_row(advance: int) -> None:
    """CuTe steps K by 32 bytes of the start address; the XOR still counts from the 1024-byte boundary."""
    whole = canonical("128B", False, 64, 64, 2, 0x4000, 16, 1024)
    matrix = SharedMatrix(0x4000 + advance, 16, 1024, "128B")
    chunks = descriptors.granules(matrix, 64, 32, 2, False)
    expected = whole[:, advance // 2 : advance // 2 + 16 : 8]
    assert np.array_equal(chunks, expected)


@pytest.mark.parametrize("row", range(8))
def test_base_offset_moves_the_start_of_the_pattern(row: int) -> None:
    """A matrix written as if row 0 of the pattern were at `row` * 128 past a 1024-byte boundary."""
    start = 0x4000 + 128 * row
    chunks = descriptors.granules(SharedMatrix(start, 16, 1024, "128B", row), 8, 32, 2, False)
    aligned = descriptors.granules(SharedMatrix(0x4000, 16, 1024, "128B"), 8, 32, 2, False)
    assert np.array_equal((chunks - start) % 128, (aligned - 0x4000) % 128)
    assert np.array_equal(chunks // 128 - start // 128, aligned // 128 - 0x4000 // 128)


@pytest.mark.parametrize(("size", "mn_major"), [(2, True), (2, False), (4, False)])
def test_the_32_byte_atom_is_for_mn_major_tf32(size: int, mn_major: bool) -> None:
    with pytest.raises(Fault) as fault:
        descriptors.granules(SharedMatrix(0x2000, 16, 1024, "128B_ATOM_32B"), 64, 32, size, mn_major)
    assert fault.value.kind == "descriptor"


def test_a_matrix_past_the_end_of_shared_memory() -> None:
    chunks = descriptors.granules(SharedMatrix(0xC00, 16, 1024, "128B"), 64, 32, 2, False)
    end = int(chunks.max()) + 16
    assert descriptors.gather(np.zeros(end, np.uint8), chunks).shape == (64, 32)
    with pytest.raises(Fault) as fault:
        descriptors.gather(np.zeros(end - 16, np.uint8), chunks)
    assert fault.value.kind == "bounds"


F16_128x256 = 1 << 4 | 256 // 8 << 17 | 128 // 16 << 24


def test_fields_of_the_instruction_descriptor() -> None:
    """Table "Instruction descriptor format for .kind::tf32, .kind::f16 ..."."""
    op = descriptors.instruction(F16_128x256, "f16")
    assert op == Instruction(128, 256, 16, "f32", "f16", "f16", False, False, False, False)
    bits = 1 << 4 | 1 << 7 | 1 << 10 | 1 << 13 | 1 << 16 | 40 // 8 << 17 | 64 // 16 << 24
    op = descriptors.instruction(bits, "f16")
    assert op == Instruction(64, 40, 16, "f32", "bf16", "bf16", True, False, False, True)
    bits = 1 << 4 | 2 << 7 | 2 << 10 | 1 << 14 | 1 << 15 | 8 // 8 << 17 | 128 // 16 << 24
    op = descriptors.instruction(bits, "tf32")
    assert op == Instruction(128, 8, 8, "f32", "tf32", "tf32", False, True, True, False)
    op = descriptors.instruction(F16_128x256 & ~(3 << 4), "f16")
    assert op.d_type == "f16"


def test_instruction_descriptors_round_trip() -> None:
    for kind, types in (("f16", ("f16", "bf16")), ("tf32", ("tf32",))):
        for dtype in types:
            for m in (64, 128):
                for n in range(8, 257, 8):
                    flags = [bool(n >> 3 & 1 << i) for i in range(4)]
                    op = Instruction(m, n, 16 if kind == "f16" else 8, "f32", dtype, dtype, *flags)
                    assert descriptors.instruction(descriptors.encode_instruction(kind, op), kind) == op


@pytest.mark.parametrize(
    ("change", "kind", "expected"),
    [
        (1 << 2, "f16", "unsupported"),
        (1 << 0, "f16", "descriptor"),
        (1 << 3, "f16", "descriptor"),
        (1 << 6, "f16", "descriptor"),
        (1 << 23, "f16", "descriptor"),
        (1 << 29, "f16", "descriptor"),
        (1 << 30, "f16", "descriptor"),
        (1 << 7, "f16", "descriptor"),
        (2 << 7 | 2 << 10, "f16", "descriptor"),
        (1 << 5 | 1 << 4, "f16", "descriptor"),
        (1 << 4 | 1 << 7 | 1 << 10, "f16", "descriptor"),
        (0, "tf32", "descriptor"),
        (0, "f8f6f4", "unsupported"),
        (0, "i8", "unsupported"),
    ],
    ids=str,
)
def test_illegal_instruction_descriptors(change: int, kind: str, expected: str) -> None:
    """Each change flips bits of a legal descriptor; among them f16 = bf16 x bf16 and mixed inputs."""
    with pytest.raises(Fault) as fault:
        descriptors.instruction(F16_128x256 ^ change, kind)
    assert fault.value.kind == expected


@pytest.mark.parametrize(
    ("m", "n", "expected"),
    [(32, 64, "unsupported"), (256, 64, "unsupported"), (96, 64, "descriptor"), (0, 64, "descriptor"),
     (128, 0, "descriptor"), (128, 264, "descriptor"), (64, 504, "descriptor")],
)  # fmt: skip
def test_illegal_extents(m: int, n: int, expected: str) -> None:
    with pytest.raises(Fault) as fault:
        descriptors.instruction(1 << 4 | n // 8 << 17 | m // 16 << 24, "f16")
    assert fault.value.kind == expected
