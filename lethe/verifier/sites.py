"""Size sites: the integer literals of a source text that may be sizes, by name.

A *site* is a positive integer (or an expression of literals only, such as
``8192 * 2``) in a module-level assignment, in ``get_inputs`` or in
``get_init_inputs``. Names read like the source:

``width``            ``width = 1000``
``height=width``     ``height = width = 128``
``shape[1]``         second element of ``shape = (16, 64)``
``rows#0``           first literal inside a longer expression, ``rows = 4 * columns``
``get_inputs#0``     first literal inside the function

Nothing is executed. Whether a site is a size is decided in `shapes`, by running
the reference.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lethe.verifier.formats import FormatError, module_level, parse

FUNCTIONS = ("get_inputs", "get_init_inputs")
MAX_VALUE = 2**62
"""Larger literals are not sizes; it also bounds what folding may compute."""

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}


@dataclass(frozen=True)
class Site:
    name: str
    value: int
    node: ast.expr


def fold(node: ast.expr) -> int | None:
    """Value of an expression of integer literals, or None if it is anything else."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int and abs(node.value) <= MAX_VALUE else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = fold(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = fold(node.left), fold(node.right)
        if left is None or right is None:
            return None
        if isinstance(node.op, (ast.Pow, ast.LShift)) and not 0 <= right <= 62:
            return None
        if isinstance(node.op, ast.FloorDiv) and right == 0:
            return None
        value = _OPERATORS[type(node.op)](left, right)
        return value if abs(value) <= MAX_VALUE else None
    return None


def _literals(node: ast.AST) -> Iterator[ast.expr]:
    """Outermost foldable expressions below `node`, in source order; indices are no sizes."""
    if isinstance(node, ast.expr) and (value := fold(node)) is not None:
        if value > 0:
            yield node
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.Subscript) and child is node.slice:
            continue
        yield from _literals(child)


def find_sites(source: str) -> list[Site]:
    """Every site of `source`, in source order. Raises FormatError if it does not parse."""
    tree = parse(source)
    try:
        return _find_sites(tree)
    except RecursionError:
        raise FormatError("is not valid Python: expressions are nested too deeply") from None


def _find_sites(tree: ast.Module) -> list[Site]:
    found: dict[str, Site] = {}

    def add(name: str, node: ast.expr) -> None:
        value = fold(node)
        if value is not None and value > 0:
            found[name] = Site(name, value, node)

    def assignment(name: str, value: ast.expr) -> None:
        if fold(value) is not None:
            add(name, value)
        elif isinstance(value, (ast.Tuple, ast.List)):
            for i, element in enumerate(value.elts):
                if fold(element) is not None:
                    add(f"{name}[{i}]", element)
                else:
                    for k, node in enumerate(_literals(element)):
                        add(f"{name}[{i}]#{k}", node)
        else:
            for k, node in enumerate(_literals(value)):
                add(f"{name}#{k}", node)

    for s in module_level(tree):
        if isinstance(s, ast.AnnAssign) and s.value is not None:
            assignment(ast.unparse(s.target), s.value)
        elif isinstance(s, ast.Assign):
            pairs = _pairs(s)
            for target, value in pairs:
                assignment(ast.unparse(target), value)
            if not pairs:
                assignment("=".join(ast.unparse(t) for t in s.targets), s.value)
        elif isinstance(s, ast.FunctionDef) and s.name in FUNCTIONS:
            nodes = [n for statement in s.body for n in _literals(statement)]
            for k, node in enumerate(nodes):
                add(f"{s.name}#{k}", node)
    return list(found.values())


def _pairs(s: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """``a, b = 1, 2`` as pairs of target and value; empty for any other assignment."""
    target = s.targets[0]
    if len(s.targets) != 1 or not isinstance(target, ast.Tuple) or not isinstance(s.value, ast.Tuple):
        return []
    if len(target.elts) != len(s.value.elts):
        return []
    return list(zip(target.elts, s.value.elts, strict=True))


def written_sizes(source: str) -> dict[str, int]:
    """Site name -> value as written."""
    return {s.name: s.value for s in find_sites(source)}


def substitute(source: str, sizes: Mapping[str, int]) -> str:
    """`source` with the literals of the named sites replaced; line numbers stay.

    Raises ValueError for a name that is no site of `source`.
    """
    if not sizes:
        return source
    sites = {s.name: s for s in find_sites(source)}
    unknown = [name for name in sizes if name not in sites]
    if unknown:
        raise ValueError(f"no size named {unknown[0]!r}; the source has {', '.join(sites) or 'none'}")
    data = source.encode()
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    spans = []
    for name, value in sizes.items():
        node = sites[name].node
        assert node.end_lineno is not None and node.end_col_offset is not None
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[node.end_lineno - 1] + node.end_col_offset
        filler = "\n" * (node.end_lineno - node.lineno)
        spans.append((first, last, f"{int(value)}{filler}".encode()))
    for first, last, text in sorted(spans, reverse=True):
        data = data[:first] + text + data[last:]
    return data.decode()


def hard_coded_sizes(
    candidate_source: str, sizes: Mapping[str, int], written: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Sizes that a candidate holds as its own module-level constants (fairness rule 35).

    `sizes` are the problem's substituted sizes. Returns the candidate's own sites of the
    same name with their new value: what to hand to `substitute` for the candidate's source.
    With `written` (the problem's `written_sizes`) a constant counts only if it also has the
    value that the problem has there: a block size that happens to be called ``N`` is no
    size. Literals inside ``get_inputs`` and ``get_init_inputs`` never count.
    """
    by_variable = {
        variable: name for name in sizes if not name.startswith(FUNCTIONS) for variable in _variables(name)
    }
    found: dict[str, int] = {}
    for site in find_sites(candidate_source):
        names = {by_variable[v] for v in _variables(site.name) if v in by_variable}
        if site.name.startswith(FUNCTIONS) or len(names) != 1:
            continue
        (name,) = names
        if written is None or written.get(name) == site.value:
            found[site.name] = int(sizes[name])
    return found


def _variables(name: str) -> list[str]:
    """``"height=width"`` -> its variables; an index or literal number stays with each."""
    cut = min((i for i in (name.find("["), name.find("#")) if i >= 0), default=len(name))
    return [variable + name[cut:] for variable in name[:cut].split("=")]
