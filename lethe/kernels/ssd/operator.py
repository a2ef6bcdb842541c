"""`ssd`: the engine as PyTorch custom operators, differentiable once, opaque to torch.compile.

``lethe::ssd_forward`` and ``lethe::ssd_backward`` look their plan up by the tensors' metadata, allocate the
outputs and a workspace of their own, and execute on the current stream. A plan is built on the first call
with new metadata; inside a CUDA-graph capture that would be too late, and is refused.
"""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lethe.kernels.ssd import builder, engine
from lethe.kernels.ssd.graph import Graph, TensorSpec, slots

NAMES = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states", "cu_seqlens")
DIFFERENTIABLE = NAMES[:-1]
CHECKPOINTS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Options = tuple[int, bool, float, float, str]
"""chunk_size, dt_softplus, the limits of dt, checkpoint_dtype."""


def target_of(tensor: Tensor) -> int | None:
    """The CUDA target of the tensor's device; None for Triton's interpreter on a CPU."""
    # An interpreter may let tensors of the host pass for a GPU's; their memory tells.
    where = tensor.untyped_storage().device
    if where.type == "cuda":
        major, minor = torch.cuda.get_device_capability(tensor.device)
        return 10 * major + minor
    if where.type == "cpu" and engine.interpreted():
        return None
    raise ValueError(
        f"x is on {tensor.device}; the engine needs a CUDA device"
        " (or TRITON_INTERPRET=1 before the first import, to interpret its kernels on the CPU)"
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _spec(name: str, tensor: Tensor) -> TensorSpec:
    return TensorSpec(name, tuple(tensor.shape), tensor.stride(), _dtype(tensor))


_by_metadata: dict[Any, builder.Plan] = {}


def plan_of(
    op: str, tensors: dict[str, Tensor], outputs: tuple[bool, bool], options: Options
) -> builder.Plan:
    """The plan for these tensors, built when it is new. `outputs`: final states, checkpoints."""
    target, device = target_of(tensors["x"]), tensors["x"].device
    for name, t in tensors.items():
        if t.device != device:
            raise ValueError(f"{name} is on {t.device} and x on {device}; all operands must be on one device")
    shapes = tuple((name, t.shape, t.stride(), t.dtype) for name, t in tensors.items())
    key = (op, target, shapes, outputs, options)
    plan = _by_metadata.get(key)
    if plan is None:
        if target is not None and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "ssd meets these shapes for the first time inside a CUDA-graph capture;"
                " run the step once before capturing it"
            )
        plan = _by_metadata[key] = builder.build(graph_of(op, tensors, outputs, options), target)
    return plan


def graph_of(op: str, tensors: dict[str, Tensor], outputs: tuple[bool, bool], options: Options) -> Graph:
    """The graph that describes a call."""
    chunk, softplus, low, high, checkpoint = options
    graph = Graph()
    specs = {name: _spec(name, t) for name, t in tensors.items()}
    graph.tensors.update(specs)
    attributes: dict[str, Any] = {
        "chunk_size": chunk, "dt_softplus": softplus, "dt_limit": (low, high),
        "checkpoint_dtype": checkpoint,
    }  # fmt: skip
    if op == "SSD":
        graph.ssd(specs, final_states=outputs[0], checkpoints=outputs[1], **attributes)
    else:
        graph.ssd_bwd(specs, **attributes)
    return graph


def _execute(plan: builder.Plan, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Allocate the plan's outputs and a workspace, run it on the current stream; the outputs by name."""
    device = inputs["x"].device
    found = {
        name: torch.empty(t.dims, dtype=getattr(torch, t.dtype), device=device)
        for name, t in plan.node.outputs.items()
    }
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
    pointers = {name: t.data_ptr() for name, t in (*inputs.items(), *found.items())}
    if device.type == "cuda":
        with torch.cuda.device(device):
            plan.execute(pointers, workspace.data_ptr(), torch.cuda.current_stream(device).cuda_stream)
    else:
        plan.execute(pointers, workspace.data_ptr())
    return found


def readable(tensor: Tensor) -> Tensor:
    """`tensor` itself where the kernels can read its rows as they lie (rule SSD-09), else a copy."""
    item = tensor.element_size()
    rows = all(
        size == 1 or (stride > 0 and stride * item % 16 == 0)
        for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    )
    fits = tensor.stride(-1) == 1 and rows and tensor.data_ptr() % 16 == 0
    return tensor if fits else tensor.clone(memory_format=torch.contiguous_format)


def _readable(given: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """What is there, in a layout that the analyzer accepts."""
    found = {}
    for name, tensor in given.items():
        if tensor is None:
            continue
        if name in ("x", "B", "C", "z", "dy") and tensor.dim() == 4 and tensor.numel():
            found[name] = readable(tensor)
        elif name == "dt" and tensor.dim() == 3 and tensor.stride(2) == 1:
            found[name] = tensor
        else:
            dense = tensor.contiguous()
            found[name] = dense if dense.data_ptr() % 16 == 0 else dense.clone()
    return found


def _check_cuts(cuts: list[int], length: int) -> None:
    if cuts[0] != 0 or cuts[-1] != length or any(a > b for a, b in pairwise(cuts)):
        raise ValueError(f"cu_seqlens must rise from 0 to L = {length}, not {cuts}")


@torch.library.custom_op("lethe::ssd_forward", mutates_args=())
def _forward(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, initial_states: Tensor | None, cu_seqlens: Tensor | None, chunk_size: int,
    dt_softplus: bool, low: float, high: float, checkpoint_dtype: str, final: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    given = (x, dt, A, B, C, D, z, dt_bias, initial_states, cu_seqlens)
    inputs = _readable(dict(zip(NAMES, given, strict=True)))
    options = (chunk_size, dt_softplus, low, high, checkpoint_dtype)
    plan = plan_of("SSD", inputs, (final, save), options)
    if cu_seqlens is not None and cu_seqlens.device.type == "cpu":
        _check_cuts(cu_seqlens.tolist(), x.shape[1])
    found = _execute(plan, inputs)
    return tuple(  # type: ignore[return-value]
        found[name] if name in found else x.new_empty(0, dtype=torch.float32)
        for name in ("y", "final_states", "checkpoints")
    )


@_forward.register_fake
def _(
    x, dt, A, B, C, D, z, dt_bias, initial_states, cu_seqlens, chunk_size, dt_softplus, low, high,
    checkpoint_dtype, final, save,
):  # fmt: skip
    batch, length, heads, width = x.shape
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = (heads, width, B.shape[3])
    places = slots(length, sequences, chunk_size, cu_seqlens is not None)
    none = x.new_empty(0, dtype=torch.float32)
    return (
        x.new_empty(x.shape),
        x.new_empty((sequences, *state), dtype=torch.float32) if final else none,
        x.new_empty((places, *state), dtype=CHECKPOINTS[checkpoint_dtype]) if save else none.clone(),
    )


@torch.library.custom_op("lethe::ssd_backward", mutates_args=())
def _backward(
    dy: Tensor, dfinal_states: Tensor | None, checkpoints: Tensor | None, x: Tensor, dt: Tensor, A: Tensor,
    B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, dt_bias: Tensor | None,
    initial_states: Tensor | None, cu_seqlens: Tensor | None, chunk_size: int, dt_softplus: bool, low: float,
    high: float, checkpoint_dtype: str,
) -> list[Tensor]:  # fmt: skip
    given = (x, dt, A, B, C, D, z, dt_bias, initial_states, cu_seqlens)
    upstream = {"dy": dy, "dfinal_states": dfinal_states, "checkpoints": checkpoints}
    inputs = _readable(dict(zip(NAMES, given, strict=True)) | upstream)
    options = (chunk_size, dt_softplus, low, high, checkpoint_dtype)
    found = _execute(plan_of("SSD_BWD", inputs, (False, False), options), inputs)
    return [found[f"d{n}"] if f"d{n}" in found else x.new_empty(0) for n in DIFFERENTIABLE]


@_backward.register_fake
def _(dy, dfinal_states, checkpoints, x, dt, A, B, C, D, z, dt_bias, initial_states, cu_seqlens, *options):
    given = (x, dt, A, B, C, D, z, dt_bias, initial_states)
    return [x.new_empty(0) if t is None else t.new_empty(t.shape) for t in given]


def _save(ctx, inputs, output) -> None:
    tensors, ctx.options = inputs[: len(NAMES)], inputs[len(NAMES) : len(NAMES) + 5]
    final, save = inputs[-2:]
    ctx.final, ctx.reuse = final, save
    ctx.save_for_backward(*tensors, output[2] if save else None)
    ctx.set_materialize_grads(False)


def _adjoint(ctx, dy, dfinal, _of_checkpoints):
    *tensors, checkpoints = ctx.saved_tensors
    if dy is None:
        dy = torch.zeros_like(tensors[0])
    found = _backward(dy, dfinal if ctx.final else None, checkpoints, *tensors, *ctx.options)
    gradients = [None if t is None else d for t, d in zip(tensors[:-1], found, strict=True)]
    return *gradients, None, *(None,) * 7


def _no_second(ctx, *_grads):
    raise NotImplementedError("ssd can be differentiated once; its gradients have no derivative")


_forward.register_autograd(_adjoint, setup_context=_save)
_backward.register_autograd(_no_second)


def _float32(given: Any) -> Any:
    """A floating tensor in float32; anything else as it is, for the analyzer to decline."""
    return given.to(torch.float32) if isinstance(given, Tensor) and given.is_floating_point() else given


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    chunk_size: int = 64,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    initial_states: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    return_final_states: bool = False,
    checkpoint_dtype: str = "float32",
    reuse_checkpoints: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """The state-space dual recurrence of Mamba-2 (Dao and Gu 2024), over tokens t and for every head:

    ``h_t = e^(dt_t A) h_{t-1} + dt_t x_t B_t^T``, ``y_t = h_t C_t + D x_t``, then ``y *= silu(z)``; the step
    is ``dt <- clamp(softplus(dt + dt_bias), *dt_limit)``, softplus only with `dt_softplus`.

    Args:
        x: [B, L, H, P], P = 64, bfloat16 or float16; on a CPU, where Triton interprets, float16.
        dt: raw steps, [B, L, H], as x or float32.
        A: rates, [H], any sign; a negative one decays. float32, as D, dt_bias and states (cast from another
            floating dtype).
        B, C: [B, L, G, N], as x; N = 64 or 128, and G divides H.
        chunk_size: tokens between two checkpoints, 32, 64, 128 or 256.
        D: skip, [H] or [H, P].
        z: gate, [B, L, H, P], as x.
        dt_bias: added to the raw steps, [H].
        dt_softplus: whether a step is the softplus of its raw value.
        dt_limit: clamp of the steps, always applied: the default turns negative ones into 0.
        initial_states: [sequences, H, P, N]; zero without it. Sequences are the batch, or those packed.
        cu_seqlens: [sequences + 1] int32 (or int64), first tokens of sequences packed in B = 1, then L; some
            may be empty. Its values are checked on a CPU only: a GPU reads them without the host.
        return_final_states: whether to return the last states too.
        checkpoint_dtype: of the states that the backward pass reuses, ``float32`` or ``bfloat16``.
        reuse_checkpoints: whether to keep these states; without them it computes all states again.

    Returns: y [B, L, H, P] as x; with `return_final_states` also the last states [sequences, H, P, N]
    float32. The gradient of every floating tensor argument is defined, once.

    Raises: `Declined` (a ValueError) with the rule and the reason for anything that the engine does not run;
    ValueError for a device, or for cuts that do not rise from 0 to L; NotImplementedError when a gradient is
    differentiated again.
    """
    low, high = dt_limit
    A, D, dt_bias, initial_states = map(_float32, (A, D, dt_bias, initial_states))
    if isinstance(cu_seqlens, Tensor) and cu_seqlens.dtype == torch.int64:
        cu_seqlens = cu_seqlens.to(torch.int32)
    save = reuse_checkpoints and torch.is_grad_enabled()
    y, final, _ = _forward(
        x, dt, A, B, C, D, z, dt_bias, initial_states, cu_seqlens, chunk_size, dt_softplus, float(low),
        float(high), checkpoint_dtype, return_final_states, save,
    )  # fmt: skip
    return (y, final) if return_final_states else y
