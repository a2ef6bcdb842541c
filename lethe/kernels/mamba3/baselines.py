"""What the kernels are timed against: the official CUDA scan, built from its sources, and the official SISO.

`build` compiles mamba-ssm's ``selective_scan_cuda`` with the machine's nvcc for one architecture, without its
setup script; `selective_scan` is the official autograd function around it, without the imports that need
other extensions. `plain_scan` is the official PyTorch form for a machine that cannot build it.
"""

from __future__ import annotations

import concurrent.futures
import copy
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lethe.kernels.mamba3 import official

NAME = "selective_scan_cuda"

STANDARDS = ("c++17", "c++20")
"""The official setup asks for the first; the headers of a newer torch may ask for the second."""


def compiler() -> str | None:
    """nvcc on the path or in the usual folder, or None."""
    return shutil.which("nvcc") or next(
        (p for p in ("/usr/local/cuda/bin/nvcc",) if os.access(p, os.X_OK)), None
    )


def commands(
    root: Path, folder: Path, arch: int, nvcc: str, standard: str = "c++17"
) -> tuple[list[list[str]], list[str]]:
    """The nvcc commands, one for each source file of ``csrc/selective_scan``, and the link command."""
    from torch.utils import cpp_extension

    sources = sorted((root / "csrc" / "selective_scan").glob("selective_scan*.c[pu]*"))
    sources = [s for s in sources if s.suffix in (".cpp", ".cu")]
    # nvcc knows its own toolkit; what that lacks (cusparse.h, for one) is in the packages beside torch.
    wheels = sorted(map(str, Path(torch.__file__).parents[1].glob("nvidia/*/include")))
    here = str(sources[0].parent)
    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"], here, *wheels]
    flags = [
        "-O3", f"-std={standard}", "-DNDEBUG", "--use_fast_math", "--expt-relaxed-constexpr",
        "--expt-extended-lambda", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__",
        "-U__CUDA_NO_BFLOAT16_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
        "-U__CUDA_NO_BFLOAT162_OPERATORS__", "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
        f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xcompiler=-fPIC", f"-DTORCH_EXTENSION_NAME={NAME}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]  # fmt: skip
    objects = [folder / f"{s.stem}.o" for s in sources]
    one = [
        [nvcc, "-c", str(s), "-o", str(o), *flags, *(f"-I{i}" for i in includes)]
        for s, o in zip(sources, objects, strict=True)
    ]
    libraries = [part for p in cpp_extension.library_paths() for part in (f"-L{p}", f"-Xlinker=-rpath={p}")]
    names = ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10_cuda", "-ltorch_cuda"]
    link = [
        nvcc,
        "-shared",
        "-cudart=shared",
        *map(str, objects),
        "-o",
        str(folder / f"{NAME}.so"),
        *libraries,
        *names,
    ]
    return one, link


def build(root: Path, folder: Path, arch: int, jobs: int) -> Path:
    """Compile and link; the library. Raises OfficialMissing with the first lines of what went wrong."""
    nvcc = compiler()
    if nvcc is None:
        raise official.OfficialMissing("no nvcc on this machine, so selective_scan_cuda cannot be built")
    folder.mkdir(parents=True, exist_ok=True)
    for standard in STANDARDS:
        one, link = commands(root, folder, arch, nvcc, standard)
        first = _run(one[0])
        if first.returncode == 0:
            break
    _require(first)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in pool.map(_run, one[1:]):
            _require(done)
    _require(_run(link))
    return folder / f"{NAME}.so"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _require(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line][:3]
        raise official.OfficialMissing(f"building {NAME} failed: {' | '.join(lines) or done.args[0]}")


def load(library: Path) -> Any:
    """The extension module."""
    spec = importlib.util.spec_from_file_location(NAME, library)
    if spec is None or spec.loader is None:
        raise official.OfficialMissing(f"{library} is no extension module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


class _SelectiveScan(torch.autograd.Function):
    """The calls of the official ``SelectiveScanFn``: real B and C that vary in time, one group, with z."""

    @staticmethod
    def forward(ctx, extension, u, dt, A, B, C, D, z, bias):
        B, C = B[:, None], C[:, None]
        out, x, out_z = extension.fwd(u, dt, A, B, C, D, z, bias, True)
        ctx.extension = extension
        ctx.save_for_backward(u, dt, A, B, C, D, z, bias, x, out)
        return out_z

    @staticmethod
    def backward(ctx, dout):
        u, dt, A, B, C, D, z, bias, x, out = ctx.saved_tensors
        du, ddt, dA, dB, dC, dD, dbias, dz = ctx.extension.bwd(
            u, dt, A, B, C, D, z, bias, dout.contiguous(), x, out, None, True, False
        )
        return None, du, ddt, dA, dB[:, 0], dC[:, 0], dD, dz, dbias


def across(o: dict[str, Tensor]) -> dict[str, Tensor]:
    """Operands of a scan or a block in the official kernel's layout, [B, D, L], made beforehand."""
    return {
        name: (
            t.detach().transpose(1, 2).contiguous() if t.dim() == 3 else t.detach().clone()
        ).requires_grad_()
        for name, t in o.items()
    }


def selective_scan(extension: Any, o: dict[str, Tensor]) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """The official scan on operands from `across`, and the leaves of its gradients."""
    names = ("u", "dt", "A", "B", "C", "D", "z", "dt_bias")
    leaves = [o[name] for name in names]
    return (lambda: _SelectiveScan.apply(extension, *leaves)), leaves


def block(extension: Any, o: dict[str, Tensor]) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """The official block as it runs where its convolution kernel is absent: torch's depthwise convolution,
    SiLU, and the official scan with skip and gate. Operands of `fused_block`, laid out by `across`."""
    F = torch.nn.functional
    length, taps = o["x"].shape[-1], o["conv_weight"].shape[-1]

    def run() -> Tensor:
        weight, bias = (o[name].to(o["x"].dtype) for name in ("conv_weight", "conv_bias"))
        u = F.conv1d(o["x"], weight[:, None], bias, padding=taps - 1, groups=len(weight))
        rest = (o[name] for name in ("dt", "A", "B", "C", "D", "z", "dt_bias"))
        return _SelectiveScan.apply(extension, F.silu(u[..., :length]).contiguous(), *rest)

    return run, list(o.values())


def plain_scan(o: dict[str, Tensor]) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """The official PyTorch form (``selective_scan_ref``: a loop over tokens), restated; operands as ours."""
    F = torch.nn.functional

    def run() -> Tensor:
        dt = F.softplus(o["dt"].float() + o["dt_bias"])
        u, B, C = o["u"].float(), o["B"].float(), o["C"].float()
        decay = torch.exp(dt[..., None] * o["A"])
        wide = (dt * u)[..., None] * B[:, :, None]
        h, rows = torch.zeros_like(decay[:, 0]), []
        for t in range(u.shape[1]):
            h = decay[:, t] * h + wide[:, t]
            rows.append((h * C[:, t, None]).sum(-1))
        return ((torch.stack(rows, 1) + o["D"] * u) * F.silu(o["z"].float())).to(o["u"].dtype)

    return run, list(o.values())


CRIPPLED_WARPS = 2
"""The warps of the official backward's configurations that load on sm_100 with every Triton (issue 904)."""


def siso(
    root: Path, o: dict[str, Tensor], *, crippled: bool = False
) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """The official SISO operator of mamba-ssm on the head's operands. Raises OfficialMissing.

    With `crippled` its backward may choose only among the configurations that a Blackwell GPU would load.
    """
    official.install(root)
    try:
        backward = importlib.import_module("mamba_ssm.ops.triton.mamba3.mamba3_siso_bwd")
        combined = importlib.import_module("mamba_ssm.ops.triton.mamba3.mamba3_siso_combined")
    except Exception as error:  # whatever its import meets is what the reader needs to know
        raise official.OfficialMissing(f"the official SISO does not import: {error}") from error
    dtype = o["v"].dtype
    live = {
        "Q": o["q"][:, :, 0], "K": o["k"][:, :, 0], "V": o["v"], "ADT": o["adt"], "DT": o["dt"],
        "Trap": o["trap"], "Q_bias": o["q_bias"][:, 0], "K_bias": o["k_bias"][:, 0],
        "Angles": o["angle"], "D": o["D"], "Z": o["z"],
    }  # fmt: skip
    wide = ("Q", "K", "V", "Z", "Trap")
    leaves = {
        k: t.detach().to(dtype if k in wide else torch.float32).contiguous().requires_grad_()
        for k, t in live.items()
    }
    healthy = vars(backward).setdefault("_healthy", backward.mamba3_siso_bwd_kernel_dqkv)
    kernel = _few(healthy) if crippled else healthy

    def run() -> Tensor:
        # Read by the launcher when the backward pass runs, which is before any other contestant's turn.
        vars(backward)["mamba3_siso_bwd_kernel_dqkv"] = kernel
        result: Tensor = combined.mamba3_siso_combined(**leaves)
        return result

    return run, list(leaves.values())


def _few(tuner: Any) -> Any:
    """The same kernel, choosing among its configurations of `CRIPPLED_WARPS` warps alone."""
    few = copy.copy(tuner)
    few.configs = [c for c in tuner.configs if c.num_warps == CRIPPLED_WARPS]
    few.cache = {}
    return few
