"""Tokens to operands: the cursor that every part of the parser shares, and the operand grammar.

PTX ISA 6 (operands) and 4.5 (constants).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from lethe.ptx.faults import Fault
from lethe.ptx.lexer import Source, Token, int_value
from lethe.ptx.syntax import (
    Address,
    FloatImm,
    Imm,
    Kernel,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    Vector,
)


class Scope:
    """One brace level: registers (single and ranged) and the suffix that makes names unique."""

    def __init__(self, number: int) -> None:
        self.suffix = f"#{number}" if number else ""
        self.names: dict[str, str] = {}
        self.ranges: dict[str, tuple[str, int]] = {}
        self.labels: dict[str, str] = {}

    def find(self, name: str) -> str | None:
        kind = self.names.get(name)
        if kind is None and self.ranges:
            stem = name.rstrip("0123456789")
            ranged = self.ranges.get(stem)
            if ranged and len(stem) < len(name) and int(name[len(stem) :]) < ranged[1]:
                kind = ranged[0]
        return kind


class Cursor:
    """A position in the tokens of a translation unit, with the scopes that are open there."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = source.tokens()
        self.position = 0
        self.scopes: list[Scope] = []

    # -- token helpers
    def peek(self) -> Token:
        return self.tokens[self.position]

    def next(self) -> Token:
        token = self.tokens[self.position]
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        if self.tokens[self.position].text == text:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        token = self.next()
        if token.text != text:
            self.fail(f"expected {text!r}, found {token.text!r}", token)
        return token

    def fail(self, message: str, token: Token | None = None) -> None:
        line = self.source.line((token or self.peek()).start)
        raise Fault("parse", f"line {line}: {message}")

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        token = self.next()
        if token.kind != "int":
            self.fail(f"expected an integer, found {token.text!r}", token)
        return sign * int_value(token.text)

    def skip_braces(self) -> None:
        depth = 0
        while True:
            token = self.next()
            if token.kind == "end":
                self.fail("unbalanced braces", token)
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            if depth == 0 and token.text == "}":
                return

    def operand(self, kernel: Kernel) -> Operand:
        first = self.primary(kernel)
        if self.accept("|"):
            return Pair(first, self.primary(kernel))
        return first

    def primary(self, kernel: Kernel) -> Operand:
        token = self.next()
        text = token.text
        if token.kind == "name":
            if text == "_":
                return Sink()
            value = self.named(text, kernel)
            if isinstance(value, Symbol) and self.peek().text in ("+", "-"):
                return Symbol(value.name, self.offset())
            return value
        if token.kind == "int":
            return Imm(int_value(text))
        if token.kind == "float":
            return float_constant(text)
        if text == "-":
            value = self.primary(kernel)
            if isinstance(value, Imm):
                return Imm(-value.value)
            if isinstance(value, FloatImm):
                return FloatImm(value.bits ^ (1 << (value.width - 1)), value.width)
        if text == "!":
            value = self.primary(kernel)
            if isinstance(value, Reg):
                return Not(value)
        if text in ("{", "("):
            return Vector(tuple(self.listed(kernel, "}" if text == "{" else ")")))
        if text == "[":
            return self.address(kernel)
        self.fail(f"unexpected {text!r} in an operand", token)
        raise AssertionError

    def listed(self, kernel: Kernel, closing: str) -> Iterator[Operand]:
        while not self.accept(closing):
            yield self.operand(kernel)
            self.accept(",")

    def offset(self) -> int:
        total = 0
        while self.peek().text in ("+", "-"):
            sign = 1 if self.next().text == "+" else -1
            total += sign * self.integer()
        return total

    def address(self, kernel: Kernel) -> Address:
        base = self.primary(kernel)
        offset = self.offset()
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), offset + base.offset
        extra = []
        while self.accept(","):
            extra.append(self.operand(kernel))
        self.expect("]")
        return Address(base, offset, tuple(extra))

    def named(self, name: str, kernel: Kernel) -> Operand:
        for scope in reversed(self.scopes):
            kind = scope.find(name)
            if kind is not None:
                unique = name + scope.suffix
                reg = kernel.registers.get(unique)
                if reg is None:
                    reg = kernel.registers[unique] = Reg(unique, kind)
                return reg
        if name == "WARP_SZ":
            return Imm(32)
        if name[0] == "%":
            return Special(name)
        return Symbol(name)


def float_constant(text: str) -> FloatImm:
    """A floating literal: hexadecimal single or double, or decimal (a double)."""
    if text[:2] in ("0f", "0F"):
        return FloatImm(int(text[2:], 16), 32)
    if text[:2] in ("0d", "0D"):
        return FloatImm(int(text[2:], 16), 64)
    return FloatImm(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
