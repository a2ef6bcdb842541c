"""The grammar: operands, scopes, directives, and errors that name their line."""

from __future__ import annotations

import pytest

from lethe.ptx import Fault, parse
from lethe.ptx.syntax import (
    Address,
    FloatImm,
    Imm,
    Instruction,
    Kernel,
    Not,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)

HEAD = ".version 8.7\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, params: str = ".param .u64 p0") -> Kernel:
    declared = ".reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n"
    return parse(f"{HEAD}.visible .entry k({params})\n{{\n{declared}{body}\nret;\n}}\n").kernels["k"]


def one(line: str) -> Instruction:
    return kernel(line).instructions[0]


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("%r1", Reg("%r1", "b32")),
        ("-17", Imm(-17)),
        ("0x1F", Imm(31)),
        ("017", Imm(15)),
        ("0b101", Imm(5)),
        ("42U", Imm(42)),
        ("0f3F800000", FloatImm(0x3F800000, 32)),
        ("0d3FF0000000000000", FloatImm(0x3FF0000000000000, 64)),
        ("1.5", FloatImm(0x3FF8000000000000, 64)),
        ("%tid.x", Special("%tid.x")),
        ("_", Sink()),
        ("!%p1", Not(Reg("%p1", "pred"))),
        ("p0", Symbol("p0")),
        ("{%r1, _}", Vector((Reg("%r1", "b32"), Sink()))),
        ("%r1|%p2", Pair(Reg("%r1", "b32"), Reg("%p2", "pred"))),
        ("[%rd1+-16]", Address(Reg("%rd1", "b64"), -16)),
        ("[ %rd1 + 8 ]", Address(Reg("%rd1", "b64"), 8)),
        (
            "[%rd1, {%r1, %r2}]",
            Address(Reg("%rd1", "b64"), 0, (Vector((Reg("%r1", "b32"), Reg("%r2", "b32"))),)),
        ),
    ],
)
def test_operands(text: str, operand: object) -> None:
    assert one(f"mov.b32 %r0, {text};").operands[1] == operand


def test_names_and_guard() -> None:
    ins = one(
        "@!%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile"
        ".mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];"
    )
    assert ins.opcode == "cp"
    assert ins.modifiers[-1] == "mbarrier::complete_tx::bytes"
    assert ins.guard is not None and ins.guard.negated
    assert ins.line == 9


def test_inner_scopes_have_their_own_registers_and_labels() -> None:
    inner = "{ .reg .pred P1;\nLAB: setp.eq.u32 P1, %r1, 0;\n@P1 bra LAB; }\n"
    found = kernel(inner + inner)
    branches = [i for i in found.instructions if i.opcode == "bra"]
    assert [b.target for b in branches] == [0, 2]
    assert branches[0].guard != branches[1].guard


def test_directives_and_variables() -> None:
    source = (
        HEAD
        + """
.extern .shared .align 1024 .b8 dynamic[];
.const .align 4 .u32 table[3] = {1, 2};
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 .ptr .global .align 16 a)
.reqntid 128, 1, 1
.minnctapersm 2
{ .shared .align 8 .b8 slots[24]; .loc 1 2 3
// comment ; with a semicolon
ret; /* and
another */ }
.section .debug_info { .b8 1, 2; { .b32 $L }; }
"""
    )
    module = parse(source)
    k = module.kernels["k"]
    assert k.directives == {"reqntid": (128, 1, 1), "minnctapersm": (2,)}
    assert [(p.name, p.align, p.size) for p in k.params] == [("map", 64, 128), ("a", 8, 8)]
    assert module.variables["dynamic"].extern and module.variables["dynamic"].align == 1024
    assert module.variables["table"].init == bytes([1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])
    assert k.variables["slots"].size == 24
    assert [i.opcode for i in k.instructions] == ["ret"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.b32 %r1, ?;", "line 9: unexpected character"),
        ("bra NOWHERE;", "line 9: undefined label 'NOWHERE'"),
        ("mov.b32 %r1 %r2;", "line 9: expected ','"),
        ("@q bra X;", "line 9: 'q' is not a predicate register"),
        (".frob x;", "line 9: unknown directive"),
    ],
)
def test_errors_name_their_line(body: str, message: str) -> None:
    with pytest.raises(Fault) as caught:
        kernel(body)
    assert caught.value.kind == "parse"
    assert caught.value.message.startswith(message)
