"""Render the book: ``python -m lethe.paper.site``.

A build that merely looks successful is not enough: a cached build, or one with warnings, can end with
status 0 and leave an old or incomplete page. So the old build is deleted, warnings are errors, and the
result is checked: the index exists, no page loads anything over the network, no local link is broken, and no
markup shows.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lethe.provenance import ROOT

BOOK = ROOT / "book"


class BookError(RuntimeError):
    """The book could not be rendered, or what was rendered is not fit to be read."""


def build(book: Path = BOOK, log: Path | None = None) -> Path:
    """Render `book` with ``generated/_config.yml`` and return its index. Raises BookError."""
    shutil.rmtree(book / "_build", ignore_errors=True)
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(book), "--config", str(book / "generated" / "_config.yml")]
    command += ["-W", "-n", "--keep-going"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = _plain(done.stdout + done.stderr)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(output, encoding="utf-8")
    index = book / "_build" / "html" / "index.html"
    if done.returncode != 0 or not index.is_file():
        warnings = [line for line in output.splitlines() if "WARNING" in line or "ERROR" in line]
        reasons = "\n".join(warnings[:10] or output.splitlines()[-10:])
        raise BookError(f"jupyter-book ended with status {done.returncode}\n{reasons}")
    problems = list(check(index.parent))
    if problems:
        raise BookError(f"{len(problems)} problems in the rendered book\n" + "\n".join(problems[:20]))
    return index


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""Attributes that make a browser fetch something when the page opens (a plain link does not)."""


class _Page(HTMLParser):
    """Collects what a page loads, links to and defines, and the text outside of code blocks."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.prose: list[str] = []
        self._skip: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        for name, value in values.items():
            if (tag, name) in LOADED and not (tag == "link" and "canonical" in values.get("rel", "")):
                self.loads.append(value)
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "style", "pre"):
            self._skip.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skip and self._skip[-1] == tag:
            self._skip.pop()

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.prose.append(data)


def check(html: Path) -> Iterator[str]:
    """Problems of a rendered book, one sentence each."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(html.rglob("*.html"))
             if "_static" not in path.parts}  # fmt: skip
    for path, page in pages.items():
        name = path.relative_to(html)
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{name} loads {target} over the network"
        for target in [*page.loads, *page.links]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target.startswith(("#top", "data:")):
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if file.is_dir():
                file = file / "index.html"
            if not file.exists():
                yield f"{name} refers to {target}, which does not exist"
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].ids:
                yield f"{name} links to {target}, but that page has no such place"
        text = " ".join(page.prose)
        for leftover in re.findall(r"\{\{.*?\}\}|\{(?:ref|numref|doc|cite:\w|eq)\}`", text):
            yield f"{name} shows markup: {leftover}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.paper.site", description=__doc__)
    parser.add_argument("--book", type=Path, default=BOOK)
    parser.add_argument("--log", type=Path, help="where the renderer's output goes")
    arguments = parser.parse_args(argv)
    try:
        print(build(arguments.book, arguments.log))
    except (BookError, OSError) as e:
        print(f"book: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
