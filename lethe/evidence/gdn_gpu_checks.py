"""What the native kernels of the gated linear recurrence compute on a GPU, held against float64.

`tasks` gives, for `gdn_gpu`:

* ``accuracy``: o, the final states and every gradient of each member, d_v, input dtype and kind of gates, at
  a ragged length, with initial and final states; the error is max|x - x64| / max|x64|, the oracle the torch
  backend in float64 on the same device. The bound is the pin of `precision` plus what storing the value in
  the input dtype may add; ``planned`` is the error of the plan's emulation before it is stored.
  Steep gates, which the kernels form by differences, have no emulated plan. With ``save`` the backward pass
  takes the states that the forward pass has kept.
* ``control``: the kernels are given an input that is wrong at one token of one head, and the comparison must
  notice it: one line for each of the seven inputs.
* ``bits``: twenty runs, compared bit for bit with the first.
* ``graph``: the captured call on inputs that came later, compared bit for bit with the eager one.
* ``operator``: the public call and its autograd give the same bits as the kernels by themselves;
  ``compiled``: and under torch.compile.
* ``red zones``: inputs, workspaces and outputs stand in buffers of which every other byte is 0xFF. Bytes that
  changed are writes out of bounds, and a NaN in a result was read out of bounds or never written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lethe.evidence.gdn_precision import MEMBERS, Case, draw, emulate
from lethe.kernels.gdn import cute_sm90, torch_path
from lethe.kernels.gdn.checks import Arguments
from lethe.kernels.gdn.precision import CHOSEN, PINS, ROUNDOFF

RUNS = 20
ZONE = 4096
"""Bytes of a red zone, on either side."""

LENGTH, RAGGED = 512, 497
SPOILED = 70
"""The token, or row of a state, that a control spoils."""

CUTS = (0, 64, 64, 161, 497)
"""One sequence of a full chunk, an empty one, two ragged ones."""

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TENSORS = ("q", "k", "v", "g", "b", "w", "initial_state")
Row = dict[str, Any]
Named = dict[str, Tensor]


@dataclass(frozen=True)
class Call:
    """The arguments of the two passes."""

    a: Arguments
    do: Tensor
    dfinal: Tensor

    def tensors(self) -> Named:
        """Everything that is read."""
        return {**self.a.tensors(), "do": self.do, "dfinal": self.dfinal}

    def map(self, change: Callable[[str, Tensor], Tensor]) -> Call:
        """The same with other tensors."""
        changed: dict[str, Any] = {name: change(name, t) for name, t in self.tensors().items()}
        do, dfinal = changed.pop("do"), changed.pop("dfinal")
        return Call(replace(self.a, **changed), do, dfinal)


def call(case: Case, cuts: tuple[int, ...] | None = None, device: str = "cuda", batch: int = 1) -> Call:
    """A case's inputs on the device; the tokens of a batch are drawn as one sequence."""
    x = draw(case)
    io = DTYPES[case.io]
    for name in ("q", "k", "v", "g", "b", "w", "do"):
        if x[name] is not None:
            x[name] = x[name].reshape(batch, -1, *x[name].shape[2:])
            x[name] = x[name] if name == "g" else x[name].to(io)
    count = batch if cuts is None else len(cuts) - 1
    for name in ("initial_state", "dfinal"):
        x[name] = x[name].repeat(count, 1, 1, 1)
    x = {name: None if t is None else t.to(device) for name, t in x.items()}
    cu = None if cuts is None else torch.tensor(cuts, dtype=torch.int32, device=device)
    q, k, v, g, b, w, initial = (x[name] for name in TENSORS)
    return Call(Arguments(q, k, v, g, b, w, initial, cu, case.dk**-0.5), x["do"], x["dfinal"])


def native(c: Call, save: bool = False, new: Any = None) -> Named:
    """Outputs and gradients (``d...``) by the native kernels."""
    o, final, saved = cute_sm90.forward(c.a, save, new)
    return _named(o, final, cute_sm90.backward(c.a, c.do, c.dfinal, saved, new))


def exact(c: Call) -> Named:
    """The same in float64."""
    wide = c.map(lambda name, t: t if name == "cu_seqlens" else t.double())
    o, final, saved = torch_path.forward(wide.a, save=False)
    return _named(o, final, torch_path.backward(wide.a, wide.do, wide.dfinal, saved))


def _named(o: Tensor, final: Tensor, gradients: Named) -> Named:
    return {"o": o, "final": final, **{f"d{name}": t for name, t in gradients.items()}}


# --- accuracy ---------------------------------------------------------------------------------


def accuracy(case: Case, cuts: tuple[int, ...] | None = None, save: bool = False) -> Row:
    """Errors, the bounds that they were held against, and what the plan predicts."""
    c = call(case, cuts)
    found, expected = native(c, save), exact(c)
    row = _compared(case, c, found, expected)
    holds = row["holds"]
    planned = {} if cuts or save or case.gate == "steep" else _planned(c, expected)
    return {**row, "passed": all(holds.values()), "planned": planned}


def _compared(case: Case, c: Call, found: Named, expected: Named) -> Row:
    """Errors, and whether each is within its bound."""
    gate = 0.0 if c.a.g is None else float(c.a.g.abs().max())
    pin = PINS["fp16" if case.io == "fp16" and gate <= 1 else "bf16"]
    errors = {name: worst(found[name], e) for name, e in expected.items()}
    stored = {name: 0.0 if t.dtype == torch.float32 else ROUNDOFF[case.io] for name, t in found.items()}
    holds = {name: e <= pin + stored[name] for name, e in errors.items()}
    return {"errors": errors, "pin": pin, "stored": ROUNDOFF[case.io], "largest_gate": gate, "holds": holds}


def control(case: Case, wrong: str) -> Row:
    """What the comparison says of a call whose input `wrong` has at one token of one head what belongs to the
    next one (an initial state: at one of its rows). It passes if it is noticed."""
    c = call(case)

    def spoiled(name: str, t: Tensor) -> Tensor:
        if name == wrong:
            t = t.clone()
            rows = t[0, 0] if name == "initial_state" else t[0, :, 0]
            rows[SPOILED] = rows[SPOILED + 1]
        return t

    row = _compared(case, c, native(c.map(spoiled)), exact(c))
    return {**row, "passed": not all(row["holds"].values())}


def _planned(c: Call, expected: Named) -> dict[str, float]:
    x = {name: getattr(c.a, name) for name in TENSORS} | {"do": c.do, "dfinal": c.dfinal}
    wide = {name: None if t is None else t.float() for name, t in x.items()}
    found = emulate(wide, c.a.scale, CHOSEN.rounding)
    return {f"d{name}": worst(t.to(expected["o"].device), expected[f"d{name}"]) for name, t in found.items()}


def worst(found: Tensor, expected: Tensor) -> float:
    """max|x - x64| / max|x64|; infinite where something is not finite."""
    error = float((found.double() - expected).abs().max() / expected.abs().max())
    return error if error == error else float("inf")


# --- bits, graphs, red zones ------------------------------------------------------------------


def same_bits(case: Case, cuts: tuple[int, ...] | None = None) -> Row:
    """How many of the runs differ from the first, by result."""
    c = call(case, cuts)
    first = native(c)
    differ = dict.fromkeys(first, 0)
    for _ in range(RUNS - 1):
        for name, t in native(c).items():
            differ[name] += not _equal(t, first[name])
    return {"runs": RUNS, "differ": differ, "passed": not any(differ.values())}


def graph(case: Case, cuts: tuple[int, ...] | None = None) -> Row:
    """A call that is captured, then replayed on other inputs than those it was captured with."""
    c, fresh = call(case, cuts), call(replace(case, seed=case.seed + 1), cuts)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        native(c)
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        found = native(c)
    rows = {}
    for turn, inputs in (("first", c.map(lambda _, t: t.clone())), ("fresh", fresh)):
        for name, t in c.tensors().items():
            t.copy_(inputs.tensors()[name])
        captured.replay()
        torch.cuda.synchronize()
        replayed = {name: t.clone() for name, t in found.items()}
        eager = native(inputs)
        rows[turn] = {name: _equal(t, eager[name]) for name, t in replayed.items()}
    return {"equal": rows, "passed": all(all(row.values()) for row in rows.values())}


def operator(case: Case, cuts: tuple[int, ...] | None = None, save: bool = False) -> Row:
    """The public operator and its autograd, as ``auto`` and ``cute``, against the kernels by themselves."""
    from lethe.kernels.gdn.operator import explain, gated_delta_rule

    c = call(case, cuts)
    expected, rows = native(c, save), {}
    leaves = {name: t.clone().requires_grad_() for name, t in c.a.tensors().items() if name != "cu_seqlens"}
    inputs: dict[str, Any] = {
        "beta" if name == "b" else name: t for name, t in leaves.items() if name != "initial_state"
    }
    how: dict[str, Any] = {
        "scale": c.a.scale,
        "initial_state": leaves["initial_state"],
        "cu_seqlens": c.a.cu_seqlens,
    }
    for backend in ("auto", "cute"):
        mode = "save" if save else "recompute"
        o, final = gated_delta_rule(**inputs, **how, output_final_state=True, backend=backend, mode=mode)
        assert final is not None
        found = torch.autograd.grad([o, final], list(leaves.values()), [c.do, c.dfinal])
        named = _named(o.detach(), final.detach(), dict(zip(leaves, found, strict=True)))
        rows[backend] = {name: _equal(t, expected[name]) for name, t in named.items()}
    chosen = str(explain(**inputs, **how))
    passed = chosen.startswith("cute_sm90") and all(all(row.values()) for row in rows.values())
    return {"explain": chosen, "equal": rows, "passed": passed}


def compiled(case: Case) -> Row:
    """The public operator traced as one graph by torch.compile, against the same without."""
    from lethe.kernels.gdn.operator import gated_delta_rule

    c = call(case)

    def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor) -> Any:
        return gated_delta_rule(q, k, v, g, b, w, scale=c.a.scale, backend="auto")[0]

    leaves = [c.a.tensors()[name].clone().requires_grad_() for name in TENSORS[:-1]]
    results = []
    for function in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        o = function(*leaves)
        results.append([o.detach(), *torch.autograd.grad(o, leaves, c.do)])
    equal = [_equal(*pair) for pair in zip(*results, strict=True)]
    return {"equal": dict(zip(("o", *TENSORS[:-1]), equal, strict=True)), "passed": all(equal)}


@dataclass
class Zoned:
    """Tensors within buffers of which every byte is 0xFF; also an allocator for `cute_sm90`."""

    device: str = "cuda"
    buffers: list[tuple[str, Tensor, int]] = field(default_factory=list)

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype, name: str = "") -> Tensor:
        """An output or a workspace: its own bytes are 0xFF too, a NaN in any float format."""
        count = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
        buffer = torch.full((count + 2 * ZONE,), 0xFF, dtype=torch.uint8, device=self.device)
        self.buffers.append((name or f"{dtype} {list(shape)}", buffer, count))
        return buffer[ZONE : ZONE + count].view(dtype).view(shape)

    def copy(self, name: str, t: Tensor) -> Tensor:
        """An input."""
        return self(tuple(t.shape), t.dtype, name).copy_(t)

    def touched(self) -> list[str]:
        """Buffers whose zones changed."""
        return [
            name
            for name, b, count in self.buffers
            if not bool((b[:ZONE] == 0xFF).all() and (b[ZONE + count :] == 0xFF).all())
        ]


def red_zones(case: Case, cuts: tuple[int, ...] | None = None, save: bool = False, batch: int = 1) -> Row:
    """Zones that were written, inputs that changed, results that are not finite or differ without zones."""
    zoned, c = Zoned(), call(case, cuts, batch=batch)
    inside = c.map(zoned.copy)
    found, expected = native(inside, save, zoned), native(c, save)
    torch.cuda.synchronize()
    inputs = inside.tensors()
    row: Row = {
        "zones": len(zoned.buffers),
        "touched": zoned.touched(),
        "changed_inputs": [name for name, t in c.tensors().items() if not _equal(t, inputs[name])],
        "not_finite": [name for name, t in found.items() if not bool(t.isfinite().all())],
        "differ": [name for name, t in found.items() if not _equal(t, expected[name])],
    }
    return {**row, "passed": not any(row[name] for name in list(row)[1:])}


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


# --- what is run ------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """The grid of the accuracy: first the general member, its two dtypes and kinds of gates."""
    for dv, member in itertools.product((128, 64), reversed(MEMBERS)):
        for io in ("fp16", "bf16"):
            kinds = ("unit", "mild", "strong", "none") if io == "fp16" else ("mild", "strong", "none")
            for gate in kinds if MEMBERS[member][0] else ("none",):
                yield Case(member, gate, "silu", dv, io, RAGGED)


def tasks() -> Iterator[tuple[Row, Callable[[], Row]]]:
    """(what it is about, how the rest is found), the most telling first."""
    main = Case("gdn2", "mild", "silu", 128, "fp16", RAGGED)
    sharp = replace(main, gate="strong")
    grid = list(cases())
    steps: list[tuple[str, Row, Callable[[], Row]]] = []

    def add(kind: str, work: Callable[..., Row], case: Case, **how: Any) -> None:
        steps.append((kind, {**asdict(case), **how}, lambda: work(case, **how)))

    add("accuracy", accuracy, replace(main, gate="unit", length=LENGTH))
    for name in TENSORS:
        add("control", control, main, wrong=name)
    for case in (main, sharp):
        add("bits", same_bits, case)
        add("graph", graph, case)
        add("red zones", red_zones, case)
    add("operator", operator, main)
    add("operator", operator, main, save=True)
    add("compiled", compiled, main)
    for case in grid[: len(grid) // 2]:
        add("accuracy", accuracy, case)
    for case in (main, sharp):
        for kind, work in (
            ("accuracy", accuracy),
            ("bits", same_bits),
            ("graph", graph),
            ("red zones", red_zones),
        ):
            add(kind, work, case, cuts=CUTS)
    for save_case in (main, replace(main, io="bf16")):
        add("accuracy", accuracy, save_case, save=True)
        add("red zones", red_zones, save_case, save=True)
    for member, dv in itertools.product(("gdn2", "kda"), (128, 64)):
        add("accuracy", accuracy, Case(member, "steep", "silu", dv, "bf16", RAGGED))
    for member, dv in itertools.product(reversed(MEMBERS), (128, 64)):
        gate = "mild" if MEMBERS[member][0] else "none"
        if (member, dv) != ("gdn2", 128):
            add("accuracy", accuracy, Case(member, gate, "silu", dv, "bf16", RAGGED), save=True)
    for case in grid[len(grid) // 2 :]:
        add("accuracy", accuracy, case)
    for member, dv, io in itertools.product(MEMBERS, (128, 64), ("fp16", "bf16")):
        one = Case(member, "mild" if MEMBERS[member][0] else "none", "silu", dv, io, 3 * 100)
        add("red zones", red_zones, one, batch=3)
        if replace(one, length=RAGGED) != main:
            add("bits", same_bits, replace(one, length=RAGGED))
    add("bits", same_bits, replace(main, length=2048, heads=34))
    add("accuracy", accuracy, replace(main, length=2048, heads=34))
    for kind, about, step in steps:
        yield {"kind": kind, **about}, step
