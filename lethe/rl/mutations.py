"""Scripted edits of kernels: what a program can propose without understanding anything.

Each operator reads a kernel's text and proposes edits of single lines, in the form in which a language
model answers too. Some are sound by construction (another number of warps), some are what one tries for
speed (another tile, other flags of the compiler), some break the kernel as careless edits do, and some do
not apply at all, as most answers of the published run did. A comment is a control: it cannot make a kernel
faster, so that a gain it is paid for would be the clock's. Nothing here knows which is which: that is what a
policy has to find out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lethe.rl.edits import Edit


@dataclass(frozen=True)
class Operator:
    name: str
    propose: Callable[[str], Iterator[tuple[str, str]]]
    """(line, new line) for a line of the kernel, several where there are several ways."""

    def sites(self, source: str) -> list[Edit]:
        """Every edit that the operator can make, in the order of the text."""
        lines = source.split("\n")
        once = [line for line in lines if line.strip() and lines.count(line) == 1]
        return [Edit(old, new) for line in once for old, new in self.propose(line) if old != new]


def _number(pattern: str, others: tuple[int, ...]) -> Callable[[str], Iterator[tuple[str, str]]]:
    """Replace the number that `pattern` captures by each of `others`."""

    def propose(line: str) -> Iterator[tuple[str, str]]:
        for found in re.finditer(pattern, line):
            for other in others:
                if int(found[1]) != other:
                    yield line, line[: found.start(1)] + str(other) + line[found.end(1) :]

    return propose


def _text(*pairs: tuple[str, str]) -> Callable[[str], Iterator[tuple[str, str]]]:
    """Replace the first match of a pattern by a text, for each pair."""

    def propose(line: str) -> Iterator[tuple[str, str]]:
        for pattern, new in pairs:
            if re.search(pattern, line):
                yield line, re.sub(pattern, new, line, count=1)

    return propose


def _before(pattern: str, text: str) -> Callable[[str], Iterator[tuple[str, str]]]:
    """Put a line before those that match, at their indentation."""

    def propose(line: str) -> Iterator[tuple[str, str]]:
        if re.search(pattern, line):
            indent = line[: len(line) - len(line.lstrip())]
            yield line, f"{indent}{text}\n{line}"

    return propose


def _deleted(line: str) -> Iterator[tuple[str, str]]:
    if re.match(r"\s+\S", line) and not re.match(r"\s*(def|class|return|import|for|if|else)\b", line):
        yield line, ""


def _misremembered(line: str) -> Iterator[tuple[str, str]]:
    """Search for a line that is almost there."""
    if "=" in line and line.startswith(" "):
        yield line.replace(" = ", " := ", 1) + " ", line


OPERATORS = (
    Operator("warps", _number(r"num_warps=(\d+)", (1, 2, 4, 8))),
    Operator("stages", _text((r"num_warps=(\d+)", r"num_warps=\1, num_stages=4"))),
    Operator("block", _number(r"BLOCK\w*\s*=\s*(\d+)", (16, 32, 64, 128, 256))),
    Operator("tile", _number(r"\bTILE\w*\s*=\s*(\d+)", (16, 32, 128, 256))),
    Operator(
        "flags",
        _text(
            (r'"-O3"', '"-O2"'),
            (r'"-O3"', '"-O3", "-funroll-loops"'),
            (r'"-march=native", ', '"-march=native", "-mprefer-vector-width=512", '),
            (r'"-ffast-math", ', ""),
            (r'"-O3"', '"-O3", "-ffast-math"'),
        ),
    ),
    Operator("ivdep", _before(r"^\s+for \(int64_t .*\+\+\w\)", "#pragma GCC ivdep")),
    Operator("unroll", _before(r"^\s+for \(int64_t .*\+\+\w\)", "#pragma GCC unroll 4")),
    Operator("narrow", _text((r"tl\.float32", "tl.float16"), (r"\bdouble\b", "float"))),
    Operator("off_by_one", _text((r" < (?=\w)", " <= "), (r"\+ 1\b", "+ 2"), (r"\b0; ", "1; "))),
    Operator("no_mask", _text((r", mask=[^,()]+(\([^()]*\))?[^,()]*", ""), (r", other=[^,)]+", ""))),
    Operator("swap", _text((r"tl\.sum\(", "tl.max("), (r"\+= ", "-= "), (r" \* ", " + "))),
    Operator("constant", _text((r"\b0\.0\b", "1.0"), (r"\b1e-5\b", "1e-3"), (r"\beps\b", "0.0"))),
    Operator("delete", _deleted),
    Operator("comment", _before(r"^class ModelNew", "# the same as before")),
    Operator("misremember", _misremembered),
)

NO_EDIT = "no_edit"
"""What a policy does that answers with prose."""

NAMES = (*(o.name for o in OPERATORS), NO_EDIT)


def applicable(source: str) -> list[bool]:
    """Which of `NAMES` can say something about this kernel."""
    return [*(bool(o.sites(source)) for o in OPERATORS), True]


def answer(source: str, name: str, draw: random.Random) -> str:
    """An answer by the operator of that name, at a site drawn at random. ValueError where it has none."""
    if name == NO_EDIT:
        return "This kernel is already fast."
    sites = next(o for o in OPERATORS if o.name == name).sites(source)
    if not sites:
        raise ValueError(f"the operator {name} finds nothing to change here")
    return draw.choice(sites).text()
