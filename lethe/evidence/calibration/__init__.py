"""Calibration: how far the noise of an honest kernel lies below a gate's threshold, and how small an error
still trips it.

Start reading at `operators` (known-right kernels with a dial of error), then `measure` (one row through the
real judge), `carry` (PRC-02 over the length of the reduction) and `run` (all rows, resumably).
``python -m lethe.evidence.calibration --out FILE.jsonl`` measures; `lethe.plotting.calibration` draws.
"""
