"""What the state-space engine promises on a device beside values, as tasks that each find a row.

Equal bits, execution without allocation, pointers bound again, several streams, graph replay, and training:
torch.compile with ``fullgraph``, and a captured step. Values are `ssd_check`'s. `tasks` needs no device. On
a CPU (`device` = ``"cpu"``, kernels interpreted) the tasks that need CUDA say so; the others run, on a small
case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lethe.evidence import ssd_gpu_training as training
from lethe.kernels.ssd.cases import PLAIN, Case, operands

RUNS = 20
STREAMS = 4

Row = dict[str, Any]
Task = tuple[Row, Callable[[], Row]]


def tasks(device: str = "cuda") -> Iterator[Task]:
    """Every task with what it is about, the most telling first."""
    plain = PLAIN if device == "cuda" else small(PLAIN)
    for gated in (True, False):
        case = replace(plain, id=f"equal-bits-{'gated' if gated else 'plain'}", gated=gated)
        yield {"kind": "deterministic", "case": case.id}, lambda c=case: deterministic(c, device)  # type: ignore[misc]
    for kind, work in (
        ("rebinding", rebinding), ("allocation", allocation), ("streams", streams), ("replay", replay),
    ):  # fmt: skip
        yield {"kind": kind, "case": plain.id}, lambda w=work: w(plain, device)  # type: ignore[misc]
    for kind, train in (("compile", training.compiled), ("training graph", training.captured)):
        yield {"kind": kind, "case": "mixer"}, lambda t=train: t(device)  # type: ignore[misc]


def small(case: Case) -> Case:
    """A case that the interpreter finishes in seconds; float16, because it has no bfloat16."""
    return replace(case, batch=1, length=70, heads=min(case.heads, 3), groups=1, dtype="float16")


def _target(device: str) -> int | None:
    import torch

    if device == "cpu":
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def gradients(case: Case, o: dict[str, Any], dy: Any, dfinal: Any) -> dict[str, Any]:
    """Output, final states and every gradient of the engine, by name."""
    import torch

    from lethe.kernels.ssd.operator import ssd

    live = {k: t.clone().requires_grad_(t.is_floating_point()) for k, t in o.items()}
    options: dict[str, Any] = {
        "chunk_size": case.chunk, "dt_softplus": case.softplus, "dt_limit": case.limits,
        "checkpoint_dtype": case.checkpoint, "reuse_checkpoints": case.reuse,
    }  # fmt: skip
    y, final = ssd(**live, **options, return_final_states=True)
    leaves = {k: t for k, t in live.items() if t.requires_grad}
    outputs, upstream = ([y, final], [dy, dfinal]) if case.final else ([y], [dy])
    found = torch.autograd.grad(outputs, list(leaves.values()), upstream)
    return {"y": y.detach(), "final_states": final.detach()} | {
        f"d{k}": g for k, g in zip(leaves, found, strict=True)
    }


def drawn(case: Case, device: str, seed: int = 0) -> tuple[dict[str, Any], Any, Any]:
    """Operands, and upstream gradients of the output and the final states."""
    import torch

    o = operands(case, device, seed)
    source = torch.Generator().manual_seed(seed + 1)
    sequences = len(case.cuts) - 1 if case.cuts else case.batch
    dy = torch.randn(o["x"].shape, generator=source).to(o["x"].dtype).to(device)
    dfinal = torch.randn(sequences, case.heads, case.width, case.n, generator=source).to(device)
    return o, dy, dfinal


# --- execution ------------------------------------------------------------------------------------


def _differ(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    import torch

    return [name for name in a if not torch.equal(a[name], b[name])]


def deterministic(case: Case, device: str) -> Row:
    """The same bits in every one of `RUNS` runs."""
    given = drawn(case, device)
    first = gradients(case, *given)
    runs = RUNS if device == "cuda" else 2
    changed = sorted({name for _ in range(runs - 1) for name in _differ(first, gradients(case, *given))})
    return {"ok": not changed, "runs": runs, "changed": changed}


def _bound(case: Case, device: str, seed: int = 0) -> list[Any]:
    from lethe.kernels.ssd.bound import bind

    return [bind(case, op, device, _target(device), seed=seed) for op in ("SSD", "SSD_BWD")]


def _results(bound: Any) -> dict[str, Any]:
    return {name: bound.tensors[name].clone() for name in bound.plan.node.outputs}


def rebinding(case: Case, device: str) -> Row:
    """One plan on other memory gives what a plan bound there from the start gives; nothing is compiled."""
    import triton

    from lethe.kernels.ssd import builder

    ours = _bound(case, device, 0)
    builder.forget()
    others = _bound(case, device, 7)
    for bound in (*ours, *others):
        bound.execute()
    wanted = [_results(bound) for bound in others]
    compile_, compiled = triton.compile, []

    def counted(*a: Any, **k: Any) -> Any:
        compiled.append(a)
        return compile_(*a, **k)

    triton.compile = counted
    try:
        for one, other in zip(ours, others, strict=True):
            for name in other.plan.node.outputs:
                other.tensors[name].zero_()
            other.plan = one.plan
            other.execute()
    finally:
        triton.compile = compile_
    changed = [n for w, other in zip(wanted, others, strict=True) for n in _differ(w, _results(other))]
    return {"ok": not changed and not compiled, "changed": changed, "compiled": len(compiled)}


def _needs_cuda(device: str) -> Row | None:
    return None if device == "cuda" else {"skipped": "needs a CUDA device"}


def allocation(case: Case, device: str) -> Row:
    """Executing a plan allocates nothing: torch's allocator is not called, no kernel asks for scratch."""
    import torch

    if why := _needs_cuda(device):
        return why
    bounds = _bound(case, device)
    for bound in bounds:
        bound.execute()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(3):
        for bound in bounds:
            bound.execute()
    torch.cuda.synchronize()
    calls = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    scratch = sum(one.artifact.metadata.global_scratch_size for b in bounds for one in b.plan.prepared)
    return {"ok": calls == 0 and scratch == 0, "allocations": calls, "scratch_bytes": scratch}


def streams(case: Case, device: str) -> Row:
    """One plan on several streams at once, a workspace each, against the same calls one after another."""
    import torch

    if why := _needs_cuda(device):
        return why
    case = replace(case, length=1500, heads=12)
    calls = [_bound(case, device, seed) for seed in range(STREAMS)]
    wanted = []
    for pair in calls:
        for bound in pair:
            bound.execute()
        wanted.append([_results(bound) for bound in pair])
        for bound in pair:
            for name in bound.plan.node.outputs:
                bound.tensors[name].zero_()
    torch.cuda.synchronize()
    lanes = [torch.cuda.Stream() for _ in calls]
    for _ in range(5):
        for pair, lane in zip(calls, lanes, strict=True):
            with torch.cuda.stream(lane):
                for bound in pair:
                    bound.execute()
    torch.cuda.synchronize()
    changed = [
        name
        for pair, rows in zip(calls, wanted, strict=True)
        for bound, row in zip(pair, rows, strict=True)
        for name in _differ(row, _results(bound))
    ]
    plans = len({id(bound.plan) for pair in calls for bound in pair})
    return {"ok": not changed and plans == 2, "streams": STREAMS, "plans": plans, "changed": changed}


def replay(case: Case, device: str) -> Row:
    """A captured forward and backward pass equals the eager one to the bit, also on new values."""
    import torch

    if why := _needs_cuda(device):
        return why
    o, dy, dfinal = drawn(case, device)
    from lethe.kernels import timing

    kept: dict[str, Any] = {}
    graph = timing.capture(lambda: kept.update(gradients(case, o, dy, dfinal)))
    changed = []
    for seed in (0, 3):
        fresh, new_dy, new_dfinal = drawn(case, device, seed)
        for name, t in fresh.items():
            o[name].copy_(t)
        dy.copy_(new_dy)
        dfinal.copy_(new_dfinal)
        graph.replay()
        torch.cuda.synchronize()
        changed += _differ(gradients(case, fresh, new_dy, new_dfinal), kept)
    return {"ok": not changed, "changed": changed}
