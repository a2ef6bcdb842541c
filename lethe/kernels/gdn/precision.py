"""Which operands of the native kernels are how wide, decided by emulation before any kernel was written.

The kernels accumulate in float32 and carry states in float32; what costs accuracy is the rounding of the
operands that tensor cores read and of what one stage hands to the next. Every one of them passes through the
``rounding`` hook of `lethe.kernels.gdn.stages` under its name ``product.operand`` or ``store.name``; a `Plan`
says to which format each is rounded. `lethe.evidence.gdn_precision` runs the plans over members, gates, key
distributions and sizes against the float64 oracle; its record is ``data/measured/cpu/gdn_precision.json``.

What it found (worst over every gradient, max|x - x64| / max|x64|; the pins are 5e-3, and 1e-3 for float16
inputs with |g| <= 1):

* bfloat16 rounds by up to 2^-8 = 3.9e-3, so one direct rounding of a dominating value (P into dS0, dN into R,
  dM and k into db under strong decay) spends the pin. All operands in bfloat16 miss it, by 1.4 to 1.7 times,
  in dS0, dg and db.
* Splitting operands into two bfloat16 holds 5e-3 only once the tiles of `out`, the scaled keys, T and A are
  split (1.8 times the products, and no room: 4.7e-3); with the states 2.3 times the products and 1.5 times
  the traffic between stages for 4.3e-3.
* float16 has the same cost as bfloat16 and rounds by 2^-11: 1.1e-3, within every pin, if two things are seen
  to.

  *Range.* q, k, p, Kt, W, T, A are activations of order one and are taken as they are (up to 65504). What is
  linear in v or in dO is not: gradients of 1e-9 are normal in bfloat16 training, and a state may pass 65504.
  So these tiles carry a power of two, undone in float32 where it costs nothing (it is exact). A chunk's own
  tiles (``fp16e``: dO, w v, U, P, E, N, dN, R, dA, dM) take it from their largest magnitude. The states and
  what is added to them in the scan (``fp16S``: S, N; ``fp16D``: D, Y) keep one power for a whole sequence
  and head (`sequence_powers`), so that the scan never reduces and products over d_v see a single power:
  float16 has 30 binades, of which 12 are left for growth and 18 below hold full precision.

  *Diagonal blocks.* Their factors reach ``e^{8 |g|}``, beyond float16 for |g| > 1.3: there the operands are
  tf32 (mma.sync m16n8k8, float32's exponent), a twentieth of the products.

* The largest single terms are not rounded where that is free: T is stored without its unit diagonal (``T x``
  is ``x + (T - I) x``, the first term in float32), the causal matrix without its own (`stages`: a). The
  latter makes dg under strong decay ten times better, because the diagonal's terms cancel in it.
* Near zero decay db is the worst gradient (float16 inputs: 0.96e-3 of 1e-3), from a dozen equal roundings.
  Four operands as two float16 ("split erasure": 1.16 times the products) bring it to 0.7e-3 and the worst of
  all to 0.8e-3: a compile-time option that float16 inputs should take, since bytes bound the kernels.

So one kernel serves both input dtypes: they differ in how a tile is loaded and how a result is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from lethe.kernels.gdn.decay import Rounding
from lethe.kernels.gdn.stages import Prepared

TARGET = 8
"""Tiles with a power of their own have their largest magnitude in [2^7, 2^8): room for 2^8 in what is rounded
with their power, and 22 binades of full precision below."""

STATE_TARGET = 4
"""The same for the states, where it is the largest addend of the sequence: room for growth by 2^12."""

ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8, "bf16x2": 2.0**-17}
"""Largest relative rounding error of a format (of a value in its normal range)."""


def round_to(x: Tensor, form: str) -> Tensor:
    """x [..., rows, columns] float32 as an operand of this format holds it; ValueError for another format.

    ``fp32``, ``io`` (as it was loaded), ``tf32`` (nearest, ties away), ``fp16``, ``bf16``, ``bf16x2`` (two
    of them, added), ``fp16e``: float16 with a power of two for each tile, the last two axes; ``fp16x2e``:
    two of those.
    """
    match form:
        case "fp32" | "io":
            return x
        case "bf16":
            return x.bfloat16().float()
        case "fp16":
            return x.half().float()
        case "bf16x2":
            high = x.bfloat16().float()
            return high + (x - high).bfloat16().float()
        case "tf32":
            bits = x.contiguous().view(torch.int32)
            return torch.where(x.isfinite(), ((bits + 0x1000) & ~0x1FFF).view(torch.float32), x)
        case "fp16e":
            return scaled_half(x, power_for(x.abs().amax((-2, -1), keepdim=True), TARGET))
        case "fp16x2e":
            power = power_for(x.abs().amax((-2, -1), keepdim=True), TARGET)
            high = scaled_half(x, power)
            return high + scaled_half(x - high, power)
    raise ValueError(f"no format {form!r}")


def scaled_half(x: Tensor, power: Tensor) -> Tensor:
    """float16 of x 2^power, times 2^-power."""
    return torch.ldexp(torch.ldexp(x, power).half().float(), -power)


def power_for(largest: Tensor, target: int) -> Tensor:
    """The integer e with largest 2^e in [2^(target-1), 2^target), clamped to what float32 can undo."""
    _, exponent = torch.frexp(largest)
    return (target - exponent).clamp(-100, 100)


def sequence_powers(prepared: Prepared, P: Tensor, S0: Tensor, dfinal: Tensor) -> dict[str, Tensor]:
    """The powers ``S`` and ``D`` [1, H, 1, 1] of one sequence, from maxima that prep leaves for each chunk.

    D grows by P. S grows by Kt^T N, 64 addends whose signs vary: 8 times the largest product stands for them.
    """
    over = lambda x: x.abs().amax((0, 2, 3), keepdim=True)  # noqa: E731
    added = 8 * over(prepared.Kt) * over(prepared.U)
    return {
        "S": power_for(torch.maximum(over(S0), added), STATE_TARGET),
        "D": power_for(torch.maximum(over(dfinal), over(P)), STATE_TARGET),
    }


@dataclass(frozen=True)
class Plan:
    """Formats by operand; the first pattern that matches a name decides."""

    name: str
    about: str
    rules: tuple[tuple[str, str], ...]

    def form(self, operand: str) -> str:
        return next(form for pattern, form in self.rules if fnmatchcase(operand, pattern))

    def rounding(self, powers: Mapping[str, Tensor] | None = None) -> Rounding:
        """The hook of `stages` and `decay`; scan and out also need `sequence_powers`."""

        def hook(operand: str, x: Tensor) -> Tensor:
            form = self.form(operand)
            if form in ("fp16S", "fp16D"):
                assert powers is not None, operand
                return scaled_half(x, powers[form[-1]])
            return round_to(x, form)

        return hook


_DIAGONAL = ("*.diagonal", "tf32")
_UNROUNDED = (("*.do", "io"),)
_STATE = tuple((name, "fp16S") for name in ("*.S", "KtN.N")) + tuple(
    (name, "fp16D") for name in ("*.D", "WY.Y")
)
_LINEAR = tuple(
    (name, "fp16e")
    for name in (
        *("*.do", "*.N", "*.E", "*.R", "*.dN", "*.dNloc", "*.dX", "U.wv"),
        *("store.P", "store.U"),
    )
)
_OUT_LOCALS = ("N.E", "R.dN", "d[AMK]*.N", "d[MP]*.R", "d[qp].dX")
_SCALED_KEYS = ("dN.Kt", "PhS.Ph", "d[qp].[xy]", "[AM].[xy]", "P.Qh", "W.Ph")
_TRIANGLES = ("*.T", "*.A", "inverse.*")
_STATES = ("*.S", "*.D", "WY.Y", "KtN.N")
_HANDED_ON = ("*.Kt", "*.W", "store.[UP]", "U.wv")

_ERASURE = tuple((name, "fp16x2e") for name in ("dN.Kt", "dM.R", "dPh.R", "dp.dX"))


def _split(*patterns: str) -> tuple[tuple[str, str], ...]:
    return tuple((pattern, "bf16x2") for pattern in patterns)


PLANS = (
    Plan("bf16", "every operand bfloat16", (("*", "bf16"),)),
    Plan("bf16, tf32 diagonal", "bfloat16, diagonal blocks in tf32", (_DIAGONAL, ("*", "bf16"))),
    Plan(
        "bf16, split in out",
        "also N, E, dN, R, dA, dM as two bfloat16",
        (_DIAGONAL, *_UNROUNDED, *_split(*_OUT_LOCALS), ("*", "bf16")),
    ),
    Plan(
        "bf16, split but states",
        "also the scaled keys and queries, T and A",
        (_DIAGONAL, *_UNROUNDED, *_split(*_OUT_LOCALS, *_SCALED_KEYS, *_TRIANGLES), ("*", "bf16")),
    ),
    Plan(
        "bf16, split with states",
        "also S and D, stored and as operands",
        (_DIAGONAL, *_UNROUNDED, *_split(*_OUT_LOCALS, *_SCALED_KEYS, *_TRIANGLES, *_STATES), ("*", "bf16")),
    ),
    Plan(
        "bf16x2",
        "every operand but dO split, everything stored twice as wide",
        (_DIAGONAL, *_UNROUNDED, ("*", "bf16x2")),
    ),
    Plan("fp16", "every operand float16, no powers of two, diagonal too", (("*", "fp16"),)),
    Plan(
        "fp16 scaled",
        "float16, powers of two for what is linear in v or dO, diagonal blocks in tf32",
        (_DIAGONAL, *_STATE, *_LINEAR, ("*", "fp16")),
    ),
    Plan(
        "fp16 scaled, split erasure",
        "also Kt, R and dM as two float16 on the way to db: the reserve",
        (*_ERASURE, _DIAGONAL, *_STATE, *_LINEAR, ("*", "fp16")),
    ),
)
"""From the narrowest on; the record has a row for each."""

CHOSEN = next(plan for plan in PLANS if plan.name == "fp16 scaled")
"""The plan of `cute_sm90` and `cute_sm100`."""

PINS = {"bf16": 5e-3, "fp16": 1e-3}
"""By input dtype; the second for |g| <= 1."""
