"""The twelve contracts, in the order in which they are judged and printed."""

from __future__ import annotations

from lethe.verifier.contract import Channel, Contract

_ORACLE64 = "the reference evaluated in float64 (or the operator's hand-written float64 oracle)"
_WORKING = "the reference in its own working precision, confirmed by the float64 oracle"

CONTRACTS: tuple[Contract, ...] = (
    Contract(
        identifier="CMP-01",
        name="input variation",
        channel=Channel.BOTH,
        scope="every operator; every floating input of it, one at a time and together",
        precondition="the reference is finite and deterministic on the draw, and the draw keeps the "
        "structure "
        "(sign, zero pattern, range) of the reference's own inputs",
        postcondition="each output element lies within the band of the float64 oracle, and the output has "
        "the "
        "reference's structure, shape and dtype",
        tolerance="derived: c(2u|y| + s) per element, s from operation-level Monte-Carlo arithmetic; sums of "
        "absolute terms for linear operators on structured draws; normwise for convolution; bit equality "
        "where every partial sum is an exact small integer",
        oracle=_ORACLE64,
        measurement="random draws, and zeros, one-hot, large, small, mixed magnitude, constant, sorted, "
        "{0,1} integer, sparse, deep (far below zero) and spike (one dominating element a row) draws; where "
        "nothing rounds, integers at a scale of 2^-24, and integers and ties for operators that step",
        violation="an element outside its band, or another structure, shape or dtype",
        crosswalk="no single class; the value part of each compute class",
    ),
    Contract(
        identifier="CMP-02",
        name="gradient",
        channel=Channel.BAND,
        scope="operators with a floating input or parameter that requires a gradient, when either the "
        "candidate "
        "or the reference is differentiable",
        precondition="the reference has a finite gradient at the draw; for values of gradients, the forward "
        "values keep their band there",
        postcondition="every input and parameter gradient agrees with the float64 gradient of the reference",
        tolerance="the derived band, with the spread of the gradient computation itself",
        oracle="float64 autograd through the reference",
        measurement="non-uniform random upstream gradients; all inputs and all parameters at once",
        violation="a gradient outside its band, missing, or of another shape",
        crosswalk="none of this meaning (the label C-CMP-02 stands for autotune invariance there, "
        "which is an integrity probe here)",
    ),
    Contract(
        identifier="CMP-03",
        name="shape polymorphism",
        channel=Channel.BOTH,
        scope="operators with at least one free dimension, found by running the reference under "
        "substituted sizes",
        precondition="the reference accepts the size; a size that the candidate holds as its own constant is "
        "substituted on both sides",
        postcondition="the kernel is right at other batch, length and width, and for non-contiguous inputs",
        tolerance="values: the derived band; accepting a legal size and layout: none",
        oracle=_ORACLE64,
        measurement="1, odd, prime and above-one-tile sizes, singly and jointly; strided and offset views; "
        "guard zones around every buffer",
        violation="rejects (an exception at a legal size) or computes wrongly; the two are reported apart",
        crosswalk="no single class; extends C-CMP to sizes",
    ),
    Contract(
        identifier="ORD-01",
        name="reduction order",
        channel=Channel.BAND,
        scope="operators with a reduction, contraction or scan of length at least 2",
        precondition="the draw is order-sensitive: mixed magnitudes and signs along the reduction; ordinary "
        "draws do not fail otherwise than by rounding",
        postcondition="the error is one that a legal order of summation can produce",
        tolerance="gamma_N times the sum of absolute terms for linear operators, the Monte-Carlo spread "
        "otherwise; "
        "never a multiple of max|x|",
        oracle=_ORACLE64,
        measurement="mixed-magnitude, one-signed and sorted draws",
        violation="an error that no order of summation in the working precision explains",
        crosswalk="reduction-order classes C-ORD",
    ),
    Contract(
        identifier="ORD-02",
        name="determinism and aliasing",
        channel=Channel.TOLERANCE_FREE,
        scope="every operator that is deterministic in the reference",
        precondition="two runs of the reference are byte-identical",
        postcondition="repeated calls are byte-identical; outputs share memory with nothing that the "
        "reference's "
        "do not share it with; inputs are left as they were; an earlier result survives a later call",
        tolerance="none",
        oracle="the candidate itself on the same bytes, and the reference's own aliasing",
        measurement="repeats on fresh memory, after other work, in a second process, on a second stream "
        "and by "
        "graph replay on CUDA; result 1 is read again after call 2 on other inputs; other values are written "
        "into "
        "the tensors of an earlier call",
        violation="bytes that differ, an input that changed, a result that changed after the fact, an answer "
        "that was remembered by its tensor",
        crosswalk="determinism among C-ORD",
    ),
    Contract(
        identifier="ORD-03",
        name="cancellation",
        channel=Channel.BAND,
        scope="operators with a reduction, contraction or scan of length at least 2",
        precondition="the draw cancels: large terms of both signs whose sum is small",
        postcondition="the error stays within a relaxed multiple of the legal bound",
        tolerance="the ORD-01 bound relaxed by a factor of 4",
        oracle=_ORACLE64,
        measurement="paired +x, -x draws with a small remainder",
        violation="an error beyond even the relaxed bound",
        crosswalk="reduction-order classes C-ORD",
    ),
    Contract(
        identifier="EXC-01",
        name="non-finite propagation",
        channel=Channel.TOLERANCE_FREE,
        scope="operators with a floating input whose domain admits NaN or infinity",
        precondition="the float64 oracle, the working-precision reference and the reference with 0*x = 0 "
        "agree at "
        "the element",
        postcondition="the NaN, +Inf and -Inf masks of the outputs equal the reference's",
        tolerance="none",
        oracle=_WORKING,
        measurement="NaN, +Inf and -Inf placed first, last, interior, in a whole row and at tile edges",
        violation="swallowed (finite where NaN), minted (NaN where finite), wrong infinity; IEEE maxNum "
        "semantics "
        "is a sub-label: gone where the same kernel's maxima keep NaN",
        crosswalk="exceptional values, C-EXC-01",
    ),
    Contract(
        identifier="EXC-02",
        name="subnormals",
        channel=Channel.TOLERANCE_FREE,
        scope="copy and affine operators, where the reference keeps subnormal values; for NaN all operators "
        "with a floating input; for the sign of zero those that move, negate or make absolute",
        precondition="the reference returns a subnormal at the element in float32 and in float64; for NaN it "
        "is finite, and stays so with its subnormal inputs flushed",
        postcondition="the kernel returns a non-zero value there, no NaN, and zeros of the reference's sign",
        tolerance="none",
        oracle=_WORKING,
        measurement="subnormal values, and zeros of both signs, among ordinary ones",
        violation="flushed to zero (a flush that the tool chain imposes is its own sub-label), NaN, or a "
        "zero of the other sign",
        crosswalk="none (the label C-EXC-02 stands for out-of-bounds access there, which is guarded by "
        "red zones "
        "in every run here)",
    ),
    Contract(
        identifier="PRC-01",
        name="precision regime",
        channel=Channel.BAND,
        scope="each floating dtype that the candidate declares: fp32, and fp16 and bf16 where the "
        "executor is faithful",
        precondition="the reference ran without TF32 and narrowing the operands would be visible",
        postcondition="the root-mean-square error is that of the declared dtype, not of a narrower one",
        tolerance="the geometric mean between the reference's own error and that of the next narrower regime",
        oracle=_ORACLE64,
        measurement="generic draws (small integers are exact in TF32 and would hide it); averaged over "
        "elements",
        violation="an averaged error on the narrower side of the midpoint, which that regime explains",
        crosswalk="precision classes C-PRC",
    ),
    Contract(
        identifier="PRC-02",
        name="accumulator",
        channel=Channel.BAND,
        scope="reductions, contractions and scans that can be made at least 64 long",
        precondition="a narrow carry would be visible at the length",
        postcondition="the error grows as that of a float32 (or wider) accumulator",
        tolerance="the geometric mean between the wide and the narrow carry's error at that length",
        oracle=_ORACLE64,
        measurement="one-signed and shifted (mean/std near 1e3) draws at the longest length the budget "
        "allows",
        violation="an error that a carry held in fp16 or bf16, or a one-pass variance, explains",
        crosswalk="C-PRC-01 (accumulator precision)",
    ),
    Contract(
        identifier="RES-01",
        name="residency",
        channel=Channel.TOLERANCE_FREE,
        scope="every operator",
        precondition="the reference returns tensors",
        postcondition="outputs live on the device, in the dtype and in the memory layout that the "
        "reference returns",
        tolerance="none",
        oracle="the reference's output metadata",
        measurement="device, dtype and layout of each output, over two sizes",
        violation="another device, dtype or layout class",
        crosswalk="none; that language has no resource family",
    ),
    Contract(
        identifier="RES-02",
        name="resources",
        channel=Channel.TOLERANCE_FREE,
        scope="candidates that compile a kernel of their own (Triton, CuTe)",
        precondition="the kernel's own compiler is at hand; no GPU is needed",
        postcondition="the compiled kernel fits the target: registers a thread and a block, shared "
        "memory, threads, "
        "tensor-memory columns (512 on sm_100); spills are reported",
        tolerance="none: hardware limits",
        oracle="the compiler's metadata and cuobjdump's resource report",
        measurement="each launched specialisation compiled for sm_90 and sm_100; of a library's kernels, "
        "those that a traced call launches on the device",
        violation="a configuration that cannot be loaded on the target",
        crosswalk="none; that language has no resource family",
    ),
)

IDS: tuple[str, ...] = tuple(c.identifier for c in CONTRACTS)

SET_ASIDE: frozenset[str] = frozenset({"ORD-03", "PRC-02", "RES-01"})
"""Gates that are reported but carry no weight in the headline (relaxed backstop, graded, low signal)."""


def contract(identifier: str) -> Contract:
    """The contract with this id. Raises KeyError naming the ids that exist."""
    for c in CONTRACTS:
        if c.identifier == identifier:
            return c
    raise KeyError(f"no gate {identifier!r}; the gates are {', '.join(IDS)}")
