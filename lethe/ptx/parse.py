"""PTX text -> ``Module``: a recursive-descent parser with labels and scoped names resolved.

PTX ISA sections 4 (syntax), 5.4 (variables), 6.4 (operands), 10 (directives). Inner ``{ }`` scopes of
inline assembly may declare registers and labels again; every such name is made unique with its scope's
number. Device functions are skipped; the machine refuses calls except to the assertion and print hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lethe.ptx.lexer import Source, Token
from lethe.ptx.operands import Cursor, Scope, float_constant
from lethe.ptx.syntax import (
    WIDTHS,
    Guard,
    Instruction,
    Kernel,
    Module,
    Operand,
    Param,
    Reg,
    Variable,
)

_SPACES = {".shared": "shared", ".global": "global", ".const": "const", ".local": "local", ".param": "param"}
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_BRANCHES = {"bra", "brx"}


def parse(text: str) -> Module:
    """Parse a translation unit.

    Args:
        text: PTX source.

    Returns:
        The module with every ``.entry`` as a ``Kernel``.

    Raises:
        Fault: kind ``parse``, with the line.
    """
    return _Parser(Source(text)).module()


class _Parser(Cursor):
    # -- module level
    def module(self) -> Module:
        module = Module(version="", target="")
        while self.peek().kind != "end":
            self.module_item(module)
        return module

    def module_item(self, module: Module) -> None:
        linkage = set()
        while self.peek().text in _LINKAGE:
            linkage.add(self.next().text)
        token = self.next()
        word = token.text
        if word == ".version":
            module.version = self.next().text
        elif word == ".target":
            module.target = self.next().text
            while self.accept(","):
                self.next()
        elif word == ".address_size":
            self.next()
        elif word == ".entry":
            kernel = self.entry()
            module.kernels[kernel.name] = kernel
        elif word == ".func":
            while self.peek().text not in ("{", ";"):
                self.next()
            if not self.accept(";"):
                self.skip_braces()
        elif word == ".section":
            while self.peek().text != "{":
                self.next()
            self.skip_braces()
        elif word in _SPACES:
            for variable in self.declaration(_SPACES[word], ".extern" in linkage):
                module.variables[variable.name] = variable
        elif word != ";":
            self.fail(f"unexpected {word!r} at module level", token)

    def declaration(self, space: str, extern: bool) -> Iterator[Variable]:
        """``.align N .type name[size]... (= init)? ;`` possibly several names."""
        align, kind, lanes = 0, "", 1
        while self.peek().kind == "directive":
            word = self.next().text[1:]
            if word == "align":
                align = self.integer()
            elif word in ("v2", "v4"):
                lanes = int(word[1])
            elif word in WIDTHS:
                kind = word
            elif word == "attribute":
                while self.next().text != ")":
                    pass
            elif word != "ptr" and "." + word not in _SPACES:
                self.fail(f"unknown variable attribute .{word}")
        while True:
            token = self.next()
            count, unsized = 1, False
            while self.accept("["):
                if self.accept("]"):
                    unsized = True
                    continue
                count *= self.integer()
                self.expect("]")
            width = WIDTHS[kind] * lanes
            init = self.initialiser(kind) if self.accept("=") else None
            size = len(init) if unsized and init is not None else 0 if unsized else count * width
            if init is not None:
                init = init.ljust(size, b"\0")
            yield Variable(space, token.text, kind, align or width, size, extern, init)
            if not self.accept(","):
                break
        self.expect(";")

    def initialiser(self, kind: str) -> bytes:
        if self.accept("{"):
            out = b""
            while not self.accept("}"):
                out += self.initialiser(kind)
                self.accept(",")
            return out
        width = WIDTHS[kind]
        if self.peek().kind == "float":
            imm = float_constant(self.next().text)
            value = imm.bits
        else:
            value = self.integer()
        return (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")

    # -- kernels
    def entry(self) -> Kernel:
        kernel = Kernel(self.next().text)
        if self.accept("("):
            while not self.accept(")"):
                kernel.params.append(self.param())
                self.accept(",")
        while self.peek().text != "{":
            directive = self.next().text[1:]
            values = []
            while self.peek().kind == "int":
                values.append(self.integer())
                self.accept(",")
            kernel.directives[directive] = tuple(values)
            self.accept(";")
        self.body(kernel)
        return kernel

    def param(self) -> Param:
        self.expect(".param")
        align, kind = 0, ""
        while self.peek().kind == "directive":
            word = self.next().text[1:]
            if word == "align":
                value = self.integer()
                align = align or value
            elif word == "ptr":
                while self.peek().text in (".global", ".shared", ".const", ".local", ".param", ".align"):
                    if self.next().text == ".align":
                        self.integer()
            elif word in WIDTHS:
                kind = word
        name, count = self.next().text, 1
        if self.accept("["):
            count = self.integer()
            self.expect("]")
        width = WIDTHS[kind]
        return Param(name, kind, align or width, width * count)

    def body(self, kernel: Kernel) -> None:
        self.expect("{")
        number = 0
        self.scopes = [Scope(0)]
        branches: list[tuple[int, str, tuple[Scope, ...], Token]] = []
        while self.scopes:
            token = self.peek()
            if token.text == "{":
                self.next()
                number += 1
                self.scopes.append(Scope(number))
            elif token.text == "}":
                self.next()
                self.scopes.pop()
            elif token.kind == "directive":
                self.local_directive(kernel)
            elif token.kind == "name" and self.tokens[self.position + 1].text == ":":
                self.position += 2
                unique = token.text + self.scopes[-1].suffix
                self.scopes[-1].labels[token.text] = unique
                kernel.labels[unique] = len(kernel.instructions)
            elif not self.accept(";"):
                instruction = self.instruction(kernel)
                if instruction.opcode in _BRANCHES:
                    label = instruction.operands[-1]
                    branches.append((len(kernel.instructions), str(label), tuple(self.scopes), token))
                kernel.instructions.append(instruction)
        self.resolve(kernel, branches)

    def resolve(self, kernel: Kernel, branches: list[tuple[int, str, tuple[Scope, ...], Token]]) -> None:
        for index, label, scopes, token in branches:
            for scope in reversed(scopes):
                if label in scope.labels:
                    target = kernel.labels[scope.labels[label]]
                    kernel.instructions[index] = replace(kernel.instructions[index], target=target)
                    break
            else:
                self.fail(f"undefined label {label!r}", token)

    def local_directive(self, kernel: Kernel) -> None:
        word = self.next().text
        if word == ".reg":
            self.registers()
        elif word in _SPACES:
            for variable in self.declaration(_SPACES[word], False):
                space = "local" if variable.space == "param" else variable.space
                kernel.variables[variable.name] = replace(variable, space=space)
        elif word in (".pragma", ".branchtargets", ".calltargets", ".callprototype"):
            while self.next().text != ";":
                pass
        else:
            self.fail(f"unknown directive {word!r}")

    def registers(self) -> None:
        kind = self.next().text[1:]
        if kind not in WIDTHS:
            self.fail(f"unsupported register type .{kind}")
        scope = self.scopes[-1]
        while True:
            name = self.next().text
            if self.accept("<"):
                scope.ranges[name] = (kind, self.integer())
                self.expect(">")
            else:
                scope.names[name] = kind
            if not self.accept(","):
                break
        self.expect(";")

    # -- instructions
    def instruction(self, kernel: Kernel) -> Instruction:
        start = self.peek()
        guard = None
        if self.accept("@"):
            negated = self.accept("!")
            token = self.next()
            reg = self.named(token.text, kernel)
            if not isinstance(reg, Reg):
                self.fail(f"{token.text!r} is not a predicate register", token)
            assert isinstance(reg, Reg)
            guard = Guard(reg, negated)
        token = self.next()
        if token.kind != "name":
            self.fail(f"expected an instruction, found {token.text!r}", token)
        opcode, *modifiers = token.text.split(".")
        operands: list[Operand] = []
        while not self.accept(";"):
            operands.append(self.operand(kernel))
            if self.peek().text != ";":
                self.expect(",")
        end = self.tokens[self.position - 1].start
        text = " ".join(self.source.text[start.start : end].split())
        line = self.source.line(start.start)
        return Instruction(opcode, tuple(modifiers), tuple(operands), guard, line, text)
