"""How a verdict is to be reached: profile, device, budget."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lethe.verifier.sandbox import Limits

EXECUTORS = ("cpu", "interpreter", "cuda")


@dataclass(frozen=True)
class Budget:
    """Limits of one verdict; a candidate over its limits is a typed status, never an exception."""

    wall_seconds: float = 20.0
    """Per request to the suspect."""
    cpu_seconds: int = 120
    """Of one suspect process."""
    memory_bytes: int = 4 << 30
    """Data segment of one suspect on a CPU, or its share of the GPU."""
    file_bytes: int = 64 << 20
    processes: int = 64
    reference_seconds: float = 0.25
    """A reference whose run, by a count of its work, takes longer is shrunk."""
    reference_bytes: int = 64 << 20
    """A problem whose tensors take more is shrunk."""
    written_bytes: int = 512 << 20
    """A candidate that refuses the shrunk sizes, or fails there only, is judged at those written, if the
    tensors take no more."""
    prepare_seconds: float = 120.0
    """A reference that has not run once by then, at any size tried, is refused."""
    reference_cost: int = 1 << 20
    """Work of the reference (`probe.Facts.cost`) above which a problem is shrunk for the interpreter."""
    case_elements: int = 1 << 17
    """Largest number of elements of inputs and outputs at a substituted size, on an emulated device."""

    def limits(self) -> Limits:
        """What of it binds a suspect's process."""
        return Limits(
            cpu_seconds=self.cpu_seconds,
            wall_seconds=self.wall_seconds,
            memory_bytes=self.memory_bytes,
            file_bytes=self.file_bytes,
            processes=self.processes,
        )


CUDA_BUDGET = Budget(
    wall_seconds=60.0,
    memory_bytes=4 << 30,
    reference_seconds=0.25,
    reference_bytes=16 << 20,
    written_bytes=2 << 30,
    case_elements=1 << 22,
)
"""On a GPU compilation is what takes the wall time, and memory is what many judges share: the oracle holds
each of some sixty draws in float64, and should keep most of them while the candidates of a problem come and
go (`docket.KEPT_BYTES`). Every size is still hundreds of tiles."""


COMPILER_SECONDS = 120.0
"""Per request to a candidate that calls ``torch.compile``: one request may compile a forward and a backward
program. Each took 6 to 19 s with Inductor's C++ on a free core, 33 s on one shared by seven processes."""


def usual_budget(executor: str, compiles: bool = False) -> Budget:
    """The limits for an executor; `compiles`: the candidate compiles itself whenever sizes are new."""
    budget = CUDA_BUDGET if executor == "cuda" else Budget()
    if not compiles:
        return budget
    seconds = max(budget.wall_seconds, COMPILER_SECONDS)
    cpu = round(budget.cpu_seconds * seconds / budget.wall_seconds)
    return replace(budget, wall_seconds=seconds, cpu_seconds=cpu)


@dataclass(frozen=True)
class Settings:
    profile: str = "derived"
    """``"derived"`` (the default bounds) or ``"paper"`` (the published formula, for comparison)."""
    executor: str = "interpreter"
    gates: tuple[str, ...] | None = None
    """Gates to run; None runs all twelve."""
    seed: int = 0
    quick: bool = False
    """Fewer adversarial draws and placements per gate; the same gates."""
    budget: Budget = field(default_factory=Budget)

    @property
    def device(self) -> str:
        """Where the reference and the oracle run."""
        return "cuda" if self.executor == "cuda" else "cpu"

    def record(self) -> dict[str, Any]:
        """What a replay needs, as JSON values."""
        d = asdict(self)
        d["gates"] = list(self.gates) if self.gates is not None else None
        return d


def choose_executor(device: str, language: str) -> str:
    """Map ``auto|cpu|cuda`` and the candidate's language to an executor.

    Raises ValueError with one sentence when the device cannot be had.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}; use auto, cpu or cuda")
    if device == "cpu":
        return "interpreter" if language == "triton" else "cpu"
    import torch

    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ValueError(
            "no CUDA device is visible to torch; use --device cpu or run on a machine with a GPU"
        )
    if cuda and language != "cpp":
        return "cuda"
    return "interpreter" if language == "triton" else "cpu"
