"""Single functions of the official mamba-ssm, evaluated in float64: what the tests against it share.

The official sources are third-party and not part of this repository: set LETHE_MAMBA_SSM to a checkout of
state-spaces/mamba or to its source archive on PyPI. Only the named functions are taken from the files, so
that no kernel and no CUDA extension is imported.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
import torch.nn.functional as F

from lethe.kernels.mamba3 import official


def located(folder: Path) -> Path:
    """The folder that holds ``mamba_ssm``, unpacked below `folder` if need be; skips with the reason."""
    try:
        return official.unpack(official.locate(), folder)
    except official.OfficialMissing as missing:
        pytest.skip(str(missing))


def widen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official functions cast to float32 on entry; from now on that cast gives float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    to = torch.Tensor.to

    def wide(a: Any) -> Any:
        return torch.float64 if a is torch.float32 else a

    def kept(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return to(self, *map(wide, args), **{k: wide(v) for k, v in kwargs.items()})

    monkeypatch.setattr(torch.Tensor, "to", kept)


def functions(root: Path, *where: tuple[str, tuple[str, ...]]) -> dict[str, Any]:
    """The functions named for each official file, in one namespace, without running anything else in it."""
    einops = pytest.importorskip("einops", reason="the official references use einops")
    space: dict[str, Any] = {
        "torch": torch, "F": F, "math": math, "Optional": Optional, "Tuple": tuple, "Tensor": torch.Tensor,
        "rearrange": einops.rearrange, "repeat": einops.repeat,
    }  # fmt: skip
    for file, names in where:
        if not (root / file).is_file():
            pytest.skip(f"{file} is in a checkout of state-spaces/mamba, not in its source archive")
        tree = ast.parse((root / file).read_text(encoding="utf-8"))
        body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
        exec(compile(ast.Module(body, []), file, "exec"), space)
    return {name: space[name] for _, names in where for name in names}
