"""The text of a counterexample: inputs as a few readable lines, sources as literals, the rest packed.

Inputs are written as a constant with single elements replaced, as a draw of the reference's own
``get_inputs`` (checked by its checksum when the script runs), or packed where neither is short.
"""

from __future__ import annotations

import base64
import inspect
import json
import lzma
import pprint
import re
import textwrap
import zlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from lethe.verifier import channel, layout, reference, trial
from lethe.verifier.structure import bytes_of, flatten

if TYPE_CHECKING:
    from torch import Tensor

MOST_ENTRIES = 64
"""Elements written one by one; a tensor with more of them is packed."""
DENSE = 2
"""A tensor is called constant only if at least one in so many elements has its most frequent value."""
WIDTH = 100
PACKAGE = "embedded"
MODULES = ("calling", "entry", "modes", "poison", "structure", "weights")
"""What of the verifier a script carries, beside the executors: how a candidate is called, nothing that
judges it."""


class Inputs:
    """Inputs as lines of Python, and how many elements had to be written out."""

    def __init__(self, inputs: list[Any], drawn: list[Tensor], seed: int) -> None:
        """`drawn` are the tensors of the reference's own draw with `seed`, empty where there is none."""
        tensors, _ = flatten(inputs)
        self.elements = 0
        self._seed = seed
        self._drawn = drawn if len(drawn) == len(tensors) else []
        self._names = {id(t): f"x{i}" for i, t in enumerate(tensors)}
        self.lines = [line for i, t in enumerate(tensors) for line in self._tensor(i, t)]
        self.lines.append(f"return {self._nested(inputs)}")

    def _nested(self, value: Any) -> str:
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, (list, tuple)):
            inside = ", ".join(self._nested(v) for v in value)
            if isinstance(value, list):
                return f"[{inside}]"
            return f"({inside},)" if len(value) == 1 else f"({inside})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self._nested(v)}" for k, v in value.items()) + "}"
        return repr(value)

    def _tensor(self, i: int, t: Tensor) -> list[str]:
        lines = self._values(i, t.detach().cpu().contiguous())
        begin = layout.lead(t)
        if begin or not t.is_contiguous():
            lines.append(f"x{i} = strided(x{i}, {tuple(t.stride())}{f', {begin}' if begin else ''})")
        return lines

    def _values(self, i: int, t: Tensor) -> list[str]:
        shape, dtype = tuple(t.shape), str(t.dtype).removeprefix("torch.")
        constant = _most_frequent(t)
        entries = _differences(t, constant) if constant is not None else None
        if entries is not None and (not self._drawn or DENSE * len(entries) <= t.numel()):
            self.elements += len(entries)
            kind = "" if dtype == "float32" else f", {dtype!r}"
            return self._put(i, f"full({shape}, {constant!r}{kind})", entries)
        if self._drawn and self._drawn[i].shape == t.shape and self._drawn[i].dtype == t.dtype:
            own = self._drawn[i].detach().cpu().contiguous()
            entries = _differences(t, own)
            if entries is not None:
                self.elements += t.numel()
                return self._put(i, f"drawn({self._seed}, {i}, {checksum(own)})", entries)
        self.elements += t.numel()
        packed = base64.b85encode(zlib.compress(bytes_of(t).numpy().tobytes(), 9)).decode()
        return [f"x{i} = packed(", *(f'    "{p}"' for p in _lines(packed)), f"    , {shape}, {dtype!r})"]

    def _put(self, i: int, made: str, entries: dict[tuple[int, ...], Any]) -> list[str]:
        if not entries:
            return [f"x{i} = {made}"]
        pairs = [f"{_index(at)}: {v!r}" for at, v in entries.items()]
        return [f"x{i} = put({made}, {{", *textwrap.wrap(", ".join(pairs), WIDTH, initial_indent="    ",
                subsequent_indent="    ", break_long_words=False), "})"]  # fmt: skip


def _most_frequent(t: Tensor) -> Any:
    """The value that most elements have, if there is one that a few entries can complete; else None."""
    if not t.numel() or t.is_complex() or (t.dtype.itemsize == 1 and t.is_floating_point()):
        return None
    values, counts = t.reshape(-1).unique(return_counts=True)
    best = int(counts.argmax())
    return values[best].item() if t.numel() - int(counts[best]) <= MOST_ENTRIES else None


def _differences(t: Tensor, base: Any) -> dict[tuple[int, ...], Any] | None:
    """Elements whose bytes are not those of `base`; None if there are too many."""
    import torch

    other = torch.full_like(t, base) if not isinstance(base, torch.Tensor) else base
    at = (bytes_of(t) != bytes_of(other)).any(1).reshape(t.shape).nonzero()
    if len(at) > MOST_ENTRIES:
        return None
    return {tuple(p): t[tuple(p)].item() for p in at.tolist()}


def _index(at: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, at))})" if len(at) != 1 else str(at[0])


def checksum(t: Tensor) -> int:
    """CRC-32 of a tensor's bytes, as the script computes it."""
    return zlib.crc32(bytes_of(t).numpy().tobytes())


def _lines(text: str) -> list[str]:
    return [text[k : k + WIDTH] for k in range(0, len(text), WIDTH)]


def source_literal(text: str) -> str:
    """A readable Python literal of a source text."""
    if "'''" not in text and "\\" not in text and "\r" not in text and not text.endswith("'"):
        return f"'''\\\n{text}'''"
    if "'''" not in text and not text.endswith(("'", "\\")) and "\r" not in text:
        return f"r'''{text}'''"
    return "(\n" + "\n".join(f"    {line!r}" for line in text.splitlines(keepends=True)) + "\n)"


@cache
def embedded() -> str:
    """The packed modules, as wrapped base85."""
    root = resources.files("lethe.verifier")
    sources = {PACKAGE: "", f"{PACKAGE}.executors": ""}
    for name in MODULES:
        sources[f"{PACKAGE}.{name}"] = root.joinpath(f"{name}.py").read_text(encoding="utf-8")
    for file in sorted(root.joinpath("executors").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".py"):
            name = f".{file.name[:-3]}" if file.name != "__init__.py" else ""
            sources[f"{PACKAGE}.executors{name}"] = file.read_text(encoding="utf-8")
    head = "from __future__ import annotations\n"
    sources[f"{PACKAGE}.channel"] = head + inspect.getsource(channel.span)
    sources[f"{PACKAGE}.comparing"] = (
        f"{head}SCALAR_ULPS = {trial.SCALAR_ULPS}\n"
        + inspect.getsource(trial._same_structure)
        + "same_structure = _same_structure\n"
    )
    sources[f"{PACKAGE}.placing"] = (
        f"{head}import warnings\nfrom contextlib import contextmanager\nimport torch\n"
        "from torch.overrides import TorchFunctionMode\n"
        + "\n".join(inspect.getsource(f) for f in (reference.OnDevice, reference._is_device))
        + "\n"
        + inspect.getsource(reference.placed)
    )
    sources = {name: text.replace("lethe.verifier", PACKAGE) for name, text in sources.items()}
    raw = lzma.compress(json.dumps(sources).encode(), preset=9)
    return "\n".join(_lines(base64.b85encode(raw).decode()))


def script(title: str, reason: str, case: dict[str, Any], sources: tuple[str, str], inputs: Inputs) -> str:
    """The whole script; `sources` are those of the reference and of the candidate."""
    root = resources.files("lethe.verifier")
    first, second = (
        root.joinpath(f"counterexample_{half}.py").read_text(encoding="utf-8") for half in ("body", "checks")
    )
    second = second.split('"""', 2)[2]  # the module docstring is about this package
    second = re.sub(r"from lethe\S+ import \(  # @JOINED@.*?\n\)\n", "", second, flags=re.DOTALL)
    text = first + second
    made = "\n".join(f"    {line}" for line in inputs.lines)
    filled = {
        "@TITLE@": _docstring(title),
        "@REASON@": _docstring(reason),
        "CASE: dict = {}  # @CASE@": f"CASE: dict = {pprint.pformat(case, width=WIDTH, sort_dicts=False)}",
        'REFERENCE = ""  # @REFERENCE@': f"REFERENCE = {source_literal(sources[0])}",
        'CANDIDATE = ""  # @CANDIDATE@': f"CANDIDATE = {source_literal(sources[1])}",
        "    return []  # @INPUTS@": made,
        'EMBEDDED = ""  # @EMBEDDED@': f'EMBEDDED = """\n{embedded()}\n"""',
    }
    lost = [mark for mark in filled if text.count(mark) != 1]
    if lost:
        raise ValueError(f"the template of a counterexample has lost its mark {lost[0]!r}")
    return re.sub("|".join(map(re.escape, filled)), lambda found: filled[found.group()], text)


def _docstring(text: str) -> str:
    safe = text.replace("\\", "\\\\").replace('"""', "'''")
    return "\n".join(textwrap.wrap(safe, WIDTH)) or "."
