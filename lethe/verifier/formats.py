"""Source text: reading it, and what can be told from its syntax tree alone.

Nothing here executes the text. That matters for candidates, whose source the
judge may parse but never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

MAX_SOURCE_BYTES = 4 << 20
"""Larger files are refused: the longest kernel file of the public corpora has 95 kB."""


_parsing = Lock()
"""CPython 3.11 counts the depth of the tree that it builds once for all threads, and gates run in two."""


class FormatError(ValueError):
    """The text cannot be used; the message is a clause that follows the file's name."""


def is_path(origin: str | Path) -> bool:
    """Whether `origin` is a path; it is source text if it has a line break."""
    return isinstance(origin, Path) or not ("\n" in origin or "\r" in origin)


def read_source(origin: str | Path) -> tuple[str, str]:
    """Return ``(text, path)``: `origin` is a path, or source text (`is_path`).

    UTF-8 (with or without a byte-order mark); CRLF and CR become LF, so that the
    hash of a file does not depend on the system it was checked out on.
    Raises FormatError.
    """
    if not is_path(origin):
        data, path = str(origin).encode("utf-8", "surrogatepass"), ""
    else:
        path = str(origin)
        if not path:
            raise FormatError("is empty")
        try:
            size = Path(path).stat().st_size
            if size > MAX_SOURCE_BYTES:
                raise FormatError(
                    f"has {size} bytes, more than the {MAX_SOURCE_BYTES} a source file may have"
                )
            data = Path(path).read_bytes()
        except (OSError, ValueError) as e:
            if isinstance(e, FormatError):
                raise
            raise FormatError(f"cannot be read: {getattr(e, 'strerror', None) or e}") from None
    if len(data) > MAX_SOURCE_BYTES:
        raise FormatError(f"has {len(data)} bytes, more than the {MAX_SOURCE_BYTES} a source file may have")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise FormatError(f"is not UTF-8 text (byte {e.start})") from None
    if "\0" in text:
        raise FormatError("is a binary file, not Python source")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise FormatError("is empty")
    return text, path


def parse(source: str) -> ast.Module:
    """Syntax tree of `source`; FormatError names the line that cannot be parsed."""
    try:
        with _parsing:
            return ast.parse(source)
    except SyntaxError as e:
        where = f"line {e.lineno}: " if e.lineno else ""
        raise FormatError(f"is not valid Python: {where}{e.msg}") from None
    except (ValueError, RecursionError, MemoryError) as e:
        raise FormatError(f"is not valid Python: {str(e) or type(e).__name__}") from None


def module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run on import: those of the module and of its if/try/with blocks."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        statement = pending.pop(0)
        yield statement
        blocks: list[ast.stmt] = []
        if isinstance(statement, ast.If):
            blocks = statement.body + statement.orelse
        elif isinstance(statement, ast.Try):
            handlers = [s for h in statement.handlers for s in h.body]
            blocks = statement.body + handlers + statement.orelse + statement.finalbody
        elif isinstance(statement, ast.With):
            blocks = statement.body
        pending[:0] = blocks


def definitions(tree: ast.Module) -> dict[str, str]:
    """Names bound at module level -> ``"class"``, ``"function"``, ``"import"`` or ``"value"``."""
    found: dict[str, str] = {}
    for s in module_level(tree):
        if isinstance(s, ast.ClassDef):
            found[s.name] = "class"
        elif isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[s.name] = "function"
        elif isinstance(s, (ast.Import, ast.ImportFrom)):
            for alias in s.names:
                found[alias.asname or alias.name.split(".")[0]] = "import"
        elif isinstance(s, (ast.Assign, ast.AnnAssign)):
            targets = s.targets if isinstance(s, ast.Assign) else [s.target]
            for name in (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
                found[name.id] = "value"
    return found


def language(tree: ast.Module) -> str:
    """``"triton"`` if a function is compiled by ``triton.jit`` (also through
    ``autotune``/``heuristics``), ``"cpp"`` if a C++ or CUDA extension is built
    (``load_inline``/``load`` of torch.utils.cpp_extension), else ``"python"``.
    """
    triton_names: set[str] = set()
    jit_names: set[str] = set()
    extension_names: set[str] = set()
    builds_extension = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "triton":
                    triton_names.add((alias.asname or alias.name).split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if node.module.split(".")[0] == "triton" and alias.name == "jit":
                    jit_names.add(alias.asname or alias.name)
                if node.module == "torch.utils.cpp_extension":
                    extension_names.add(alias.asname or alias.name)
        elif isinstance(node, ast.Attribute) and node.attr == "load_inline":
            builds_extension = True
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "jit" and _root(node) in triton_names:
            return "triton"
        if isinstance(node, ast.Name) and node.id in jit_names:
            return "triton"
        if isinstance(node, ast.Call):
            f = node.func
            if isinstance(f, ast.Name) and f.id in extension_names:
                builds_extension = True
            if (
                isinstance(f, ast.Attribute)
                and f.attr == "load"
                and _dotted(f).endswith("cpp_extension.load")
            ):
                builds_extension = True
    return "cpp" if builds_extension else "python"


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _root(node: ast.expr) -> str:
    return _dotted(node).split(".")[0]


def absolute_imports(source: str, package: str) -> str:
    """Rewrite ``from .a import b`` to name `package`, so that the text runs outside of it."""
    lines = source.split("\n")
    for node in ast.walk(parse(source)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        if not package:
            raise FormatError("uses relative imports but belongs to no package")
        base = package.split(".")[: len(package.split(".")) - node.level + 1]
        if not base:
            raise FormatError("has a relative import that leaves its package")
        target = ".".join(base + ([node.module] if node.module else []))
        line = lines[node.lineno - 1].encode()
        head, tail = line[: node.col_offset].decode(), line[node.col_offset :].decode()
        _, imports, names = tail.partition("import")
        if not imports:
            raise FormatError(f"spreads a relative import over several lines (line {node.lineno})")
        lines[node.lineno - 1] = f"{head}from {target} import{names}"
    return "\n".join(lines)
