"""Progress of a training run: a bar on a terminal, a line an epoch elsewhere, nothing on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class Teller:
    """Says nothing; the base of those that do."""

    def __enter__(self) -> Teller:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def start(self, done: int, total: int) -> None:
        """`done` of `total` steps are behind a resumed run."""

    def step(self, done: int) -> None:
        """A step was taken."""

    def epoch(self, epoch: int, loss: float, auc: float | None) -> None:
        """An epoch ended with this mean loss and validation AUC."""


def quiet() -> Teller:
    """No output."""
    return Teller()


def shown(console: Console, name: str) -> Teller:
    """A bar if `console` is a terminal, else a line an epoch."""
    return _Bar(console, name) if console.is_terminal else _Lines(console, name)


def _sentence(epoch: int, loss: float, auc: float | None) -> str:
    return f"epoch {epoch}: loss {loss:.4f}" + ("" if auc is None else f", validation AUC {auc:.3f}")


class _Bar(Teller):
    def __init__(self, console: Console, name: str) -> None:
        from rich import progress

        self.name = name
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[said]}"),
            console=console,
        )

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

    def start(self, done: int, total: int) -> None:
        self.task = self.bar.add_task(self.name, total=total, completed=done, said="")

    def step(self, done: int) -> None:
        self.bar.update(self.task, completed=done)

    def epoch(self, epoch: int, loss: float, auc: float | None) -> None:
        self.bar.update(self.task, said=_sentence(epoch, loss, auc))


class _Lines(Teller):
    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name = console, name

    def epoch(self, epoch: int, loss: float, auc: float | None) -> None:
        self.console.print(f"{self.name}: {_sentence(epoch, loss, auc)}", highlight=False)
