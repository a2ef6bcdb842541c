"""The reference, evaluated: in its working precision, in float64, and with 0*x read as 0.

The float64 run is the oracle every value gate compares with. It is the reference's
own code under a dispatch mode that widens each narrow floating tensor, so that a
``.float()`` or ``dtype=torch.float32`` inside the reference does not round the truth.
A hand-written oracle (`OpSpec.oracle`) replaces it when the problem brings one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lethe.verifier.ends import lasting
from lethe.verifier.modes import WIDE, EagerMode, TanhForm, ZeroAbsorbs, widened
from lethe.verifier.problem import Instance, ProblemError
from lethe.verifier.structure import flatten, map_tensors, unflatten


class ReferenceFailed(RuntimeError):
    """The reference (or its hand-written oracle) raised; the message is one sentence.

    A gate that meets it is ``not_applicable (reference_raises)``: fairness rule 1.
    """


class OracleError(TypeError):
    """A hand-written oracle was asked for, or answered in, something else than float64."""


MEMORY_ENDS = (MemoryError, torch.OutOfMemoryError)
"""How memory runs out, the host's or a device's: others may hold it, so it is told apart."""

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def dtype_named(name: str | torch.dtype) -> torch.dtype:
    """The torch dtype called `name`. Raises ValueError for one that is not judged."""
    if isinstance(name, torch.dtype):
        return name
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is none of {', '.join(DTYPES)}")
    return DTYPES[name]


@contextmanager
def pinned_backends() -> Iterator[dict[str, bool | str]]:
    """Pin the reference's backends, yield what was pinned, restore on exit.

    Off: TF32 in matmul and cudnn, reduced-precision half reductions, NNPACK's
    transform-domain convolutions, cudnn autotuning, fused attention and transformer kernels.
    On: cudnn's deterministic algorithms. Fairness rule 13 rests on this record.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    matmul = torch.backends.cuda.matmul
    saved = (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        torch.backends.mha.get_fastpath_enabled(),
    )
    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        matmul.allow_fp16_reduced_precision_reduction = False
        matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.backends.nnpack.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
            yield {
                **precision_settings(),
                "cudnn_deterministic": True,
                "cudnn_benchmark": False,
                "reduced_precision_reduction": False,
                "nnpack": False,
                "attention": "math",
                "transformer_fast_path": False,
                "torch": torch.__version__,
            }
    finally:
        torch.set_float32_matmul_precision(saved[0])
        torch.backends.cudnn.allow_tf32 = saved[1]
        torch.backends.cudnn.deterministic = saved[2]
        torch.backends.cudnn.benchmark = saved[3]
        matmul.allow_fp16_reduced_precision_reduction = saved[4]
        matmul.allow_bf16_reduced_precision_reduction = saved[5]
        torch.backends.mha.set_fastpath_enabled(saved[6])


def precision_settings() -> dict[str, bool | str]:
    """The settings by which float32 operands may be rounded to TF32 or bfloat16, as they stand."""
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
    }


def backends_after(instance: Instance, inputs: Any) -> dict[str, bool | str]:
    """The record of `pinned_backends` with what the reference left of it: a reference that turns TF32 on
    itself ran with it. Raises ReferenceFailed.
    """
    with pinned_backends() as pinned, default_dtype(torch.float32), reference_errors("float32"):
        call(module_copy(instance, torch.float32), cast_floating(inputs, torch.float32))
        return {**pinned, **precision_settings()}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype for the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def cast_floating(value: Any, dtype: torch.dtype) -> Any:
    """A detached copy of a nested value; floating tensors in `dtype`, complex ones alike."""
    return map_tensors(value, lambda t: _cast(t.detach(), dtype, copy=True))


def _cast(t: Tensor, dtype: torch.dtype, copy: bool = False) -> Tensor:
    """`t` in `dtype` if it is floating, in complex128 if it is complex and `dtype` float64, else as it is.

    ``nn.Module.to`` would cast complex tensors to a floating dtype, and lose their imaginary part.
    """
    target = t.dtype
    if t.is_floating_point():
        target = dtype
    elif t.is_complex() and dtype is torch.float64:
        target = torch.complex128
    return t.to(target, copy=copy)


def module_copy(instance: Instance, dtype: torch.dtype, through: torch.dtype | None = None) -> nn.Module:
    """A private copy of the reference in eval mode, with floating tensors in `dtype`.

    `through`: round them to this dtype first, as a run in that dtype would.

    Plain tensor attributes (not registered as buffers) are cast as well, because
    ``nn.Module.to`` leaves them behind.
    """
    try:
        module = copy.deepcopy(instance.module)
    except RuntimeError as e:
        raise ReferenceFailed(f"The reference module cannot be copied ({first_line(e)}).") from e
    module.eval()
    for target in (dtype,) if through is None else (through, dtype):
        module._apply(partial(_cast, dtype=target))
        for part in module.modules():
            for name, value in list(vars(part).items()):
                if isinstance(value, Tensor) and value.is_floating_point():
                    object.__setattr__(part, name, value.detach().to(target))
    return module


def call(function: Callable[..., Any], inputs: Any) -> Any:
    """Call the reference on a list of arguments or a dict of keywords; no gradient is recorded."""
    with torch.no_grad():
        return function(**inputs) if isinstance(inputs, dict) else function(*inputs)


def first_line(error: BaseException) -> str:
    """``Type: first line of the message``, at most 200 characters."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lasting(text[0]) if text else ''}"[:200]


@contextmanager
def reference_errors(what: str) -> Iterator[None]:
    """Turn whatever the reference raises, an exit included, into `ReferenceFailed`; what says so already and
    memory exhaustion pass through."""
    try:
        yield
    except (ReferenceFailed, ProblemError, OracleError, *MEMORY_ENDS):
        raise
    except (Exception, SystemExit) as e:
        raise ReferenceFailed(f"The reference raised in its {what} run ({first_line(e)}).") from e


def run_working(instance: Instance, inputs: Any, dtype: str | torch.dtype = "float32") -> Any:
    """The reference's own result in working precision, as a nested value of tensors.

    `inputs` is what ``get_inputs`` gives (list of tensors and scalars); floating
    tensors and the module are cast to `dtype`. Raises ReferenceFailed.
    """
    working = dtype_named(dtype)
    with (
        pinned_backends(),
        default_dtype(torch.float32),
        reference_errors(f"{working}".removeprefix("torch.")),
    ):
        return call(module_copy(instance, working), cast_floating(inputs, working))


def run_float64(instance: Instance, inputs: Any, dtype: str | torch.dtype = "float32") -> Any:
    """The oracle: the reference in float64, or the problem's hand-written oracle.

    `dtype` is the working precision that is judged: parameters are rounded to it first, and defaults that
    torch derives from the dtype are taken from it. Floating tensors of the result are float64 whatever
    dtype the reference returns. Raises ReferenceFailed, and OracleError if a hand-written oracle answers in
    another dtype.
    """
    spec = instance.problem.spec
    wide = cast_floating(inputs, torch.float64)
    with pinned_backends(), default_dtype(torch.float64), reference_errors("float64"):
        if spec is not None and spec.oracle is not None:
            return _checked_float64(call(spec.oracle, wide))
        module = module_copy(instance, torch.float64, through=dtype_named(dtype))
        with widened(dtype_named(dtype)):
            out = call(module, wide)
    return map_tensors(out, lambda t: t.to(WIDE[t.dtype]) if t.dtype in WIDE else t)


def _checked_float64(value: Any) -> Any:
    for t in flatten(value)[0]:
        if t.dtype in WIDE:
            raise OracleError(
                f"the hand-written oracle returned {t.dtype}; it must compute and return float64"
            )
    return value


def floating_inputs(inputs: Any) -> list[int]:
    """Positions, in flatten order, of the floating input tensors."""
    return [i for i, t in enumerate(flatten(inputs)[0]) if t.is_floating_point()]


def gradients(
    instance: Instance,
    inputs: Any,
    upstream: list[Tensor | None],
    dtype: str | torch.dtype = "float64",
    mode: TorchDispatchMode | None = None,
) -> dict[str, Tensor | None]:
    """Gradients of ``sum_k <output_k, upstream_k>`` with respect to inputs and parameters.

    Names: ``"input:<i>"`` for the i-th *floating* input tensor in flatten order,
    ``"param:<name>"`` for parameters. A value is None where the output does not depend
    on it. `upstream` is parallel to the output tensors (None: no gradient from there).
    With dtype float64 the run is widened like the oracle; `mode` is an extra dispatch
    mode around forward and backward. Raises ReferenceFailed.
    """
    kind = dtype_named(dtype)
    wide = widened() if kind is torch.float64 else nullcontext()
    ambient = torch.float64 if kind is torch.float64 else torch.float32
    with pinned_backends(), default_dtype(ambient), reference_errors("gradient"), torch.enable_grad():
        module = module_copy(instance, kind)
        tensors, skeleton = flatten(cast_floating(inputs, kind))
        leaves: dict[str, Tensor] = {}
        passed = []
        for t in tensors:
            if t.is_floating_point():
                leaf = t.requires_grad_()
                leaves[f"input:{len(leaves)}"] = leaf
                t = leaf.clone()
            passed.append(t)
        for name, p in module.named_parameters():
            leaves[f"param:{name}"] = p.requires_grad_(p.is_floating_point())
        with wide, mode or nullcontext():
            arguments = unflatten(passed, skeleton)
            out = module(**arguments) if isinstance(arguments, dict) else module(*arguments)
            outputs = flatten(out)[0]
            if len(outputs) != len(upstream):
                raise ReferenceFailed(
                    f"The reference returned {len(outputs)} tensors but {len(upstream)} gradients came."
                )
            pairs = [
                (o, g) for o, g in zip(outputs, upstream, strict=True) if g is not None and o.requires_grad
            ]
            if not pairs:
                return dict.fromkeys(leaves)
            found = torch.autograd.grad(
                [o for o, _ in pairs],
                list(leaves.values()),
                [g.to(device=o.device, dtype=o.dtype) for o, g in pairs],
                allow_unused=True,
            )
    return dict(zip(leaves, found, strict=True))


def run_under(
    instance: Instance,
    inputs: Any,
    mode: EagerMode,
    what: str,
    through: torch.dtype | None = None,
) -> Any:
    """The float64 run of the reference under a dispatch mode that changes what it computes.

    what: the run, for messages; through: a working precision that its weights are rounded to first. Raises
    ReferenceFailed.
    """
    wide = cast_floating(inputs, torch.float64)
    with pinned_backends(), default_dtype(torch.float64), reference_errors(what):
        module = module_copy(instance, torch.float64, through=through)
        with widened(), mode:
            out = call(module, wide)
    return map_tensors(out, lambda t: t.to(WIDE[t.dtype]) if t.dtype in WIDE else t)


def zero_absorbing(instance: Instance, inputs: Any) -> Any:
    """The float64 run of a second, equally faithful reference in which 0*x counts as 0 for every x.

    Where it and the oracle disagree on a non-finite, the element is not charged
    (fairness rules 7 and 30): a triangular product or a masked sum may legally skip it.
    Raises ReferenceFailed.
    """
    return run_under(instance, inputs, ZeroAbsorbs(), "zero-absorbing")


def tanh_form(instance: Instance, inputs: Any) -> Any:
    """The float64 run with every GELU in its tanh form (Hendrycks and Gimpel, arXiv:1606.08415, section 2).

    A value that agrees with it is a legitimate approximation (fairness rule 38). Raises ReferenceFailed.
    """
    return run_under(instance, inputs, TanhForm(), "tanh-form")
