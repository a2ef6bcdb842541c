"""The precision plans of the gated-linear-recurrence kernels, emulated against float64, and their record.

``python -m lethe.evidence.gdn_precision`` runs every plan of `lethe.kernels.gdn.precision` over members,
gates, keys, d_v and input dtypes at a ragged length with initial and final state, and the chosen one at
2,048 tokens; it also rounds one operand at a time to bfloat16 (what each costs by itself). The record is
``data/measured/cpu/gdn_precision.json``. An error is max|x - x64| / max|x64| per gradient, before the last
rounding to the input dtype. Emulated are operand roundings, float32 sums and exponentials; not the order of a
tensor core's sums nor its approximate exp2 (2^-22), both far below 2^-11.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lethe import provenance

RECORD = provenance.ROOT / "data" / "measured" / "cpu" / "gdn_precision.json"
GATES = ("mild", "strong", "none")
"""``mild`` logsigmoid(N + 3), ``strong`` 5 sigmoid(N) down to -5 (KDA's), ``none`` within 1e-4 of zero; and
``unit`` sigmoid(N), within [-1, 0], for float16 inputs. Beside the plans, ``steep`` 20 sigmoid(N) closes
so fast that decays leave float32 within a chunk's blocks."""

_CHANNEL, _HEAD = "channel", "head"
MEMBERS: dict[str, tuple[str, str, str]] = {
    "linear": ("", "", ""),
    "gla": (_CHANNEL, "", ""),
    "ssd": (_HEAD, "", _HEAD),
    "deltanet": ("", _HEAD, _HEAD),
    "gdn": (_HEAD, _HEAD, _HEAD),
    "kda": (_CHANNEL, _HEAD, _HEAD),
    "gdn2": (_CHANNEL, _CHANNEL, _CHANNEL),
}
"""Member -> whether g, b and w are absent, one number a head or one a channel."""


@dataclass(frozen=True)
class Case:
    """One set of inputs."""

    member: str
    gate: str
    keys: str = "normal"
    """``normal`` or ``silu`` (SiLU before the norm: keys that overlap)."""
    dv: int = 128
    io: str = "bf16"
    length: int = 300
    heads: int = 2
    seed: int = 0
    dk: int = 128


def cases() -> Iterator[Case]:
    """Every case of the record for all plans."""
    for member, (g, _, _) in MEMBERS.items():
        for dv, keys in itertools.product((64, 128), ("normal", "silu")):
            for gate in GATES if g else ("none",):
                yield Case(member, gate, keys, dv)
            for gate in ("unit", "none") if g else ("none",):
                yield Case(member, gate, keys, dv, io="fp16")


def long_cases() -> Iterator[Case]:
    """A second look at the chosen plan: more tokens, more chunks."""
    for member, dv in itertools.product(("gdn2", "kda"), (64, 128)):
        for gate in GATES:
            yield Case(member, gate, "silu", dv, length=2048, seed=1)


def draw(case: Case) -> dict[str, Any]:
    """Inputs in float32 whose values the input dtype holds: q, k, v, g, b, w, do, initial_state, dfinal.

    The states are of the size that they have within a sequence (0.1 with unit keys), lest one end of it
    outweigh the rest in every maximum.
    """
    import torch
    import torch.nn.functional as F

    r = torch.Generator().manual_seed(case.seed)
    shape = (1, case.length, case.heads)
    normal = lambda d: torch.randn(*shape, d, generator=r)  # noqa: E731
    overlap = F.silu if case.keys == "silu" else lambda x: x
    q, k = (F.normalize(overlap(normal(case.dk)), dim=-1) for _ in range(2))
    v, do = normal(case.dv), normal(case.dv)
    state = (1, case.heads, case.dk, case.dv)
    found: dict[str, Any] = {"q": q, "k": k, "v": v, "do": do}
    for name, kind, width in zip("gbw", MEMBERS[case.member], (case.dk, case.dk, case.dv), strict=True):
        logit = normal(width)[..., : 1 if kind == _HEAD else width]
        found[name] = None if not kind else decays(case.gate, logit) if name == "g" else torch.sigmoid(logit)
    io = torch.bfloat16 if case.io == "bf16" else torch.float16
    for name in ("q", "k", "v", "b", "w", "do"):
        found[name] = None if found[name] is None else found[name].to(io).float()
    for name in ("initial_state", "dfinal"):
        found[name] = 0.1 * torch.randn(state, generator=r)
    return found


def decays(kind: str, logit: Any) -> Any:
    """Gates g of a kind (see `GATES`) from normal numbers."""
    import torch
    import torch.nn.functional as F

    return {
        "mild": lambda x: F.logsigmoid(x + 3),
        "strong": lambda x: -5 * torch.sigmoid(x),
        "unit": lambda x: -torch.sigmoid(x),
        "steep": lambda x: -20 * torch.sigmoid(x),
        "none": lambda x: -1e-4 * torch.sigmoid(x),
    }[kind](logit)


def oracle(x: dict[str, Any], scale: float) -> dict[str, Any]:
    """The gradients in float64, those of a gate with one number a head summed."""
    import torch

    from lethe.references.gdn import gated_delta_rule_backward

    e: dict[str, Any] = {name: None if t is None else t.double() for name, t in x.items()}
    k, v = e["k"], e["v"]
    for name, like, absent in (("g", k, 0.0), ("b", k, 0.0), ("w", v, 1.0)):
        gate = e[name]
        e[name] = torch.full_like(like, absent) if gate is None else gate.expand_as(like)
    found = gated_delta_rule_backward(**e, scale=scale)
    for name in "gbw":
        if x[name] is None:
            del found[name]
        elif x[name].shape[-1] == 1:
            found[name] = found[name].sum(-1, keepdim=True)
    return found


Hook = Callable[[str, Any], Any]


def emulate(x: dict[str, Any], scale: float, make: Callable[[Any], Hook]) -> dict[str, Any]:
    """The gradients through prep, scan and out in float32; `make` gives the hook for known powers."""
    import torch

    from lethe.kernels.gdn import stages
    from lethe.kernels.gdn.chunks import cut
    from lethe.kernels.gdn.precision import sequence_powers

    rounding = make(None)
    at = cut(1, x["q"].shape[1], None, torch.device("cpu"))
    names = ("q", "k", "v", "g", "b", "w")
    pack: dict[str, Any] = {n: None if x[n] is None else at.pack(x[n]) for n in names}
    if pack["g"] is None:
        pack["g"] = torch.zeros_like(pack["q"][..., :1])
    do = at.pack(x["do"])
    c = stages.local(stages.Operands(**pack, scale=scale), rounding, 16)
    prepared = stages.prepare(c, rounding)
    P = stages.prepare_adjoint(c, prepared, do, rounding)
    rounding = make(sequence_powers(prepared, P, x["initial_state"], x["dfinal"]))
    S, _ = stages.scan_forward(at, prepared, x["initial_state"], rounding)
    D, dS0 = stages.scan_reverse(at, prepared, P, x["dfinal"], rounding)
    found = stages.gradients(c, S, D, do, rounding, 16)
    named = {name: at.unpack(t) for name, t in found.items() if t is not None and x.get(name) is not None}
    return {**named, "initial_state": dS0}


def errors(x: dict[str, Any], exact: dict[str, Any], make: Any, scale: float) -> dict[str, float]:
    """Error by gradient; infinite where something is not finite."""
    found = emulate(x, scale, make)
    assert set(found) == set(exact)
    worst = {n: float((found[n].double() - e).abs().max() / e.abs().max()) for n, e in exact.items()}
    return {n: e if e == e else float("inf") for n, e in worst.items()}


def operands() -> list[str]:
    """Names of every operand that the stages round."""
    seen: set[str] = set()

    def note(name: str, tensor: Any) -> Any:
        seen.add(name)
        return tensor

    emulate(draw(Case("gdn2", "mild", length=70, heads=1)), 1.0, lambda _powers: note)
    return sorted(seen)


def alone(inputs: Iterable[tuple[Case, dict[str, Any], dict[str, Any]]]) -> list[dict[str, Any]]:
    """What rounding one operand to bfloat16 costs by itself, worst over the inputs."""
    from lethe.kernels.gdn.precision import round_to

    known, rows = list(inputs), []
    for operand in operands():

        def only(name: str, tensor: Any, operand: str = operand) -> Any:
            return round_to(tensor, "bf16") if name == operand else tensor

        worst: dict[str, float] = {}
        for case, x, exact in known:
            for name, e in errors(x, exact, lambda _powers, hook=only: hook, case.dk**-0.5).items():
                worst[name] = max(worst.get(name, 0.0), e)
        rows.append({"alone": operand, "errors": worst})
    return rows


def measure() -> list[dict[str, Any]]:
    """All samples: a row for each plan and case, then one for each operand alone."""
    from lethe.kernels.gdn.precision import CHOSEN, PLANS

    samples, kept = [], []
    for case in (*cases(), *long_cases()):
        scale = case.dk**-0.5
        x = draw(case)
        exact = oracle(x, scale)
        for plan in PLANS if case.length < 1000 else (CHOSEN,):
            found = errors(x, exact, plan.rounding, scale)
            finite = {n: e if e != float("inf") else None for n, e in found.items()}
            samples.append({"plan": plan.name, **asdict(case), "errors": finite})
        if case.member == "gdn2" and case.io == "bf16" and case.keys == "silu" and case.length < 1000:
            kept.append((case, x, exact))
    return samples + alone(kept)


def table(samples: list[dict[str, Any]], io: str) -> list[dict[str, Any]]:
    """Per plan the worst error of each gradient over the cases of one input dtype, its cost, and whether the
    pin holds; a gradient that is not finite somewhere is None."""
    from lethe.kernels.gdn.cost import handed_bytes, tensor_work
    from lethe.kernels.gdn.precision import PINS, PLANS

    rows = []
    for plan in PLANS:
        worst: dict[str, float | None] = {}
        for sample in samples:
            if sample.get("plan") == plan.name and sample["io"] == io:
                for name, e in sample["errors"].items():
                    held = worst.get(name, 0.0)
                    worst[name] = None if e is None or held is None else max(held, e)
        finite = [e for e in worst.values() if e is not None]
        top = max(finite) if finite and len(finite) == len(worst) else None
        rows.append(
            {
                "plan": plan.name,
                "about": plan.about,
                "mmac": sum(tensor_work(plan).values()) / 1e6,
                "handed": sum(handed_bytes(plan).values()) / 1024,
                **worst,
                "worst": top,
                "holds": top is not None and top <= PINS[io],
            }
        )
    return rows


def show(samples: list[dict[str, Any]]) -> str:
    """The two tables and the operands alone, as text."""
    names, lines = ("q", "k", "v", "g", "b", "w", "initial_state"), []
    for io in ("bf16", "fp16"):
        lines.append(
            f"{io} inputs: worst error in 1e-3; million products and KiB handed on, a chunk and head"
        )
        for row in table(samples, io):
            cells = " ".join("   inf" if row[n] is None else f"{1e3 * row[n]:6.2f}" for n in names)
            mark = "holds" if row["holds"] else "     "
            lines.append(f"  {row['plan']:24s} {row['mmac']:5.1f} {row['handed']:6.0f} | {cells} | {mark}")
    lines.append("one operand in bfloat16, the rest exact: worst error in 1e-3")
    ranked = sorted((s for s in samples if "alone" in s), key=lambda s: -max(s["errors"].values()))
    for row in ranked:
        cells = " ".join(f"{1e3 * row['errors'][n]:6.2f}" for n in names)
        lines.append(f"  {row['alone']:24s} {'':12s} | {cells} |")
    return "\n".join(lines)


def main(path: Path = RECORD) -> None:
    """Measure, record and print."""
    import torch

    torch.set_num_threads(1)
    samples = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    provenance.record(
        path,
        experiment="gdn_precision",
        samples=samples,
        parameters={"cases": len(list(cases())), "long": len(list(long_cases()))},
        script=Path(__file__),
        units={"errors": "max|x - x64| / max|x64|"},
        on=provenance.device("cpu"),
        command="python -m lethe.evidence.gdn_precision",
    )
    print(show(samples))


if __name__ == "__main__":
    main()
