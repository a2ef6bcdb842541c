"""Does Triton's interpreter, as this project repairs it, compute what the GPU computes?

`record` runs small kernels on special inputs and writes the exact bits; the same command runs on a GPU and
in the interpreter, and `compare` holds one against the other.
"""
