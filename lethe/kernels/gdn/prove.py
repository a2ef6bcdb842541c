"""Is a native backend right on this very GPU? ``python -m lethe.kernels.gdn.prove [--backend B]``.

Kernels that no GPU of their kind has run yet (`dispatch.UNPROVEN`) might be wrong there, hang, or take the
process with them. So ``auto`` leaves them alone until this has run on the machine: every kind of call whose
libraries can be had, forward and backward twice on a small ragged problem, in a child process that is ended
when it does not answer. A kind is proven if every result is within the bound of `precision` of the torch
backend in float64 and both runs give the same bits.

What was found is a file in the cache of the architecture, with the name of the GPU and a hash of the kernels'
sources; `proven` reads it, and it counts for that GPU and those sources only.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lethe.kernels.gdn import dispatch, torch_path
from lethe.kernels.gdn.architecture import ARCHITECTURES, STAGES, Architecture
from lethe.kernels.gdn.checks import Arguments
from lethe.kernels.gdn.declare import KINDS
from lethe.kernels.gdn.native import DK, DV, Kind
from lethe.kernels.gdn.precision import PINS, ROUNDOFF

LENGTH, HEADS = 150, 2
"""Tokens (three chunks, the last one ragged) and heads of the problem."""

SECONDS = 300.0
"""The child's time; compiling on first use is part of it."""

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}

Row = dict[str, Any]


def architecture_of(backend: str) -> Architecture:
    """Of a native backend."""
    return next(a for a in ARCHITECTURES.values() if a.capability == dispatch.CAPABILITY[backend])


def sources(architecture: Architecture) -> str:
    """One hash of everything that the kernels are compiled from."""
    return hashlib.sha256("".join(map(architecture.source_hash, STAGES)).encode()).hexdigest()


def file(architecture: Architecture) -> Path:
    """Where the outcome is kept."""
    return architecture.cache() / "proven.json"


@functools.cache
def proven(backend: str, device: str, path: Path) -> frozenset[Kind]:
    """The kinds of which an outcome kept at `path` says that they are right on this device."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return frozenset()
    if (found["device"], found["sources"]) != (device, sources(architecture_of(backend))):
        return frozenset()
    return frozenset(Kind(**row["kind"]) for row in found["rows"] if row["passed"])


def kinds() -> Iterator[Kind]:
    """Every kind of call on whole sequences and on packed ones."""
    for packed in (False, True):
        for come in KINDS:
            for io in DTYPES:
                for dv in DV:
                    yield Kind(io, DK, dv, *come, packed)


def draw(kind: Kind, device: str = "cuda") -> tuple[Arguments, Tensor, Tensor]:
    """Inputs of a kind with initial states, the gradient of o and that of the final states."""
    r, io = torch.Generator().manual_seed(0), DTYPES[kind.io]
    normal = lambda width: torch.randn(1, LENGTH, HEADS, width, generator=r)  # noqa: E731

    def gate(how: str, width: int) -> Tensor | None:
        return None if how == "none" else normal(1 if how == "head" else width)

    q, k = (torch.nn.functional.normalize(normal(kind.dk), dim=-1).to(io) for _ in range(2))
    v, do = normal(kind.dv).to(io), normal(kind.dv).to(io)
    g, b, w = (
        gate(how, n) for how, n in ((kind.gate, kind.dk), (kind.erase, kind.dk), (kind.write, kind.dv))
    )
    g = None if g is None else -g.sigmoid()
    b, w = (None if t is None else t.sigmoid().to(io) for t in (b, w))
    cuts = torch.tensor([0, 70, LENGTH], dtype=torch.int32) if kind.packed else None
    states = (2 if kind.packed else 1, HEADS, kind.dk, kind.dv)
    initial, dfinal = (0.1 * torch.randn(*states, generator=r) for _ in range(2))
    tensors = [None if t is None else t.to(device) for t in (q, k, v, g, b, w, initial, cuts)]
    return Arguments(*tensors, scale=kind.dk**-0.5), do.to(device), dfinal.to(device)  # type: ignore[arg-type, misc]


def outcome(kind: Kind, backend: Any, device: str = "cuda") -> Row:
    """Errors of one kind as shares of the largest value, their bound, and whether both runs agree."""
    a, do, dfinal = draw(kind, device)
    runs = [_results(backend, a, do, dfinal) for _ in range(2)]
    wide = {n: t if n == "cu_seqlens" else t.double() for n, t in a.tensors().items()}
    exact = _results(torch_path, Arguments(**{**vars(a), **wide}), do.double(), dfinal.double())
    bound = PINS["bf16"] + ROUNDOFF[_SHORT[kind.io]]
    errors = {
        name: float((runs[0][name].double() - e).abs().max() / e.abs().max()) for name, e in exact.items()
    }
    same = all(torch.equal(t.view(torch.uint8), runs[1][n].view(torch.uint8)) for n, t in runs[0].items())
    passed = same and all(error <= bound for error in errors.values())
    return {"kind": asdict(kind), "passed": passed, "same_bits": same, "errors": errors, "bound": bound}


def _results(backend: Any, a: Arguments, do: Tensor, dfinal: Tensor) -> dict[str, Tensor]:
    o, final, saved = backend.forward(a, False)
    found = {f"d{n}": t.contiguous() for n, t in backend.backward(a, do, dfinal, saved).items()}
    return {"o": o.contiguous(), "final": final.contiguous(), **found}


def child(backend: str) -> None:
    """A line for each kind that can be had, as it is found."""
    module = dispatch.module(backend)
    for kind in kinds():
        if not module.lacks(*vars(kind).values()):
            print(json.dumps(outcome(kind, module)), flush=True)


def prove(backend: str, seconds: float, command: Sequence[str] = ()) -> tuple[list[Row], str]:
    """What a child process found, kept for `proven`, and why it ended early (empty if it did not)."""
    command = command or [sys.executable, "-m", "lethe.kernels.gdn.prove", "--child", "--backend", backend]
    why = ""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds)
        text, why = done.stdout, f"the process ended with status {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        found = late.stdout or b""
        text = found.decode() if isinstance(found, bytes) else found
        why = f"no answer within {seconds:.0f} s"
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    if why:
        for row in rows:
            row["passed"] = False
    architecture = architecture_of(backend)
    kept = {
        "device": torch.cuda.get_device_name(),
        "sources": sources(architecture),
        "rows": rows,
        "why": why,
    }
    file(architecture).parent.mkdir(parents=True, exist_ok=True)
    file(architecture).write_text(json.dumps(kept, indent=1) + "\n")
    proven.cache_clear()
    return rows, why


def main(argv: Sequence[str] | None = None) -> int:
    """Prove and print; 0 if every kind that can be had is right, 1 if not, 2 where it cannot be tried."""
    parser = argparse.ArgumentParser(prog="python -m lethe.kernels.gdn.prove", description=__doc__)
    parser.add_argument("--backend", choices=list(dispatch.CAPABILITY), default="cute_sm100")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    needed = dispatch.CAPABILITY[given.backend]
    found = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    if found != needed:
        here = "there is none" if found is None else "this one has {}.{}".format(*found)
        print("{} needs a GPU of compute capability {}.{}; {}".format(given.backend, *needed, here))
        return 2
    if given.child:
        child(given.backend)
        return 0
    rows, why = prove(given.backend, given.seconds)
    for row in rows:
        name, error = max(row["errors"].items(), key=lambda item: item[1])
        state = "right" if row["passed"] else "WRONG"
        print(*row["kind"].values(), f"{state}: {name} {error:.2e} of {row['bound']:.2e}")
    if why or not rows:
        print(f"nothing is proven: {why or 'no library can be had'}")
    return 0 if rows and not why and all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
