"""What a notebook hands to the prose: formatted numbers, tables and figures, never typed by hand.

A notebook opens one `Glue`, adds to it, and closes it. Numbers go to
``<results>/numbers/<experiment>.json`` and become MyST substitutions, ``{{ here.<experiment>.<name> }}``;
tables become MyST files that pages include; figures are saved as SVG and PNG.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.provenance import ROOT, write_atomically

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from pandas.io.formats.style import Styler

NAME = re.compile(r"[a-z][a-z0-9_]*")
GATE = re.compile(r"^((?:CMP|ORD|EXC|PRC|RES)-0\d(?: †)?)$")
"""A cell that holds a gate id alone; it must not break at its hyphen."""


class Glue:
    """Collects what one experiment hands over."""

    def __init__(
        self,
        experiment: str,
        *,
        results: str | Path = ROOT / "data" / "results",
        pages: str | Path = ROOT / "book" / "generated",
        figures: str | Path = ROOT / "figures",
    ) -> None:
        self.experiment = _name(experiment)
        self.results, self.pages, self.figures = Path(results), Path(pages), Path(figures)
        self.numbers: dict[str, str] = {}

    def number(self, name: str, text: str) -> str:
        """Hand over one number, formatted as the prose shall print it.

        Raises TypeError for anything but a string, and ValueError for a name that was used before.
        """
        if not isinstance(text, str):
            raise TypeError(f"format {name!r} before gluing it: got a {type(text).__name__}")
        if _name(name) in self.numbers:
            raise ValueError(f"{name!r} was glued before")
        self.numbers[name] = text
        return text

    def table(self, name: str, table: pd.DataFrame, *, caption: str, align: Sequence[str] = ()) -> Styler:
        """Write a numbered table (label ``tbl-<experiment>-<name>``) and return it for display.

        `align` holds ``"l"`` or ``"r"`` per column; by default numbers and percentages go right.
        """
        label = f"tbl-{self.experiment}-{_name(name)}".replace("_", "-")
        text = table_directive(table, caption=caption, label=label, align=align)
        write_atomically(self.pages / f"{self.experiment}_{name}.md", text)
        return table.style.hide(axis="index")

    def figure(self, name: str, figure: Figure) -> Figure:
        """Save a figure as ``<experiment>_<name>.svg`` and ``.png``."""
        from lethe import plotting

        plotting.save(figure, f"{self.experiment}_{_name(name)}", self.figures)
        return figure

    def close(self) -> Path:
        """Write the numbers and return their file."""
        file = self.results / "numbers" / f"{self.experiment}.json"
        write_atomically(file, json.dumps(self.numbers, indent=1, sort_keys=True) + "\n")
        return file


def _name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name: lower-case letters, digits and underscores")
    return name


def table_directive(table: pd.DataFrame, *, caption: str, label: str, align: Sequence[str] = ()) -> str:
    """A MyST ``table`` directive with a caption and a label, from the columns of `table` as they are.

    Raises ValueError for a table without columns, which the book could not show.
    """
    columns = [str(c) for c in table.columns]
    if not columns:
        raise ValueError(f"the table {label} has no columns: say in its first row what is missing")
    rows = [[cell(v) for v in row] for row in table.itertuples(index=False)]
    if not align:
        align = ["r" if rows and all(_numeric(r[i]) for r in rows) else "l" for i in range(len(columns))]
    rule = ["---:" if a == "r" else ":---" for a in align]
    lines = [columns, rule, *rows]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"::::{{table}} {caption}\n:name: {label}\n\n{body}\n::::\n"


def cell(value: Any) -> str:
    """One table cell: missing values print as a dash, pipes are escaped, integers get separators."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u"):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return GATE.sub(r"[\1]{.nowrap}", text)


def _numeric(text: str) -> bool:
    return bool(re.fullmatch(r"[–—]|[<>≤≥~]?\s*[-+−]?[\d,.]+(e[-+]?\d+)?\s*%?.*", text))


def percent(part: float, whole: float | None = None, digits: int = 1) -> str:
    """``"39.5%"`` from a rate, or from a part of a whole; a dash if the whole is empty."""
    if whole is not None:
        if whole == 0:
            return "–"
        part = part / whole
    return f"{100 * part:.{digits}f}%"


def count(n: int) -> str:
    """``"2,638"``."""
    return f"{n:,}"
