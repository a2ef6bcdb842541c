"""The audit: the verifier over a corpus of kernels, one JSON line per kernel.

Start reading at `corpora` (what a row is, where rows come from), then `run` (how
they are judged, resumably and in shards) and `report` (lines -> tables).
"""
