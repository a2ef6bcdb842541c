"""Triton-compiled PTX as a launch: compile without a GPU, pair arguments with parameters.

Triton lowers a kernel's runtime arguments, in the order of its signature and without the constexprs, to PTX
parameters, and appends up to two pointers of its own (global scratch, profile scratch). `launch_of` packs
them; it refuses kernels that need scratch memory, clusters or host-made tensor maps rather than guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lethe.ptx.launch import Launch, LaunchError, Parameter, parameter_sizes, pointers

POINTER_BYTES = 8
OWN_POINTERS = 2


def compile_kernel(
    function: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    capability: int,
    divisible: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Compile a ``@triton.jit`` function for compute capability ``capability`` (90, 100): a CompiledKernel.

    ``signature``: argument name -> Triton type (``"*fp16"``, ``"i32"``) for runtime arguments. ``divisible``:
    those that are multiples of 16, as Triton's own specialisation would find. ``options``: num_warps,
    num_stages.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = function.arg_names
    types = {name: signature.get(name, "constexpr") for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    source = ASTSource(function, types, dict(constants), attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def launch_of(compiled: Any, arguments: Mapping[str, Any], grid: tuple[int, int, int]) -> Launch:
    """The launch of a CompiledKernel. ``arguments``: runtime arguments by name: arrays, CPU tensors or
    integers.

    Raises LaunchError when the arguments do not fit the PTX parameters or the kernel needs what is not
    modelled.
    """
    metadata = compiled.metadata
    if getattr(metadata, "global_scratch_size", 0):
        raise LaunchError(
            f"'{metadata.name}' needs {metadata.global_scratch_size} bytes of global scratch memory"
        )
    if getattr(metadata, "tensordesc_meta", None):
        raise LaunchError(f"'{metadata.name}' takes host-made tensor descriptors")
    clusters = tuple(getattr(metadata, "cluster_dims", None) or (getattr(metadata, "num_ctas", 1), 1, 1))
    sizes = parameter_sizes(compiled.asm["ptx"])[metadata.name]
    tensors = {
        name: value for name, value in arguments.items() if hasattr(value, "shape") and value.shape != ()
    }
    own = len(sizes) - len(arguments)
    if not 0 <= own <= OWN_POINTERS:
        raise LaunchError(
            f"'{metadata.name}' has {len(sizes)} parameters, {len(arguments)} arguments are given"
        )
    parameters = [
        _parameter(name, value, size, tensors)
        for (name, value), size in zip(arguments.items(), sizes, strict=False)
    ]
    parameters += [Parameter(bytes(size)) for size in sizes[len(arguments) :]]
    block = (32 * metadata.num_warps, 1, 1)
    return Launch(metadata.name, grid, block, metadata.shared, tuple(parameters), clusters)


def _parameter(name: str, value: Any, size: int, tensors: Mapping[str, Any]) -> Parameter:
    """A pointer to an array, or a number of exactly the parameter's size."""
    if name in tensors:
        if size != POINTER_BYTES:
            raise LaunchError(f"'{name}' is a tensor, its parameter has {size} bytes")
        address = value.data_ptr() if hasattr(value, "data_ptr") else value.ctypes.data
        data = int(address).to_bytes(POINTER_BYTES, "little")
        return Parameter(data, pointers(data, {name: value}))
    if isinstance(value, float):
        return Parameter(np.array(value, f"f{size}").tobytes())
    return Parameter(int(value).to_bytes(size, "little", signed=True))
