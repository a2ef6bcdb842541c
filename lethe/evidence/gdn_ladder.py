"""The gated linear recurrence rung by rung on a CPU, small enough to be climbed whenever the book is built.

`kept` asks every member, by its own name, what it hands to the general operator; nothing of the answer is
written here. `definitions` holds each member against its own definition (`lethe.references.gdn_members`).
`ladder` climbs from autograd through the token-serial recurrence to the plan of the native kernels, every
rung against the one below it; errors are max|x - x64| / max|x64| for each gradient.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lethe.evidence.gdn_precision import Case, draw, emulate
from lethe.kernels import gdn as family
from lethe.kernels.gdn import stages
from lethe.kernels.gdn.chunks import cut
from lethe.kernels.gdn.cost import least_traffic, traffic
from lethe.kernels.gdn.precision import CHOSEN, PINS
from lethe.references import gdn_chunk, gdn_members
from lethe.references.gdn import GRADIENTS, gated_delta_rule_backward, gated_delta_rule_forward

MEMBERS = ("linear_attention", "gla", "ssd", "deltanet", "gdn", "kda", "gdn2")
EXACT = 1e-12
"""What two float64 forms of the same gradient may differ by."""

BATCH, HEADS, DK, DV = 1, 2, 8, 6
Row = dict[str, Any]
Named = dict[str, Tensor]


def worst(found: Tensor, expected: Tensor) -> float:
    """max|x - x64| / max|x64|; infinite where something is not finite."""
    error = float((found.double() - expected).abs().max() / expected.abs().max())
    return error if error == error else float("inf")


def title(member: str) -> str:
    """The member's name as its own documentation spells it."""
    return str(inspect.getdoc(getattr(family, member))).split()[0].rstrip(":")


# --- members ----------------------------------------------------------------------------------


def arguments(member: str, length: int, seed: int = 0) -> Named:
    """Float64 arguments by name; a gate is one number a channel where the member takes that, else a head."""
    r = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=r, dtype=torch.float64)

    rows = (BATCH, length, HEADS)
    keys, values = normal(*rows, DK), normal(*rows, DV)
    pool = {
        **{name: torch.nn.functional.normalize(normal(*rows, DK), dim=-1) for name in "qkBC"},
        **dict.fromkeys("vx", values),
        "g": -keys.sigmoid(),
        "b": normal(*rows, DK).sigmoid(),
        "w": normal(*rows, DV).sigmoid(),
        "beta": normal(*rows).sigmoid(),
        "dt": normal(*rows).sigmoid(),
        "A": -normal(HEADS).exp(),
    }
    parameters = inspect.signature(getattr(family, member)).parameters.values()
    taken = {p.name: pool[p.name] for p in parameters if p.name in pool and p.default is p.empty}
    try:
        getattr(family, member)(**{name: t[:, :1] if t.dim() > 1 else t for name, t in taken.items()})
    except ValueError:
        taken["g"] = taken["g"][..., 0]
    return taken


class _Seen(TorchDispatchMode):
    """Keeps the arguments of the general operator as torch's dispatcher receives them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.name() == "lethe::gated_delta_rule":
            self.calls.append(args)
        return func(*args, **(kwargs or {}))


def kept() -> list[Row]:
    """A row for each member: what q, k, v, g, b, w and the scale of the general recurrence are in it, how
    wide the gates are, whether the triangular inverse is the identity, bytes of the backward pass a chunk."""
    rows = []
    for member in MEMBERS:
        given, seen = arguments(member, 3), _Seen()
        with seen:
            getattr(family, member)(**given)
        (call,) = seen.calls
        row: Row = {"member": title(member), "takes": list(given)}
        for name, tensor, absent in zip("qkvgbw", call[:6], ("", "", "", "0", "0", "1"), strict=True):
            row[name] = absent if tensor is None else _name(tensor, given)
            row[f"{name}_width"] = 0 if tensor is None else tensor.shape[3]
        row["scale"] = "1" if call[8] == 1.0 else "d_k^-1/2" if call[8] == DK**-0.5 else str(call[8])
        row["identity"] = call[4] is None
        full = {0: 0, 1: 1, DK: 128, DV: 128}
        widths = (full[row["g_width"]], full[row["b_width"]], full[row["w_width"]])
        row["bytes"], row["least"] = sum(traffic(widths=widths).values()), least_traffic(widths=widths)
        rows.append(row)
    return rows


def _name(tensor: Tensor, given: Named) -> str:
    """Which argument, or product of two, a tensor is: by its values."""
    candidates = dict(given)
    for (first, x), (second, y) in itertools.combinations(given.items(), 2):
        with contextlib.suppress(RuntimeError):  # shapes that no product has
            candidates[f"{first} {second}"] = x * y
    for name, found in candidates.items():
        found = found[..., None] if found.dim() == 3 else found
        if found.shape == tensor.shape and torch.equal(found, tensor):
            return name
    return "another"


def definitions(length: int = 40) -> list[Row]:
    """Each member against its own definition: outputs, final state and every gradient, both by autograd."""
    rows = []
    for member in MEMBERS:
        given = arguments(member, length, seed=1)
        r = torch.Generator().manual_seed(2)
        S0, dfinal = torch.randn(2, BATCH, HEADS, DK, DV, generator=r, dtype=torch.float64)
        do = torch.randn(BATCH, length, HEADS, DV, generator=r, dtype=torch.float64)
        ours, own = (
            _differentiated(function, member, given, S0, do, dfinal) for function in (_operator, _defined)
        )
        rows.append({"member": title(member), "errors": {n: worst(ours[n], own[n]) for n in own}})
    return rows


def _operator(member: str, x: Named, S0: Tensor) -> tuple[Tensor, Tensor]:
    function: Callable[..., Any] = getattr(family, member)
    if member == "ssd":
        y, final = function(**x, initial_states=S0.mT, return_final_states=True)
        return y, final.mT
    o, final = function(**x, initial_state=S0, output_final_state=True, scale=0.4)
    return o, final


def _defined(member: str, x: Named, S0: Tensor) -> tuple[Tensor, Tensor]:
    function: Callable[..., Any] = getattr(gdn_members, member.removesuffix("_attention"))
    if member == "ssd":
        skip = torch.zeros(HEADS, dtype=torch.float64)
        found: tuple[Tensor, Tensor] = function(**x, D=skip, S0=S0)
        return found
    decays = "a" in inspect.signature(function).parameters
    named = {("a" if decays and n == "g" else n): t.exp() if decays and n == "g" else t for n, t in x.items()}
    found = function(**named, S0=S0, scale=0.4)
    return found


def _differentiated(function: Any, member: str, x: Named, S0: Tensor, do: Tensor, dfinal: Tensor) -> Named:
    leaves = {name: t.clone().requires_grad_() for name, t in {**x, "S0": S0}.items()}
    start = leaves.pop("S0")
    o, final = function(member, leaves, start)
    named = {**leaves, "S0": start}
    found = torch.autograd.grad([o, final], list(named.values()), [do, dfinal])
    gradients = {f"d{name}": t for name, t in zip(named, found, strict=True)}
    return {"o": o.detach(), "final": final.detach(), **gradients}


# --- the ladder -------------------------------------------------------------------------------


def ladder(length: int, dv: int = 128, heads: int = 1, seed: int = 0) -> list[Row]:
    """The gradients of the general member climbed from one form to the next; float16-valued inputs, gates of
    every channel within [-1, 0], d_k 128, keys that overlap, initial and final states."""
    case = Case("gdn2", "unit", "silu", dv, "fp16", length, heads, seed)
    drawn, scale = draw(case), case.dk**-0.5
    x = {name: t.double() for name, t in drawn.items()}

    def serial() -> Named:
        return gated_delta_rule_backward(**x, scale=scale)

    def rounded() -> Named:
        return emulate(drawn, scale, CHOSEN.rounding)

    steps: list[tuple[str, str, float | None, Callable[[], Named]]] = [
        ("token by token, autograd", "float64", None, lambda: _token_autograd(x, scale)),
        ("token by token, adjoint by hand", "float64", EXACT, serial),
        ("chunk by chunk, WY form", "float64", EXACT, lambda: gdn_chunk.chunk_backward(**x, scale=scale)),
        ("three stages", "float64", EXACT, lambda: _stages(x, scale)),
        ("the operator, torch path", "float64", EXACT, lambda: _public(x, scale)),
        ("the operator, torch path", "float32", None, lambda: _public(drawn, scale)),
        ("three stages, operands rounded", CHOSEN.name, PINS["fp16"], rounded),
    ]
    rows: list[Row] = []
    below: Named = {}
    for name, arithmetic, bound, work in steps:
        start = time.monotonic()
        found = {n: t.double() for n, t in work().items()}
        row: Row = {"rung": name, "arithmetic": arithmetic, "bound": bound}
        row["errors"] = {n: worst(found[n], below[n]) for n in GRADIENTS} if below else {}
        row["holds"] = bound is None or all(e <= bound for e in row["errors"].values())
        rows.append({**row, "seconds": time.monotonic() - start})
        if arithmetic == "float64":
            below = found
    return rows


def _token_autograd(x: Named, scale: float) -> Named:
    leaves = {name: x[name].clone().requires_grad_() for name in GRADIENTS}
    o, final = gated_delta_rule_forward(**leaves, scale=scale)
    found = torch.autograd.grad([o, final], list(leaves.values()), [x["do"], x["dfinal"]])
    return dict(zip(leaves, found, strict=True))


def _stages(x: Named, scale: float) -> Named:
    at = cut(1, x["q"].shape[1], None, torch.device("cpu"))
    q, k, v, g, b, w = (at.pack(x[name]) for name in "qkvgbw")
    c = stages.local(stages.Operands(q, k, v, g, b, w, scale), block=16)
    prepared, do = stages.prepare(c), at.pack(x["do"])
    P = stages.prepare_adjoint(c, prepared, do)
    S, _ = stages.scan_forward(at, prepared, x["initial_state"])
    D, dS0 = stages.scan_reverse(at, prepared, P, x["dfinal"])
    found = stages.gradients(c, S, D, do, block=16)
    return {**{n: at.unpack(t) for n, t in found.items() if t is not None}, "initial_state": dS0}


def _public(x: Named, scale: float) -> Named:
    leaves = {name: x[name].clone().requires_grad_() for name in GRADIENTS}
    given: dict[str, Any] = {"beta" if name == "b" else name: t for name, t in leaves.items()}
    o, final = family.gated_delta_rule(**given, scale=scale, output_final_state=True, backend="torch")
    assert final is not None
    found = torch.autograd.grad([o, final], list(leaves.values()), [x["do"], x["dfinal"]])
    return dict(zip(leaves, found, strict=True))
