"""What the operators refuse, with the argument's name: dtype, device, shape. Nothing is ever broadcast."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of inputs and outputs; states and sums are float32 throughout."""


def check_floats(**tensors: Tensor | None) -> None:
    """Raise TypeError naming the first tensor that is not float32, float16 or bfloat16."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            raise TypeError(f"{name} is {tensor.dtype}; the kernels take float32, float16 or bfloat16")


def check_shape(name: str, tensor: Tensor | None, **sizes: int) -> None:
    """Raise ValueError unless `tensor` has exactly these sizes, given by axis name in order."""
    if tensor is None:
        return
    expected = tuple(sizes.values())
    if tuple(tensor.shape) != expected:
        axes = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected ({axes})")


def check_device(first: str, **tensors: Tensor | None) -> None:
    """Raise ValueError naming the first tensor that is not on the same device as the one called `first`."""
    reference = tensors[first]
    assert reference is not None
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != reference.device:
            raise ValueError(f"{name} is on {tensor.device}, {first} is on {reference.device}")


def check_runnable(name: str, tensor: Tensor, kernel: object) -> None:
    """Raise ValueError when `kernel` is compiled for a GPU but the tensor is elsewhere."""
    if isinstance(kernel, triton.runtime.JITFunction) and tensor.device.type != "cuda":
        raise ValueError(
            f"{name} is on {tensor.device}; the kernels need a CUDA device"
            " (or TRITON_INTERPRET=1 before the first import, to interpret them on the CPU)"
        )


def adjacent(tensor: Tensor) -> Tensor:
    """`tensor` itself when its last axis is dense, else a copy; other strides are passed on as they are."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def multiprocessors(tensor: Tensor) -> int:
    """Multiprocessors of the tensor's device; on a CPU those of an H200, so that the same plan is chosen."""
    if tensor.device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)
