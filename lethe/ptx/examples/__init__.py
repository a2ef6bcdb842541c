"""Kernels of our own, their PTX, and one recorded launch of each.

The sources (`gemm_sm90`, `gemm_sm100`, `chain_sm90`, `chain_sm100`, `scan_sm100`, `lifecycle_defect_sm100` in
CuTe DSL, `triton_kernels` in Triton) are meant to be read; `recorded/` holds what their compilers made of
them, so that a machine with neither compiler nor GPU executes it.
"""

from lethe.ptx.examples.record import Record, load, names

__all__ = ["Record", "load", "names"]
