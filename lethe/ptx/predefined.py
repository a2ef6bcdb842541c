"""Predefined registers: PTX ISA 10 (special registers). Clocks read zero: time is not modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.memory import SHARED_FIRST

if TYPE_CHECKING:
    from lethe.ptx.cta import CTA


def value(cta: CTA, name: str) -> Array:
    """The value of a predefined register in every thread: int64[warps, 32].

    Raises:
        Fault: kind ``unsupported`` for a register that is not modelled.
    """
    base, _, axis = name.rpartition(".") if name[-2:] in (".x", ".y", ".z") else (name, "", "x")
    i = "xyz".index(axis)
    x, y, _ = cta.block
    tid = cta.thread
    split = (tid % x, tid // x % y, tid // (x * y))
    lane = tid & 31
    uniform = {
        "%ntid": cta.block[i],
        "%ctaid": cta.index[i],
        "%nctaid": cta.grid[i],
        "%clusterid": cta.index[i],
        "%nclusterid": cta.grid[i],
        "%cluster_ctaid": 0,
        "%cluster_nctaid": 1,
        "%cluster_ctarank": 0,
        "%cluster_nctarank": 1,
        "%is_explicit_cluster": 0,
        "%nwarpid": cta.warps,
        "%smid": 0,
        "%nsmid": 1,
        "%gridid": 0,
        "%clock": 0,
        "%clock_hi": 0,
        "%clock64": 0,
        "%globaltimer": 0,
        "%globaltimer_lo": 0,
        "%globaltimer_hi": 0,
        "%dynamic_smem_size": cta.dynamic_shared,
        "%total_smem_size": cta.layout.shared_end - SHARED_FIRST,
    }
    if base == "%tid":
        return split[i]
    if base in uniform:
        return np.full(tid.shape, uniform[base], np.int64)
    one = np.int64(1)
    lanes = {
        "%laneid": lane,
        "%warpid": tid >> 5,
        "%lanemask_eq": one << lane,
        "%lanemask_lt": (one << lane) - 1,
        "%lanemask_le": (one << lane + 1) - 1,
        "%lanemask_gt": 0xFFFFFFFF & ~((one << lane + 1) - 1),
        "%lanemask_ge": 0xFFFFFFFF & ~((one << lane) - 1),
    }
    if base in lanes:
        return lanes[base]
    raise Fault("unsupported", f"special register {name} is not modelled")
