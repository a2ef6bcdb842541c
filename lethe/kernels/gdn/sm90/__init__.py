"""The native kernels for sm_90a, and how one plugs in.

A stage ``prep``, ``scan`` or ``out`` is a module of this package that imports nvidia-cutlass-dsl and offers

* ``VARIANTS``: a tuple of `declare.Variant`, one for each set of compile-time options worth a library. A
  variant names the arguments in order, with dtype and shape;
* ``kernel(**options)``: an object with a ``@cute.jit`` ``__call__(self, <arguments in that order>, stream)``
  that launches it. Tensors come as `cute.Tensor`, dense in row-major order, the base 16-byte aligned; scalars
  as ``cutlass.Float32`` or ``cutlass.Int32``; the stream is passed on: ``.launch(..., stream=stream)``.
  A size that is an int in the declared shape is static in the tensor's layout, a name is dynamic (int32).

`lethe.kernels.gdn.build` compiles variants ahead of time (no GPU, no driver): one shared library each, with
the cubin, the host launcher that encodes the tensor maps and a shim to the CUDA runtime, beside a manifest.
`lethe.kernels.gdn.launch` finds the variant for given options, checks the tensors against the declaration and
launches on torch's stream::

    launch.kernel(SM90, "scan", dk=128, dv=128, erase=True)(Kt=Kt, W=W, ...)

Libraries come from ``$LETHE_GDN_LIBRARIES``, from ``libraries/`` beside this file, or are compiled on first
use where the DSL is installed. Neither the DSL nor a compiler is needed to run what was built.
`lethe.kernels.gdn.emulate` runs a variant in `lethe.ptx` on numpy arrays. All three take the architecture as
an argument (`architecture.SM90`); the package `sm100` plugs in the same way.

What the stages hand to each other (X^T is stored where rows are d_v, so that a row of d_k is contiguous):

==========  =======  ====================  ==============================================================
name        dtype    shape                 contents
==========  =======  ====================  ==============================================================
Kt, W       float16  [slots, H, 64, dk]    as in `stages`; W is not there without erasure (b=None)
U           float16  [slots, H, 64, dv]    U 2^e(max|U|)
P           float16  [slots, H, dv, dk]    P^T 2^e(max|P|)
decay       float32  [slots, H, dk]        e^Gam; one gate a head: equal in all channels; no gate: ones
maxima      float32  [slots, H, 4]         max|U|, max|Kt|, max|P|, 0 of the chunk, before any rounding
S, D        float16  [slots, H, dv, dk]    S^T 2^powers[0], D^T 2^powers[1] (state before / after the chunk)
powers      int32    [slots, H, 2]         by scan, for each slot that holds a chunk
A, T        float16  [slots, H, 64, 64]    row-major, strictly lower; T without its unit diagonal
a           float32  [slots, H, 64]        diagonal of the causal matrix
==========  =======  ====================  ==============================================================

``e(m) = clamp(8 - x, -100, 100)``, x the exponent of m as in `precision.power_for` (m = 0 may give any e).
Rows of a chunk past the end of its sequence are zero in Kt, W, U; slots without a chunk are not written. The
final states and their adjoints stay ``[N, H, dk, dv]`` float32. ``cu_seqlens`` is int32 [N + 1] on the
device; a variant for batches (``packed=False``) has no such argument. An optional tensor that is absent is
passed with first size 0.
"""
