"""The native kernels for sm_100a: the stages of `sm90` with tcgen05.mma and accumulators in tensor memory.

Arguments, workspaces, variants and the roundings are those of `lethe.kernels.gdn.sm90`, so that either
architecture's kernels can be exchanged stage by stage. What differs is where a matrix product happens
(`tensor`): its result lives in tensor memory, its A operand there or in shared memory, and one thread issues
it and a commit that the others wait for. Each kernel allocates tensor memory once, at a static number of
columns, and all its places in there are constants (its module's map, checked by `lethe.ptx.lint`).

Compiled, launched and executed in `lethe.ptx` as `sm90`, with `architecture.SM100`. No GPU of this kind was
at hand when this was written: what is known of these kernels is what the compiler, the assembler, the static
checks and the emulator say; `lethe.kernels.gdn.prove` tries them where there is one.
"""
