"""How each member of the family reduces to the general recurrence, as data and as functions.

=========  ==========  ======  ======  =======================  ==========  ===========================
member     g           b       w       q, k, v                  T           besides
=========  ==========  ======  ======  =======================  ==========  ===========================
linear     0           0       1       the same                 identity
gla        log a       0       1       the same                 identity
ssd        dt A        0       dt      C, B, x; scale 1         identity    + D x outside
deltanet   0           beta    beta    the same
gdn        log a       beta    beta    the same
kda        g           beta    beta    the same
gdn2       g           b       w       the same
=========  ==========  ======  ======  =======================  ==========  ===========================

One number a head is spread over its channels, so its gradient is the sum over them:
``dbeta = sum_d db + sum_v dw``, and a scalar ``dg = sum_d dg``. With b = 0 the chunk's triangular inverse T
is the identity and the paths M, T, Ph, dM fall away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class General:
    """Arguments of `lethe.references.gdn.gated_delta_rule_forward`."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    b: Tensor
    w: Tensor
    scale: float


@dataclass(frozen=True)
class Reduction:
    """A row of the table: the member's own arguments in, the general ones out."""

    member: str
    arguments: tuple[str, ...]
    """Names of the member's tensors beside the initial state, as in `lethe.references.gdn_members`."""
    g: str
    b: str
    w: str
    identity: bool
    """Whether T is the identity for every input, because b = 0."""
    general: Callable[[Mapping[str, Tensor], float], General]
    """Differentiable, so autograd through it gives the member's gradients from the general ones."""


def _spread(x: Tensor, like: Tensor) -> Tensor:
    return x[..., None].expand_as(like)


def _plain(
    m: Mapping[str, Tensor], scale: float, g: Tensor | None, b: Tensor | None, w: Tensor | None
) -> General:
    k, v = m["k"], m["v"]
    zero = torch.zeros_like(k)
    return General(
        m["q"],
        k,
        v,
        zero if g is None else g,
        zero if b is None else b,
        torch.ones_like(v) if w is None else w,
        scale,
    )


def _delta(m: Mapping[str, Tensor], scale: float, g: Tensor | None) -> General:
    return _plain(m, scale, g, _spread(m["beta"], m["k"]), _spread(m["beta"], m["v"]))


def _ssd(m: Mapping[str, Tensor], scale: float) -> General:
    B, x, dt = m["B"], m["x"], m["dt"]
    return General(m["C"], B, x, _spread(dt * m["A"], B), torch.zeros_like(B), _spread(dt, x), 1.0)


REDUCTIONS = {
    r.member: r
    for r in (
        Reduction(
            "linear", ("q", "k", "v"), "0", "0", "1", True, lambda m, s: _plain(m, s, None, None, None)
        ),
        Reduction(
            "gla",
            ("q", "k", "v", "a"),
            "log a",
            "0",
            "1",
            True,
            lambda m, s: _plain(m, s, m["a"].log(), None, None),
        ),
        Reduction("ssd", ("x", "dt", "A", "B", "C"), "dt A", "0", "dt", True, _ssd),
        Reduction(
            "deltanet",
            ("q", "k", "v", "beta"),
            "0",
            "beta",
            "beta",
            False,
            lambda m, s: _delta(m, s, None),
        ),
        Reduction(
            "gdn",
            ("q", "k", "v", "a", "beta"),
            "log a",
            "beta",
            "beta",
            False,
            lambda m, s: _delta(m, s, _spread(m["a"].log(), m["k"])),
        ),
        Reduction(
            "kda",
            ("q", "k", "v", "g", "beta"),
            "g",
            "beta",
            "beta",
            False,
            lambda m, s: _delta(m, s, m["g"]),
        ),
        Reduction(
            "gdn2",
            ("q", "k", "v", "g", "b", "w"),
            "g",
            "b",
            "w",
            False,
            lambda m, s: _plain(m, s, m["g"], m["b"], m["w"]),
        ),
    )
}
"""Member -> its row, in the order of the table."""
