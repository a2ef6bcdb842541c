"""mamba-ssm's Triton SSD behind the interface of our engine, so that the same cases measure it.

Accuracy does not depend on a kernel's configuration, so each kernel keeps its first one and nothing is tuned.
What the official function has no argument for is declined with the reason: states of cut sequences (its
varlen states have no gradient), checkpoints in bfloat16, checkpoints that are not reused.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lethe.kernels.mamba3 import official

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.evidence.ssd_accuracy import Engine


class Declined(ValueError):
    """The official function cannot be asked for this; the message is the reason."""


def engine(where: str | Path, folder: Path) -> Engine:
    """The official `mamba_chunk_scan_combined` of the sources at `where`, unpacked below `folder` if need be.

    Raises OfficialMissing.
    """
    import torch

    from lethe.kernels.ssd import baseline

    scan = baseline.load(official.unpack(official.locate(where), folder))
    for tuner in baseline.tuners():
        tuner.configs = tuner.configs[:1]
    if not torch.cuda.is_available():
        _interpreted(torch.cuda)

    def ssd(
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        *,
        chunk_size: int = 64,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        cu_seqlens: Tensor | None = None,
        checkpoint_dtype: str = "float32",
        reuse_checkpoints: bool = True,
        **options: Any,
    ) -> Any:
        if checkpoint_dtype != "float32" or not reuse_checkpoints:
            raise Declined("mamba-ssm has no choice of checkpoints")
        if cu_seqlens is not None:
            if options.get("initial_states") is not None or options.get("return_final_states"):
                raise Declined("mamba-ssm has no gradient through the states of cut sequences")
            options["seq_idx"] = _indices(cu_seqlens, x.shape[1])
        return scan(x, dt, A, B, C, chunk_size, dt_limit=dt_limit, **options)

    return ssd


def _interpreted(cuda: Any) -> None:
    """On a CPU: the official launches enter their tensors' CUDA device and ask it for its size."""
    cuda.device = lambda index: nullcontext()
    cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=1)


def _indices(cu_seqlens: Tensor, length: int) -> Tensor:
    """The number of each token's sequence, int32 [1, L]."""
    import torch

    tokens = torch.arange(length, device=cu_seqlens.device)
    return (torch.bucketize(tokens, cu_seqlens.long(), right=True) - 1)[None].int()
