"""Mutations of C++ kernels, found by patterns over the C++ text that a candidate holds as a string.

The text is cut into statements well enough for this: comments are blanked out, and a pattern is applied
only where its context (a ``for`` header, an index, a declaration of ``float``) says what is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lethe.evidence.mutants.catalog import operator
from lethe.evidence.mutants.source import Edit

BEGIN = re.compile(r'^CPP_SOURCE = r?"""', re.MULTILINE)


class CppText:
    """The C++ part of a candidate. `code` has the length of the source; all but C++ code is blank."""

    def __init__(self, source: str) -> None:
        if not source.isascii():
            raise ValueError("a C++ candidate with other than ASCII text has no byte offsets here")
        self.source = source
        found = BEGIN.search(source)
        start = found.end() if found else len(source)
        end = source.find('"""', start) if found else start
        code = " " * start + source[start:end] + " " * (len(source) - end)
        for comment in re.finditer(r"//[^\n]*|/\*.*?\*/|^#[^\n]*", code, re.MULTILINE | re.DOTALL):
            code = code[: comment.start()] + re.sub(r"[^\n]", " ", comment.group()) + code[comment.end() :]
        self.code = code
        self.integers = re.findall(r"int64_t (\w+)[,)]", code)
        """Parameters that are sizes."""
        self.pointers = set(re.findall(r"\*\s*(?:__restrict )?(\w+)\b(?= =|,|\))", code))

    def edit(self, name: str, start: int, end: int, text: str) -> Edit:
        return Edit(name, self.source.count("\n", 0, start) + 1, ((start, end, text),))

    def sub(self, name: str, pattern: str, text: str, group: int = 0) -> Iterator[Edit]:
        """Replace a group of every match of `pattern` by `text` (a template for ``Match.expand``)."""
        for m in re.finditer(pattern, self.code):
            yield self.edit(name, *m.span(group), m.expand(text))

    def depth(self, place: int) -> int:
        """How many brackets are open at a place of its line."""
        line = self.code[self.code.rfind("\n", 0, place) + 1 : place]
        return line.count("[") - line.count("]")

    def in_loop_header(self, place: int) -> bool:
        """Whether a place is between the parentheses of a ``for``."""
        depth = 0
        for i in range(place - 1, -1, -1):
            if self.code[i] in "{}":
                return False
            depth += (self.code[i] == "(") - (self.code[i] == ")")
            if depth > 0:
                if self.code[max(0, i - 4) : i] == "for ":
                    return True
                depth = 0
        return False

    def computes(self, place: int) -> bool:
        """Whether a place is in an expression of floats: not in an index, a loop header, a declaration of an
        integer, pointer arithmetic, or a call that moves memory."""
        if self.depth(place) or self.in_loop_header(place):
            return False
        begin = max(self.code.rfind(c, 0, place) for c in ";{}") + 1
        statement = re.sub(r"for \([^;]*;[^;]*;[^)]*\)", "", self.code[begin : self.code.find(";", place)])
        if re.search(
            r"int(64|32)?_t |\bint |memcpy|std::vector|memset|alloc|micro<|return|_mm256", statement
        ):
            return False
        return not any(re.search(rf"(?<!\w){p}(?![\w\[])", statement) for p in self.pointers)


@operator("cpp_loop_short", "cpp", "a loop ends one element early")
def loop_short(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_loop_short", r"for \([^;]*; \w+ < (\w+);", r"\1 - 1", 1)


@operator("cpp_loop_long", "cpp", "a loop runs one element too far")
def loop_long(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_loop_long", r"for \([^;]*; \w+ (<) \w+;", "<=", 1)


@operator("cpp_loop_start", "cpp", "a loop begins one element late")
def loop_start(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_loop_start", r"for \(int64_t \w+ = (0|1);", r"\1 + 1", 1)


@operator("cpp_forgotten_tail", "cpp", "what is left after the last whole block is not processed")
def forgotten_tail(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_forgotten_tail", r"for \(; \w+ < (\w+); \+\+\w+\)", "0", 1)
    yield from c.sub("cpp_forgotten_tail", r"if \((\w+ < \w+)\) \{", "false", 1)


@operator("cpp_block_bound", "cpp", "a blocked loop runs into the tail")
def block_bound(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_block_bound", r"for \([^;]*; (\w+ \+ \w+) <= \w+;", r"\1 - 1", 1)


@operator("cpp_stale_accumulator", "cpp", "an accumulator is not reset")
def stale_accumulator(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_stale_accumulator", r"\b(?:float|double) \w+ = 0(?:\.\d*)?f?;", r"static \g<0>")


@operator("cpp_uninitialised", "cpp", "memory is added to that was never set")
def uninitialised(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_uninitialised", r"memset\([^;]*\);", ";")
    yield from c.sub("cpp_uninitialised", r"for \([^;]*; [^;]*; \+\+\w+\) (\w+\[\w+\] = 0\.f;)", ";", 1)


@operator("cpp_init_for_max", "cpp", "a running maximum starts at 0")
def init_for_max(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_init_for_max", r"float m = (\w+\[[^\]]*\]);", "0.f", 1)
    yield from c.sub("cpp_init_for_max", r"-FLT_MAX", "0.f")


@operator("cpp_narrow_accumulator", "cpp", "a sum is carried in half precision")
def narrow_accumulator(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_narrow_accumulator", r"\b(float|double) \w+ = 0(?:\.\d*)?f?;", "_Float16", 1)
    yield from c.sub("cpp_narrow_accumulator", r"\b(float) acc\w*\[", "_Float16", 1)


@operator("cpp_narrow_operand", "cpp", "a loaded value passes through half precision")
def narrow_operand(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_narrow_operand", r"= (\w+\[\w+\]);", r"(float)(_Float16)\1", 1)
    yield from c.sub("cpp_narrow_operand", r"\+= (\w+\[\w+\]);", r"(float)(_Float16)\1", 1)


@operator("cpp_assign_for_add", "cpp", "an accumulator holds the last term instead of the sum")
def assign_for_add(c: CppText) -> Iterator[Edit]:
    for m in re.finditer(r"(?<=\w|\]) ([+*]=) ", c.code):
        if c.computes(m.start(1)):
            yield c.edit("cpp_assign_for_add", *m.span(1), "=")


@operator("cpp_sign_flip", "cpp", "a sign is wrong")
def sign_flip(c: CppText) -> Iterator[Edit]:
    for m in re.finditer(r" ([+-]) ", c.code):
        if c.computes(m.start(1)):
            yield c.edit("cpp_sign_flip", *m.span(1), "-" if m.group(1) == "+" else "+")


@operator("cpp_drop_epsilon", "cpp", "the epsilon that keeps a division finite is missing")
def drop_epsilon(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_drop_epsilon", r" \+ eps", "")


@operator("cpp_drop_operand", "cpp", "a factor, a divisor or a summand is forgotten")
def drop_operand(c: CppText) -> Iterator[Edit]:
    for m in re.finditer(r" [*/+-] (?:\(float\))?[\w.]+(?:\[[^\]]*\])?(?=[;) ])", c.code):
        if c.computes(m.start() + 1):
            yield c.edit("cpp_drop_operand", *m.span(), "")


@operator("cpp_wrong_stride", "cpp", "an index is multiplied by another size than its stride")
def wrong_stride(c: CppText) -> Iterator[Edit]:
    for m in re.finditer(r"\* (\w+)(?= \+|;|\]|\))", c.code):
        if m.group(1) in c.integers and not c.computes(m.start()):
            others = [n for n in c.integers if n != m.group(1)]
            for text in [*others[-1:], f"({m.group(1)} + 1)"]:
                yield c.edit("cpp_wrong_stride", *m.span(1), text)


@operator("cpp_index_by_one", "cpp", "an element too far is read or written")
def index_by_one(c: CppText) -> Iterator[Edit]:
    yield from c.sub("cpp_index_by_one", r"\b\w+\[([a-z]\w*)\]", r"\1 + 1", 1)


@operator("cpp_wrong_comparison", "cpp", "a minimum for a maximum")
def wrong_comparison(c: CppText) -> Iterator[Edit]:
    for m in re.finditer(r" ([<>]) [^;?]* \? ", c.code):
        yield c.edit("cpp_wrong_comparison", *m.span(1), "<" if m.group(1) == ">" else ">")


@operator("cpp_wrong_constant", "cpp", "a constant is wrong in its third or fourth digit")
def wrong_constant(c: CppText) -> Iterator[Edit]:
    for m in re.finditer(r"(?<![\w.])(\d+\.\d+)f", c.code):
        value = float(m.group(1))
        if value not in (0.0, 1.0):
            short = float(f"{value:.3g}")
            yield c.edit("cpp_wrong_constant", *m.span(1), repr(short if short != value else value * 1.01))


@operator("cpp_wrong_function", "cpp", "exp2 for exp, log2 for log, a root left out")
def wrong_function(c: CppText) -> Iterator[Edit]:
    for name, other in (("expf", "exp2f"), ("std::log", "std::log2"), ("std::sqrt", ""), ("std::fabs", "")):
        yield from c.sub("cpp_wrong_function", rf"(?<![\w:]){name}(?=\()", other)
