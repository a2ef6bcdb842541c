"""Small references for the numerical tests, and faithful float32 runs in other summation orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lethe.verifier import modes, oracle
from lethe.verifier.operations import MAX_DECOMPOSITION_DEPTH, decompositions, kind_of
from lethe.verifier.problem import Instance, OpSpec, Problem
from lethe.verifier.structure import flatten, map_tensors


class Reference(nn.Module):
    """A module whose forward is a function of the module and the inputs."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def reference(
    function: Callable[..., Any], *shapes: tuple[int, ...], spec: OpSpec | None = None, **parts: Any
) -> Instance:
    """An instance of ``function(module, *inputs)`` with standard normal inputs of the given shapes.

    `parts` are factories of submodules (called with the generator seeded) or tensors.
    """
    torch.manual_seed(0)
    made = {k: v() if callable(v) and not isinstance(v, nn.Module) else v for k, v in parts.items()}
    module = Reference(function, **made).eval()

    def draw(seed: int) -> list[Any]:
        g = torch.Generator().manual_seed(seed)
        return [torch.randn(s, generator=g) for s in shapes]

    return Instance(Problem("reference", spec=spec), {}, [], module, 0, draw)


def tensors(value: Any) -> list[Tensor]:
    return flatten(value)[0]


def scaled(inputs: Any, kind: str) -> Any:
    """The inputs changed as one of `KINDS` says."""
    g = torch.Generator().manual_seed(3)
    change: dict[str, Callable[[Tensor], Tensor]] = {
        "normal": lambda t: t,
        "large": lambda t: 1e3 * t,
        "small": lambda t: 1e-3 * t,
        "mixed": lambda t: t * torch.exp(3 * torch.randn(t.shape, generator=g)),
        "zeros": torch.zeros_like,
        "constant": lambda t: torch.full_like(t, 0.7),
        "sorted": lambda t: t.sort(-1).values,
    }
    return map_tensors(inputs, lambda t: change[kind](t) if t.is_floating_point() else t)


KINDS = ("normal", "large", "small", "mixed", "zeros", "constant", "sorted")


class Reordered(modes.EagerMode):
    """float32 sums in another legal order: blocks of `chunk` terms, last block first; no fused operators."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk, self.depth = chunk, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        spelled = decompositions().get(func)
        if spelled is not None and self.depth < MAX_DECOMPOSITION_DEPTH:
            self.depth += 1
            try:
                with self:
                    out = spelled(*args, **kwargs)
            finally:
                self.depth -= 1
            if out is not NotImplemented:
                return out
        name, _ = kind_of(func)
        if name in ("mm", "bmm", "mv", "dot"):
            inner = args[1].dim() - 2 if args[1].dim() > 1 else 0
            pairs = list(zip(args[0].split(self.chunk, -1), args[1].split(self.chunk, inner), strict=True))
            total = func(*pairs[-1])
            for a, b in reversed(pairs[:-1]):
                total = total + func(a, b)
            return total
        if name == "addmm":
            with self:
                return args[0] + torch.ops.aten.mm.default(args[1], args[2])
        if name in ("sum", "mean") and args[0].is_floating_point():
            return self._add_up(name, args, kwargs)
        return func(*args, **kwargs)

    def _add_up(self, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        x = args[0]
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = len(args) > 2 and args[2] is True
        dims = list(range(x.dim())) if not dims else [d % x.dim() for d in dims]
        kept = [d for d in range(x.dim()) if d not in dims]
        rows = x.permute(*kept, *dims).reshape(*[x.shape[d] for d in kept], -1).flip(-1)
        total = torch.zeros_like(rows[..., 0])
        for p in rows.split(self.chunk, -1):
            total = total + p.cumsum(-1)[..., -1]
        if name == "mean":
            total = total / rows.shape[-1]
        return total.reshape([1 if d in dims else x.shape[d] for d in range(x.dim())]) if keep else total


def reordered(instance: Instance, inputs: Any, chunk: int) -> list[Tensor]:
    """A faithful float32 result with sums in another order."""
    module = oracle.module_copy(instance, torch.float32)
    with oracle.pinned_backends(), Reordered(chunk):
        return tensors(oracle.call(module, oracle.cast_floating(inputs, torch.float32)))


REFERENCES: dict[str, Callable[[], Instance]] = {
    "gelu": lambda: reference(lambda m, x: F.gelu(x), (8, 300)),
    "swiglu": lambda: reference(lambda m, a, b: F.silu(a) * b, (8, 120), (8, 120)),
    "elu": lambda: reference(lambda m, x: F.elu(x), (8, 120)),
    "softmax": lambda: reference(lambda m, x: x.softmax(-1), (8, 300)),
    "logsumexp": lambda: reference(lambda m, x: x.logsumexp(-1), (8, 300)),
    "layernorm": lambda: reference(lambda m, x: m.n(x), (8, 200), n=lambda: nn.LayerNorm(200)),
    "rmsnorm": lambda: reference(lambda m, x: m.n(x), (8, 200), n=lambda: nn.RMSNorm(200)),
    "groupnorm": lambda: reference(lambda m, x: m.n(x), (2, 6, 5, 7), n=lambda: nn.GroupNorm(2, 6)),
    "l2norm": lambda: reference(lambda m, x: F.normalize(x, dim=-1), (8, 200)),
    "matmul": lambda: reference(lambda m, a, b: a @ b, (24, 200), (200, 16)),
    "linear": lambda: reference(lambda m, x: m.f(x), (8, 96), f=lambda: nn.Linear(96, 20)),
    "conv": lambda: reference(lambda m, x: m.c(x), (2, 6, 9, 11), c=lambda: nn.Conv2d(6, 5, 3)),
    "attention": lambda: reference(
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (2, 3, 17, 16),
        (2, 3, 17, 16),
        (2, 3, 17, 16),
    ),
    "lstm": lambda: reference(lambda m, x: m.r(x)[0], (6, 3, 8), r=lambda: nn.LSTM(8, 10)),
    "sum": lambda: reference(lambda m, x: x.sum(1), (3, 300, 5)),
    "variance": lambda: reference(lambda m, x: x.var(-1), (8, 300)),
    "mse": lambda: reference(lambda m, a, b: ((a - b) ** 2).mean(), (8, 120), (8, 120)),
    "cumsum": lambda: reference(lambda m, x: x.cumsum(-1), (4, 400)),
    "maxpool": lambda: reference(lambda m, x: F.max_pool2d(x, 3, 2, 1), (2, 3, 13, 15)),
    "topk": lambda: reference(lambda m, x: tuple(x.topk(5)), (8, 60)),
}
"""One reference for each way in which operators round."""
