"""What a suspect answers, checked field by field. Everything here raises GarbageError or StructureError."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lethe.verifier import structure
from lethe.verifier.channel import (
    MAX_EXTENT,
    MAX_TENSORS,
    Arena,
    GarbageError,
    TensorMeta,
    decode_tensors,
    parse_metas,
)

if TYPE_CHECKING:
    from torch import Tensor

MAX_TEXT = 200


@dataclass(frozen=True)
class OutputMeta:
    """What the suspect says about one output tensor: evidence of second rank."""

    device: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    contiguous: bool
    requires_grad: bool
    storage: int
    """Alias group: inputs, parameters and outputs of this call with the same number share a storage."""
    aliases: tuple[str, ...] = ()
    """Tensors whose memory this one overlaps: ``"input:0"``, ``"out[1]"``, ``"param:weight"``."""


@dataclass(frozen=True)
class Built:
    """A constructed candidate."""

    names: list[tuple[str, tuple[int, ...], str]]
    """(name, shape, dtype) of its parameters and buffers, in order."""
    state: dict[str, Tensor]
    """Their values (CPU)."""
    copied: list[str] = field(default_factory=list)
    """Names that took a value from `state`."""
    unmatched: list[str] = field(default_factory=list)
    """Names of `state` that the candidate does not hold in that shape."""
    parameters: list[str] = field(default_factory=list)
    """Which of `names` are parameters (the others are buffers)."""


@dataclass(frozen=True)
class RunReport:
    """One call of the candidate."""

    outputs: Any
    """As it returned them, nested; tensors on the CPU, with their exact bytes."""
    meta: list[OutputMeta]
    """One per output tensor, in flatten order."""
    inputs_after: list[Tensor] | None
    """The input tensors after the call, in flatten order, if they were asked for."""
    grads: dict[str, Tensor | None]
    """``"input:<i>"`` (i counts the floating input tensors in flatten order), ``"param:<name>"``; None: no
    gradient arrived."""
    guards_intact: bool
    overrun: list[str]
    """Which tensors were written outside, ``"input:0: 4 bytes after its end"``, or (by an interpreted
    kernel) read outside, ``"input:0: read 3 elements outside"``."""
    launches: int
    kernels: list[str]
    choices: int
    """Configurations with constants of their own that the most tunable kernel chooses from; 0 if none is."""
    elapsed: float
    """Seconds of the call, as the suspect's clock saw them."""
    configurations: list[str] = field(default_factory=list)
    """Which configuration each autotuned kernel that has a choice ran."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise GarbageError("a text that is none")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > MAX_TENSORS:
        raise GarbageError("a list of texts that is none")
    return [_text(x) for x in value]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise GarbageError("a flag that is none")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_EXTENT:
        raise GarbageError("a count that is none")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise GarbageError("a time that is none")
    return float(value)


def parse_built(answer: dict[str, Any], arenas: list[Arena]) -> Built:
    metas = parse_metas(answer.get("tensors"))
    names = _texts(answer.get("names"))
    if len(names) != len(metas) or len(set(names)) != len(names):
        raise GarbageError("a state whose names do not fit its tensors")
    tensors = decode_tensors(metas, arenas)
    return Built(
        names=[(n, m.shape, m.dtype) for n, m in zip(names, metas, strict=True)],
        state=dict(zip(names, tensors, strict=True)),
        copied=_texts(answer.get("copied")),
        unmatched=_texts(answer.get("unmatched")),
        parameters=_texts(answer.get("parameters")),
    )


def parse_reports(answer: dict[str, Any], arenas: list[Arena], times: int) -> list[RunReport]:
    reports = answer.get("reports")
    if (
        not isinstance(reports, list)
        or len(reports) != times
        or not all(isinstance(r, dict) for r in reports)
    ):
        raise GarbageError("another number of reports than calls")
    metas = [parse_metas(r.get("tensors")) for r in reports]
    if sum(map(len, metas)) > MAX_TENSORS:
        raise GarbageError("too many tensors")
    tensors = decode_tensors([m for ms in metas for m in ms], arenas)
    out = []
    for report, own in zip(reports, metas, strict=True):
        out.append(_report(report, own, tensors[: len(own)]))
        del tensors[: len(own)]
    return out


def _report(r: dict[str, Any], metas: list[TensorMeta], tensors: list[Tensor]) -> RunReport:
    described = r.get("meta")
    after = r.get("after")
    grads = r.get("grads")
    if not isinstance(described, list) or not isinstance(grads, list) or len(described) > len(tensors):
        raise GarbageError("a report without description")
    count = len(described)
    outputs = structure.unflatten(tensors[:count], r.get("outputs"))
    meta = [_output_meta(d, m) for d, m in zip(described, metas, strict=False)]
    rest = tensors[count:]
    inputs_after = None
    if after is not None:
        if _count(after) > len(rest):
            raise GarbageError("fewer inputs than announced")
        inputs_after, rest = rest[:after], rest[after:]
    found: dict[str, Tensor | None] = {}
    for item in grads:
        if not isinstance(item, list) or len(item) != 2:
            raise GarbageError("a gradient without name")
        name, present = _text(item[0]), _flag(item[1])
        if present and not rest:
            raise GarbageError("fewer gradients than announced")
        found[name] = rest.pop(0) if present else None
    if rest:
        raise GarbageError("tensors that nobody announced")
    overrun = _texts(r.get("overrun"))
    return RunReport(
        outputs=outputs,
        meta=meta,
        inputs_after=inputs_after,
        grads=found,
        guards_intact=not overrun,
        overrun=overrun,
        launches=_count(r.get("launches")),
        kernels=_texts(r.get("kernels")),
        choices=_count(r.get("choices")),
        elapsed=_seconds(r.get("elapsed")),
        configurations=_texts(r.get("configurations")),
    )


def _output_meta(d: Any, m: TensorMeta) -> OutputMeta:
    if not isinstance(d, dict):
        raise GarbageError("an output without description")
    return OutputMeta(
        device=_text(d.get("device")),
        dtype=m.dtype,
        shape=m.shape,
        stride=m.stride,
        contiguous=_flag(d.get("contiguous")),
        requires_grad=_flag(d.get("requires_grad")),
        storage=_count(d.get("storage")),
        aliases=tuple(_texts(d.get("aliases"))),
    )
