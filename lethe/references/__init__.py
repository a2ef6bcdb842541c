"""Oracles in float64: one file per operator family, plain loops over tokens, written from the definitions.

An oracle is slow on purpose. It refuses every dtype but float64, so that no reduced precision can slip
into what a kernel is measured against, and it shares no code with the kernels.
"""
