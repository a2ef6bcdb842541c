"""Split PTX text into tokens that know their line (PTX ISA section 4, Syntax).

``.loc`` and ``.file`` lines, comments and preprocessor lines carry no meaning for execution and are dropped
here; dotted instruction names are one token, so that ``shared::cta`` and ``16x256b`` need no special case.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from lethe.ptx.faults import Fault

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+ | //[^\n]* | /\*.*?\*/ | (?<![\w.])\.(?:loc|file)\b[^\n]* | ^\#[^\n]*)
  | (?P<string>"[^"\n]*")
  | (?P<float>0[fF][0-9A-Fa-f]{8}\b | 0[dD][0-9A-Fa-f]{16}\b | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+)
  | (?P<int>(?:0[xX][0-9A-Fa-f]+ | 0[bB][01]+ | \d+)U?)
  | (?P<name>[A-Za-z_$%][\w$]*(?:\.\w+(?:::\w+)*)*)
  | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
  | (?P<punct>[@!{}\[\](),;:|+\-<>=*])
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


class Token(NamedTuple):
    """Kind (name, int, float, string, directive, punct, end), text, offset into the source."""

    kind: str
    text: str
    start: int


class Source:
    """Text with a line index."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]

    def line(self, offset: int) -> int:
        """Line number, from 1, of a character offset."""
        return bisect_right(self._starts, offset)

    def tokens(self) -> list[Token]:
        """All tokens, closed by one of kind ``end``.

        Raises:
            Fault: kind ``parse`` at a character that starts no token.
        """
        out: list[Token] = []
        position, text, match = 0, self.text, _TOKEN.match
        size = len(text)
        while position < size:
            found = match(text, position)
            if found is None:
                raise Fault("parse", f"line {self.line(position)}: unexpected character {text[position]!r}")
            kind = found.lastgroup
            if kind != "skip":
                out.append(Token(kind or "", found.group(), position))
            position = found.end()
        out.append(Token("end", "", size))
        return out


def int_value(text: str) -> int:
    """The value of an integer literal (decimal, hexadecimal, octal, binary, optional U)."""
    text = text.rstrip("U")
    if len(text) > 1 and text[0] == "0" and text[1] in "01234567":
        return int(text, 8)
    return int(text, 0)
