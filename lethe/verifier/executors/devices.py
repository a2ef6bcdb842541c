"""Stand-ins for a Triton driver on a machine without a GPU.

One answers the questions that candidates and the autotuner ask while they run in the interpreter; the
other names a compile target, so that ``JITFunction.warmup`` specialises and compiles for any NVIDIA
architecture.
"""

from __future__ import annotations

from typing import Any

PRETENDED_NAME = "NVIDIA H200"
PRETENDED_CAPABILITY = (9, 0)
PRETENDED_MEMORY = 141 * 10**9
"""Bytes of device memory (NVIDIA H200 data sheet: 141 GB)."""

PRETENDED_PROPERTIES: dict[str, int] = {
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "multiprocessor_count": 132,
    "warpSize": 32,
    "sm_clock_rate": 1980000,
    "mem_clock_rate": 3201000,
    "mem_bus_width": 6144,
}
"""What ``driver.active.utils.get_device_properties`` answers: an H200 SXM (132 multiprocessors,
227 KiB of shared memory a block, 65,536 registers a multiprocessor; clocks in kHz, bus width in bits)."""


class PretendedUtils:
    """The part of Triton's C utilities that Python code asks for by name."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return dict(PRETENDED_PROPERTIES)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"the Triton driver call {name!r} needs a GPU; the interpreter has none")


class PretendedDriver:
    """An active driver without a device: right answers to questions, an error for any real work."""

    launcher_cls = None

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.utils = PretendedUtils()

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """One device only: nothing to select."""

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        major, minor = divmod(self.capability, 10)
        return major, minor

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Any:
        """Every candidate configuration takes the same time: nothing is measured here."""
        return lambda call, quantiles=None, **options: [0.0] * len(quantiles or (0,))

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1, dtype=torch.int)

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()

    def map_python_to_cpp_type(self, name: str) -> str:
        return name


def activate(capability: int) -> None:
    """Make a device of compute capability ``major * 10 + minor`` Triton's active driver."""
    import triton

    triton.runtime.driver.set_active(PretendedDriver(capability))
