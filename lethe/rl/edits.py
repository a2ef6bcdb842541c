"""Search/replace edits: how an answer says what to change in a kernel's text.

    <<<<<<< SEARCH
    text that stands in the kernel exactly once
    =======
    what takes its place
    >>>>>>> REPLACE

An answer may hold several, applied in order. Whatever does not fit, down to a blank too many, does not apply:
guessing what was meant would reward answers that nobody could use.
"""

from __future__ import annotations

from dataclasses import dataclass

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"


class EditError(ValueError):
    """The answer cannot be applied; the message is one sentence."""


@dataclass(frozen=True)
class Edit:
    search: str
    replace: str

    def text(self) -> str:
        """The edit as an answer writes it."""
        return "\n".join([SEARCH, *self.search.split("\n"), DIVIDER, *self._lines(), REPLACE])

    def _lines(self) -> list[str]:
        return self.replace.split("\n") if self.replace else []


def parse(answer: str) -> list[Edit]:
    """The edits of an answer, in order; what stands around them is ignored. Raises EditError."""
    edits, place = [], "outside"
    search: list[str] = []
    replace: list[str] = []
    for line in answer.splitlines():
        mark = line.rstrip()
        if mark == SEARCH and place == "outside":
            place, search, replace = "search", [], []
        elif mark == DIVIDER and place == "search":
            place = "replace"
        elif mark == REPLACE and place == "replace":
            edits.append(Edit("\n".join(search), "\n".join(replace)))
            place = "outside"
        elif place == "search":
            search.append(line)
        elif place == "replace":
            replace.append(line)
    if place != "outside":
        raise EditError("an edit is not closed")
    if not edits:
        raise EditError("the answer holds no edit")
    return edits


def apply(source: str, answer: str) -> str:
    """`source` with the edits of `answer`. Raises EditError where one does not fit or nothing changes.

    Whole lines are searched and replaced, so that a short text cannot match inside a longer one.
    """
    lines = source.split("\n")
    for number, edit in enumerate(parse(answer), 1):
        wanted = edit.search.split("\n")
        if not edit.search.strip():
            raise EditError(f"edit {number} searches for nothing")
        places = [i for i in range(len(lines) - len(wanted) + 1) if lines[i : i + len(wanted)] == wanted]
        if len(places) != 1:
            found = "does not stand in the kernel" if not places else f"stands there {len(places)} times"
            raise EditError(f"what edit {number} searches for {found}")
        lines[places[0] : places[0] + len(wanted)] = edit.replace.split("\n") if edit.replace else []
    changed = "\n".join(lines)
    if changed == source:
        raise EditError("the answer changes nothing")
    return changed
