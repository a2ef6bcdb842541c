"""Progress of an audit: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY = 30.0
"""Seconds between two lines where the output is not a terminal."""


class Progress(Protocol):
    def __enter__(self) -> Progress: ...

    def __exit__(self, *exc: object) -> None: ...

    def start(self, name: str, total: int, done: int, findings: int) -> None: ...

    def advance(self, row_id: str, finding: bool) -> None: ...


class _Base:
    def __enter__(self) -> _Base:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def start(self, name: str, total: int, done: int, findings: int) -> None:
        self.name, self.total, self.done, self.findings = name, total, done, findings
        self.resumed = done
        self.began = time.monotonic()

    def advance(self, row_id: str, finding: bool) -> None:
        self.done += 1
        self.findings += finding

    def left(self) -> str:
        """Time left, from the rows of this run alone; empty before the first."""
        judged = self.done - self.resumed
        if not judged:
            return ""
        seconds = (time.monotonic() - self.began) / judged * (self.total - self.done)
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left"


def quiet() -> Progress:
    """No output."""
    return _Base()


def shown(console: Console) -> Progress:
    """A bar if `console` is a terminal, otherwise a line every half minute."""
    return _Bar(console) if console.is_terminal else _Lines(console)


class _Bar(_Base):
    def __init__(self, console: Console) -> None:
        from rich import progress

        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[findings]} with findings  {task.fields[left]}"),
            console=console,
        )

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

    def start(self, name: str, total: int, done: int, findings: int) -> None:
        super().start(name, total, done, findings)
        self.task = self.bar.add_task(name, total=total, completed=done, findings=findings, left="")

    def advance(self, row_id: str, finding: bool) -> None:
        super().advance(row_id, finding)
        self.bar.update(self.task, completed=self.done, findings=self.findings, left=self.left())


class _Lines(_Base):
    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, name: str, total: int, done: int, findings: int) -> None:
        super().start(name, total, done, findings)
        self.last = self.began
        if done:
            self.console.print(f"{name}: {done} of {total} rows are already judged")

    def advance(self, row_id: str, finding: bool) -> None:
        super().advance(row_id, finding)
        now = time.monotonic()
        if now - self.last >= LINE_EVERY or self.done == self.total:
            self.last = now
            left = f", {self.left()}" if self.done < self.total else ""
            self.console.print(
                f"{self.name}: {self.done} of {self.total} rows, {self.findings} with findings{left}",
                highlight=False,
            )
