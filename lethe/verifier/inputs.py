"""Draws: random and adversarial inputs that keep the structure of the reference's own.

`draw` fills every replaceable floating input (or one of them) with values of a kind and
leaves the others as the reference draws them at the same seed. What an input may hold is
its `domains.Domain`. Every draw is run through the reference: values that would overflow
it are scaled down, or refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lethe.verifier.domains import Domain, describe
from lethe.verifier.placement import (
    IllegalDraw,
    layouts,
    place_nonfinite,
    place_signed_zeros,
    place_subnormals,
)
from lethe.verifier.problem import Instance, ProblemError
from lethe.verifier.reference import run_apart
from lethe.verifier.structure import flatten, unflatten

__all__ = [
    "KINDS",
    "Domain",
    "IllegalDraw",
    "describe",
    "draw",
    "integer_state",
    "layouts",
    "place_nonfinite",
    "place_signed_zeros",
    "place_subnormals",
    "with_structure",
]

SCALES = {
    "large": (1e4, 1e3, 1e2, 30.0, 10.0, 3.0),
    "small": (1e-4, 1e-2, 0.1),
    "mixed": (4.0, 3.0, 2.0, 1.0),
    "shifted": (1e3, 1e2, 10.0),
    "cancelling": (2.0, 1.0, 0.5),
    "deep": (1e5, 1e4, 1e3, 1e2, 30.0, 10.0, 3.0),
    "spike": (1e5, 1e4, 1e3, 1e2, 30.0, 10.0, 3.0),
}
"""What is tried in turn until the reference stays finite: factors for large, small and shifted
(1000 is where a one-pass variance in float32 has lost six of its seven digits), decades of
magnitude either way for mixed and cancelling. Deep and spike reach beyond the -1e4 that kernels write
for minus infinity, and beyond 65,504, where float16 ends."""

SPARSITY = 0.9
"""Share of zeros in a sparse draw."""
FINE = 2.0**-24
"""Scale of fine draws: far below float32's resolution of what generic draws make, and so far above its
smallest number that products of four stay normal."""
WIDEST_HALVES = 5
RESIDUE = 2.0**-10
"""What is left after cancellation, relative to the terms: far above their float32 rounding."""

Maker = Callable[[Tensor, Domain, float, torch.Generator], Tensor]


def _base(x: Tensor, d: Domain, g: torch.Generator) -> Tensor:
    """The reference's own magnitudes; with random signs where only the sign of the draw was one-sided."""
    if d.sign == "any" and d.generic and (bool((x >= 0).all()) or bool((x <= 0).all())):
        return x * _signs(x, g)
    return x


def _signs(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.randint(0, 2, x.shape, generator=g, device=g.device).to(x) * 2 - 1


def _uniform(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.rand(x.shape, generator=g, device=g.device).to(x)


def _level(x: Tensor) -> float:
    """Root mean square of the elements that are not zero; 1 if there are none."""
    inside = x[x != 0].double()
    return float(inside.square().mean().sqrt()) if inside.numel() else 1.0


def _zeros(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    return torch.zeros_like(x)


def _one_hot(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """A single one in each row of the last dimension (of the normalised one for probabilities)."""
    if not x.dim():
        return torch.ones_like(x)
    at = _uniform(x, g).cpu().argmax(d.dim, keepdim=True)  # a GPU may break a tie either way
    return torch.zeros_like(x).scatter_(d.dim, at.to(x.device), 1.0)


def _scaled(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    return _base(x, d, g) * scale


def _mixed(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """Magnitudes log-uniform over `scale` decades either side of the draw's own level."""
    magnitude = _level(x) * 10.0 ** ((_uniform(x, g) * 2 - 1) * scale)
    return magnitude * _sign_of(d, x, g)


def _sign_of(d: Domain, x: Tensor, g: torch.Generator) -> Tensor | float:
    if d.sign == "any":
        return _signs(x, g)
    return 1.0 if d.sign in ("positive", "nonnegative") else -1.0


def _constant(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """0.7 of the level everywhere: not representable in a few bits, so that narrow types show."""
    return torch.full_like(x, 0.7 * _level(x)) * (-1.0 if d.sign in ("negative", "nonpositive") else 1.0)


def _sorted(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """Ascending along every dimension (sorting along one keeps the others sorted)."""
    out = _base(x, d, g)
    for dim in range(x.dim()):
        out = out.sort(dim=dim).values
    return out


def _one_signed(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    return -x.abs() if d.sign in ("negative", "nonpositive") else x.abs()


def _exact_integer(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """{-1, 0, 1}; {0, 1} or {1, 2} where the domain is one-sided: every partial sum of a linear
    operator is exact, so that all summation orders agree to the bit."""
    u = _uniform(x, g)
    if d.sign == "any":
        return (u * 3).floor() - 1
    whole = (u * 2).floor() + (1.0 if d.sign in ("positive", "negative") else 0.0)
    return whole if d.sign in ("positive", "nonnegative") else -whole


def _fine(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """Exact integers at the scale of `FINE`: what is rounded to a step, or cut off below one, is lost."""
    return _exact_integer(x, d, scale, g) * FINE


def _halves(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """Multiples of 1/2 up to `WIDEST_HALVES`: integers and ties, where rounding rules differ."""
    least = 1.0 if d.sign in ("positive", "negative") else 0.0
    steps = (_uniform(x, g) * (2 * WIDEST_HALVES)).floor() + least
    return steps / 2 * _sign_of(d, x, g)


def _sparse(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    return torch.where(_uniform(x, g) < SPARSITY, torch.zeros_like(x), _base(x, d, g))


def _shifted(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """Mean about `scale` standard deviations."""
    spread = float(x.double().std()) if x.numel() > 1 else 0.0
    shift = scale * (spread or _level(x))
    return x - shift if d.sign in ("negative", "nonpositive") else x + shift


def _cancelling(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """+x and -x in pairs mirrored along every dimension, so that sums along any of them cancel to
    `RESIDUE`; magnitudes over `scale` decades either way make the result depend on the order."""
    out = _mixed(x, d, scale, g)
    for dim in range(x.dim()):
        if x.shape[dim] > 1:
            out = out - out.flip(dim)
    return out + RESIDUE * _level(x) * torch.randn(x.shape, generator=g, device=g.device).to(x)


def _deep(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """Negative and far from zero throughout: a running maximum that starts at 0 (or at a finite stand-in
    for minus infinity), and lanes that a mask fills with one, are then larger than any element."""
    return -(_level(x) + x.abs()) * scale


def _spike(x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """One dominating element in each row of the last dimension, at random; in the first and last two rows
    at both ends and their neighbours. A maximum that skips or coarsens a place, and a sum that loses one
    term of thousands, show only if a large element is there. Heights differ, so that two inputs do not
    cancel."""
    if not x.dim():
        return torch.full_like(x, _level(x) * scale)
    width = x.shape[-1]
    out = _base(x, d, g).reshape(-1, width).clone()
    rows = torch.arange(out.shape[0], device=x.device)
    at = (_uniform(rows.float(), g) * width).long().clamp(max=width - 1)
    for row, place in ((0, 0), (1, 1), (-2, width - 2), (-1, width - 1)):
        if -len(rows) <= row < len(rows):
            at[row] = min(max(place, 0), width - 1)
    peak = _level(x) * scale * (-1.0 if d.sign in ("negative", "nonpositive") else 1.0)
    heights = peak * (1 + _uniform(rows.double(), g))
    out[rows, at] = heights.to(out)  # infinite if too large, so refused
    return out.reshape(x.shape)


_MAKERS: dict[str, Maker] = {
    "zeros": _zeros,
    "one_hot": _one_hot,
    "large": _scaled,
    "small": _scaled,
    "mixed": _mixed,
    "constant": _constant,
    "sorted": _sorted,
    "one_signed": _one_signed,
    "exact_integer": _exact_integer,
    "sparse": _sparse,
    "shifted": _shifted,
    "cancelling": _cancelling,
    "deep": _deep,
    "spike": _spike,
    "fine": _fine,
    "halves": _halves,
}

KINDS = ("normal", *_MAKERS)

_WITH_ZEROS = frozenset({"zeros", "one_hot", "sparse"})


def _refusal(kind: str, d: Domain) -> str:
    """Why a domain admits no draw of this kind, or ``""``."""
    if not d.free:
        return f"inputs of kind {d.kind} are kept as the reference draws them"
    if kind in _WITH_ZEROS and d.sign in ("positive", "negative") and d.kind in ("real", "unit"):
        return f"the input is {d.sign} in every draw"
    if kind in ("cancelling", "deep") and d.sign != "any":
        return f"the input is {d.sign} in every draw"
    if kind in ("fine", "halves") and d.kind != "real":
        return f"a {d.kind.replace('_', '-')} input has values of its own"
    if kind in ("deep", "spike") and d.kind != "real":
        return f"a {d.kind.replace('_', '-')} input is bounded"
    if d.kind == "binary" and kind not in ("zeros", "constant", "sparse", "exact_integer"):
        return "a two-valued input has only zeros, constant, sparse and exact_integer draws"
    if d.kind == "unit" and kind in ("exact_integer", "shifted"):
        return "the input lies inside (0, 1)"
    if d.kind in ("probability", "log_probability") and kind in ("zeros", "exact_integer", "shifted"):
        return f"a {d.kind.replace('_', '-')} input is normalised"
    return ""


def _fill(kind: str, x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """Values of a kind for one input, inside its domain."""
    if d.kind == "binary":
        low, high = d.values
        share = {"zeros": 0.0, "constant": 1.0, "sparse": 1 - SPARSITY, "exact_integer": 0.5}[kind]
        return torch.where(_uniform(x, g) < share, torch.full_like(x, high), torch.full_like(x, low))
    if d.kind in ("probability", "log_probability"):
        return _distribution(kind, x, d, scale, g)
    if d.kind == "unit":
        return _inside_unit(kind, x, d, scale, g)
    return with_structure(_MAKERS[kind](x, d, scale, g), d)


def with_structure(drawn: Tensor, d: Domain) -> Tensor:
    """Rule 33: the draw with the input's own symmetry, order and zero pattern."""
    if d.symmetric:
        upper = drawn.triu()
        drawn = upper + upper.triu(1).mT
    if d.ascending:
        drawn = drawn.sort(dim=-1).values
    return drawn if d.zeros is None else drawn.masked_fill(d.zeros.to(drawn.device), 0.0)


def _distribution(kind: str, x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """(Log-)probabilities: weights of the kind, normalised; large is peaked, small nearly uniform."""
    logs = d.kind == "log_probability"
    logits = x if logs else x.clamp_min(torch.finfo(x.dtype).tiny).log()
    if kind == "large":
        out = (logits * min(scale, 30.0)).log_softmax(d.dim)
    elif kind == "small":
        out = (logits * scale).log_softmax(d.dim)
    elif kind == "mixed":
        out = (_uniform(x, g) * (2 * scale * 2.302585)).log_softmax(d.dim)
    elif kind == "constant":
        out = torch.zeros_like(x).log_softmax(d.dim)
    elif kind == "sorted":
        out = logits.sort(dim=d.dim).values
    elif kind == "one_signed":
        return x
    else:
        weights = _MAKERS[kind](x.exp() if logs else x, Domain("real", "nonnegative", d.dim), scale, g)
        weights = weights + 1e-6 if logs else weights
        total = weights.sum(d.dim, keepdim=True)
        weights = torch.where(total > 0, weights / total, torch.full_like(weights, 1.0 / x.shape[d.dim]))
        return weights.log() if logs else weights
    return out if logs else out.exp()


def _inside_unit(kind: str, x: Tensor, d: Domain, scale: float, g: torch.Generator) -> Tensor:
    """Values inside (0, 1): large is near 1, small near 0."""
    if kind == "large":
        return 1 - x / max(scale, 2.0)
    if kind in ("small", "one_signed"):
        return x * (scale if kind == "small" else 1.0)
    if kind == "mixed":
        return 10.0 ** (-scale * _uniform(x, g)) * 0.999
    return x.sort(dim=-1).values if kind == "sorted" and x.dim() else torch.full_like(x, 0.7)


def draw(instance: Instance, kind: str, seed: int, which: int | None = None) -> list[Any]:
    """Inputs of a kind, nested as the reference's own; float tensors are float32.

    `which` is the position of one floating tensor (flatten order); None takes all that may
    be replaced, equal tensors alike (for ``cancelling`` only the first, since products of two
    cancelling inputs do not cancel). Raises IllegalDraw with the reason if the domain admits no such draw or
    the reference does not stay finite, ValueError for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of draw {kind!r}; known are {', '.join(KINDS)}")
    own = instance.draw(seed)
    if kind == "normal":
        return own
    tensors, skeleton = flatten(own)
    domains = describe(instance)
    if which is not None:
        refused = _refusal(kind, domains[which]) if 0 <= which < len(domains) else "there is no such input"
        if refused:
            raise IllegalDraw(refused)
        chosen = [which]
    else:
        chosen = [i for i, d in enumerate(domains) if not _refusal(kind, d)]
        if not chosen:
            reasons = [r for d in domains if (r := _refusal(kind, d))]
            raise IllegalDraw(reasons[0] if reasons else "there is no floating input")
        if kind == "cancelling":
            chosen = chosen[:1]
    for scale in SCALES.get(kind, (1.0,)):
        filled = list(tensors)
        for i in chosen:
            twin = next((j for j in chosen if j < i and torch.equal(tensors[j], tensors[i])), None)
            x = tensors[i]
            g = torch.Generator(x.device)
            g.manual_seed((seed * 1_000_003 + KINDS.index(kind) * 1_009 + i) % 2**63)
            filled[i] = filled[twin] if twin is not None else _fill(kind, x, domains[i], scale, g).to(x)
        inputs: list[Any] = unflatten(filled, skeleton)
        if _stays_finite(instance, inputs, own):
            return inputs
    raise IllegalDraw("the reference does not stay finite on such inputs")


def _stays_finite(instance: Instance, inputs: list[Any], own: list[Any]) -> bool:
    """Whether the outputs are finite; where the reference's own draw gives non-finites too, anything goes."""
    if "finite" not in instance.notes:
        instance.notes["finite"] = _finite(instance, own)
    return _finite(instance, inputs) or not instance.notes["finite"]


def _finite(instance: Instance, inputs: list[Any]) -> bool:
    try:
        outputs, _ = flatten(run_apart(instance, inputs))
    except ProblemError:
        return False
    return all(bool(t.isfinite().all()) for t in outputs if t.is_floating_point())


def integer_state(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """Parameters in {-1, 0, 1} and the buffers as they are, by name.

    With `exact_integer` inputs every partial sum of a linear operator is then exact.
    Raises IllegalDraw if a floating buffer holds fractions.
    """
    g = torch.Generator().manual_seed(seed)
    parameters = dict(module.named_parameters())
    state: dict[str, Tensor] = {}
    for name, value in module.state_dict().items():
        if name in parameters and value.is_floating_point():
            whole = torch.randint(-1, 2, value.shape, generator=g).to(value)
            state[name] = whole
        elif value.is_floating_point() and not bool((value.round() == value).all()):
            raise IllegalDraw(f"the buffer {name} holds fractions")
        else:
            state[name] = value.clone()
    return state
