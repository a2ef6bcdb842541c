"""Registers of one warp: packed 16-bit pairs, float32 fragments, and the instructions between them.

A *transposed fragment* of a tile [64 tokens, 64 or 128 channels] gives every warp 16 channels and all
tokens: with ``r = lane // 4`` and ``c = lane % 4`` a thread holds channels ``r + 8 h`` and tokens ``8 t + 2
c + e`` (h, e in 0, 1; t in 0..7). Packed it is a list of 16 words, the tokens of a word side by side, at
index ``2 t + h``; in float32 a list of 32 at index ``4 t + 2 h + e``. That is at once the accumulator of a
transposed wgmma, the A operand of the next one and, by 16 tokens, that of ``mma.sync``.

Everything here runs while the kernel is traced: loops unroll, lists are registers.
"""

from collections.abc import Sequence

import cutlass
from cutlass import cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, select_

Float32, Int32, HALF = cutlass.Float32, cutlass.Int32, cutlass.Float16

LOG2E = 1.4426950408889634
_TYPES = {"f": Float32, "r": Int32, "l": cutlass.Int64}


def asm(text: str, results: str, arguments: Sequence, letters: str, effects: bool = False):
    """Inline PTX: operands $0.. are the results (letters f, r, l), then the arguments; a value or a tuple."""
    made = [_TYPES[letter].mlir_type for letter in results]
    kind = made[0] if len(made) == 1 else llvm.StructType.get_literal(made) if made else None
    values = [_TYPES[letter](a).ir_value() for letter, a in zip(letters, arguments, strict=True)]
    constraints = ",".join([f"={letter}" for letter in results] + list(letters))
    found = llvm.inline_asm(
        kind, values, text, constraints, has_side_effects=effects, asm_dialect=llvm.AsmDialect.AD_ATT
    )
    if len(made) < 2:
        return _TYPES[results](found) if made else None
    return tuple(
        _TYPES[letter](llvm.extractvalue(of, found, [i]))
        for i, (letter, of) in enumerate(zip(results, made, strict=True))
    )


def as_bits(x):
    """The bits of a float32."""
    return Int32(llvm.bitcast(T.i32(), Float32(x).ir_value()))


def as_float(bits):
    """The float32 with these bits."""
    return Float32(llvm.bitcast(T.f32(), Int32(bits).ir_value()))


def exp2(x):
    """2^x, approximate to 2^-22; subnormal results are zero."""
    return asm("ex2.approx.ftz.f32 $0, $1;", "f", [x], "f")


def reciprocal(x):
    """1 / x, approximate to 2^-23."""
    return asm("rcp.approx.ftz.f32 $0, $1;", "f", [x], "f")


def larger(a, b):
    """max(a, b); NaN if one of them is."""
    return asm("max.NaN.f32 $0, $1, $2;", "f", [a, b], "ff")


def magnitude(a):
    """|a|."""
    return asm("abs.f32 $0, $1;", "f", [a], "f")


def tf32(x):
    """The bits of x rounded to tf32, ties away."""
    return asm("cvt.rna.tf32.f32 $0, $1;", "r", [x], "f")


def tf32_operand(x):
    """Bits that a tensor core, which ignores the low 13, reads as x rounded to tf32, ties away.

    A NaN with all bits set would be lost."""
    return as_bits(x) + Int32(0x1000)


def add_in_quad(value, direction: str, distance: int):
    """value + that of the lane ``distance`` lower (up) or higher (down) in the quad, if there is one."""
    clamp = {"up": "0x1c00", "down": "0x1c1f"}[direction]
    return asm(
        "{\n\t.reg .pred p;\n\t.reg .f32 t;\n\t"
        f"shfl.sync.{direction}.b32 t|p, $1, {distance}, {clamp}, 0xffffffff;\n\t"
        "mov.f32 $0, $1;\n\t@p add.f32 $0, $1, t;\n\t}",
        "f",
        [value],
        "f",
        True,
    )


def pack(low, high, dtype=cutlass.Float16):
    """Two float32 as one word of float16 or bfloat16, to nearest even."""
    name = "f16x2" if dtype is cutlass.Float16 else "bf16x2"
    return asm(f"cvt.rn.{name}.f32 $0, $1, $2;", "r", [high, low], "ff")


def unpack(word, dtype):
    """The two float32 of a word."""
    if dtype is cutlass.Float16:
        return asm(
            "{\n\t.reg .b16 lo, hi;\n\tmov.b32 {lo, hi}, $2;\n\t"
            "cvt.f32.f16 $0, lo;\n\tcvt.f32.f16 $1, hi;\n\t}",
            "ff",
            [word],
            "r",
        )
    return as_float(word << 16), as_float(word & Int32(-65536))


def pack_all(values: Sequence, dtype=cutlass.Float16) -> list:
    """A float32 fragment as packed words."""
    return [pack(values[i], values[i + 1], dtype) for i in range(0, len(values), 2)]


def unpack_all(words: Sequence, dtype) -> list:
    """Packed words as a float32 fragment."""
    return [x for word in words for x in unpack(word, dtype)]


def largest(values: Sequence):
    """Largest magnitude that the warp holds, in every lane; NaN stays."""
    found = magnitude(values[0])
    for x in values[1:]:
        found = larger(found, magnitude(x))
    return as_float(asm("redux.sync.max.s32 $0, $1, 0xffffffff;", "r", [as_bits(found)], "r", True))


def binade(most):
    """(2^e, 2^-e) with ``most 2^e`` in [2^7, 2^8), exact; e within what float32 can undo.

    Of zeros e is 0, so that products of several tiles' units need not leave float32 because one is zero.
    """
    found = (as_bits(most) >> 23) & 255
    exponent = cutlass.min(cutlass.max(found, Int32(34)), Int32(234))
    exponent = Int32(select_(found == Int32(0), Int32(134), exponent))
    return as_float((Int32(261) - exponent) << 23), as_float((exponent - Int32(7)) << 23)


def two_to(power):
    """2^power of an int32 within [-126, 127]."""
    return as_float((power + Int32(127)) << 23)


def larger_than(limit: float, values: Sequence):
    """Has any lane of the warp a value of larger magnitude?"""
    found = magnitude(values[0])
    for x in values[1:]:
        found = larger(found, magnitude(x))
    return cute.arch.vote_any_sync(found > limit)


def largest_packed(words: Sequence, dtype):
    """`largest` of packed words."""
    name = "f16x2" if dtype is HALF else "bf16x2"
    found = None
    for word in words:
        bits = word & Int32(0x7FFF7FFF)
        found = bits if found is None else asm(f"max.NaN.{name} $0, $1, $2;", "r", [found, bits], "rr")
    low, high = unpack(found, dtype)
    return largest([low, high])


def load_matrices(address, transposed: bool = False):
    """ldmatrix of four 8 x 8 matrices: the lanes of group i give the rows of matrix i."""
    trans = ".trans" if transposed else ""
    return asm(
        f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{$0, $1, $2, $3}}, [$4];",
        "rrrr",
        [address],
        "r",
        True,
    )


def store_matrices(address, words: Sequence, transposed: bool = False) -> None:
    """stmatrix, the inverse."""
    trans = ".trans" if transposed else ""
    asm(
        f"stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [$0], {{$1, $2, $3, $4}};",
        "",
        [address, *words],
        "rrrrr",
        True,
    )


def multiply(sums: Sequence, a: Sequence, b: Sequence) -> list:
    """mma.sync m16n8k16 on float16: sums + a b, four float32."""
    return list(
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
            "ffff",
            [*a, *b, *sums],
            "rrrrrrffff",
        )
    )


def multiply_tf32(sums: Sequence, a: Sequence, b: Sequence) -> list:
    """mma.sync m16n8k8 on tf32, whose operands are bits."""
    return list(
        asm(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
            "ffff",
            [*a, *b, *sums],
            "rrrrrrffff",
        )
    )


def load_float(address, offset: int = 0):
    """ld.shared of one float32 at address + offset."""
    return asm(f"ld.shared.f32 $0, [$1+{offset}];", "f", [address], "r", True)


def load_two(address, offset: int = 0):
    """ld.shared of two float32 side by side, 8-byte aligned."""
    return asm(f"ld.shared.v2.f32 {{$0, $1}}, [$2+{offset}];", "ff", [address], "r", True)


def store_float(address, value, offset: int = 0) -> None:
    """st.shared of one float32."""
    asm(f"st.shared.f32 [$0+{offset}], $1;", "", [address, value], "rf", True)


def store_two(address, first, second, offset: int = 0) -> None:
    """st.shared of two float32 side by side, 8-byte aligned."""
    asm(f"st.shared.v2.f32 [$0+{offset}], {{$1, $2}};", "", [address, first, second], "rff", True)


def of_quad(value, lane, c: int):
    """What the lane with this c holds, in every lane of the four."""
    return cute.arch.shuffle_sync(value, (lane & Int32(~3)) + Int32(c))


def sum_of_quad(value):
    """The sum over the four lanes of a channel."""
    value = value + cute.arch.shuffle_sync_bfly(value, 1)
    return value + cute.arch.shuffle_sync_bfly(value, 2)


def choose(condition, yes, no):
    """yes where the condition holds, else no: float32 without a branch."""
    return Float32(select_(condition, yes, no))


def store_if(condition, address, value) -> None:
    """st.shared of one float32 by the threads where the condition holds."""
    flag = Int32(select_(condition, Int32(1), Int32(0)))
    text = "{\n\t.reg .pred p;\n\tsetp.ne.s32 p, $2, 0;\n\t@p st.shared.f32 [$0], $1;\n\t}"
    asm(text, "", [address, value, flag], "rfr", True)


def store_rows_if(token, valid, address, values: Sequence) -> None:
    """Two float32 to global memory, 32 bytes apart, if the token is one of the valid."""
    text = "{\n\t.reg .pred p;\n\tsetp.lt.s32 p, $3, $4;\n\t"
    text += "@p st.global.f32 [$0], $1;\n\t@p st.global.f32 [$0+32], $2;\n\t}"
    asm(text, "", [address, *values, token, valid], "lffrr", True)


def load_rows_if(token, valid, address) -> tuple:
    """What `store_rows_if` stores, or zeros."""
    text = "{\n\t.reg .pred p;\n\tsetp.lt.s32 p, $3, $4;\n\t"
    text += "mov.f32 $0, 0f00000000;\n\tmov.f32 $1, 0f00000000;\n\t"
    text += "@p ld.global.f32 $0, [$2];\n\t@p ld.global.f32 $1, [$2+32];\n\t}"
    return asm(text, "ff", [address, token, valid], "lrr", True)


def store_zeros(address) -> None:
    """16 bytes of zero to shared memory."""
    asm("st.shared.v4.b32 [$0], {$1, $1, $1, $1};", "", [address, Int32(0)], "rr", True)


def copy_out(address, shared) -> None:
    """16 bytes from shared memory to a global address."""
    words = asm("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "rrrr", [shared], "r", True)
    asm("st.global.v4.b32 [$0], {$1, $2, $3, $4};", "", [address, *words], "lrrrr", True)
