"""A chunked linear recurrence for sm_100a whose state never leaves tensor memory.

For a sequence of chunks of 128 tokens, with one decay per chunk:

    H_c = d_c H_{c-1}                       the state [width, depth], decayed
    Y_i = H_c q_i + sum over j <= i of (k_j . q_i) v_j        i, j tokens of chunk c
    H_c += sum over j of v_j k_j^T

(A decay per token adds two elementwise scalings and no new instruction.) Everything is kept transposed, state
``[width, depth]`` and output ``Y^T[width, tokens]``, so that ``width`` = 128 are the lanes of tensor memory.
A chunk is four GEMMs:

1. scores  S[i, j] = Q K^T                 (128 x 128, both operands in shared memory)
2. inter   Y^T  = half(H) Q^T              (A in tensor memory)
3. intra   Y^T += V^T mask(S)^T            (A = V^T and B = mask(S), both in shared memory)
4. update  H   += V^T K                    (accumulates onto the decayed float32 state)

Warp 4 loads, warp 5 multiplies, warps 0-3 (a thread = a lane) do three things per chunk: decay H and leave
half(H) beside it, mask S and write it to shared memory, store Y. The masked scores are written by ordinary
stores and read by the tensor core, so a ``fence.proxy.async`` stands between (PTX ISA, async proxy): silicon
often forgives its absence, `lethe.ptx` does not.
"""

import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blackwell_helpers

from lethe.ptx.examples import parts

CHUNK, WIDTH = 128, 128
THREADS = 192
CONVERTERS = 4
LOADER, MULTIPLIER = 4, 5
COLUMN_S, COLUMN_Y, COLUMN_H, COLUMN_P, COLUMNS = 0, 128, 256, 320, 512


class ScanSm100:
    """Call with Q[T, depth], K[T, depth], V[T, 128] (16 bit), decay[T / 128], Y[T, 128], H[128, depth]
    (float32).

    ``depth``: 64. T must be a multiple of 128. H receives the final state; the initial state is zero.
    """

    def __init__(self, dtype: type[cutlass.Numeric], depth: int = 64, stages: int = 2):
        self.dtype = dtype
        self.depth = depth
        self.stages = stages
        self.scores = (CHUNK, CHUNK, depth)
        self.inter = (WIDTH, CHUNK, depth)
        self.intra = (WIDTH, CHUNK, CHUNK)
        self.update = (WIDTH, depth, CHUNK)

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        decay: cute.Tensor,
        y: cute.Tensor,
        state: cute.Tensor,
    ):
        mn = OperandMajorMode.MN
        scores = parts.mma_sm100(self.dtype, self.scores)
        inter = parts.mma_sm100(self.dtype, self.inter, tcgen05.OperandSource.TMEM)
        intra = parts.mma_sm100(self.dtype, self.intra, a_major=mn)
        update = parts.mma_sm100(self.dtype, self.update, a_major=mn, b_major=mn)
        transposed = lambda t: cute.make_tensor(  # noqa: E731
            t.iterator, cute.make_layout((t.shape[1], t.shape[0]), stride=(1, t.shape[1]))
        )
        layout_q, tma_q, tiles_q = parts.load_a(scores, self.scores, q, self.stages)
        layout_k, tma_k, tiles_k = parts.load_b(scores, self.scores, k, self.stages)
        layout_v, tma_v, tiles_v = parts.load_a(intra, self.intra, transposed(v), self.stages)
        layout_qt = blackwell_helpers.make_smem_layout_b(inter, self.inter, self.dtype, self.stages)
        layout_kt = blackwell_helpers.make_smem_layout_b(update, self.update, self.dtype, self.stages)
        layout_s = blackwell_helpers.make_smem_layout_b(intra, self.intra, self.dtype, 1)
        layout_p = blackwell_helpers.make_smem_layout_a(inter, self.inter, self.dtype, 1)
        self.kernel(
            (scores, inter, intra, update),
            (tma_q, tma_k, tma_v),
            (tiles_q, tiles_k, tiles_v),
            (decay, transposed(y), state),
            (layout_q, layout_k, layout_v, layout_qt, layout_kt, layout_s, layout_p),
        ).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, mmas: tuple, atoms: tuple, sources: tuple, results: tuple, layouts: tuple):
        scores, inter, intra, update = mmas
        tma_q, tma_k, tma_v = atoms
        q, k, v = sources
        decay, yt, state = results
        layout_q, layout_k, layout_v, layout_qt, layout_kt, layout_s, layout_p = layouts
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())

        shared = memory.SmemAllocator()
        full = shared.allocate_array(cutlass.Int64, self.stages)
        empty = shared.allocate_array(cutlass.Int64, self.stages)
        have_scores = shared.allocate_array(cutlass.Int64, 1)
        have_state = shared.allocate_array(cutlass.Int64, 1)
        have_masked = shared.allocate_array(cutlass.Int64, 1)
        have_output = shared.allocate_array(cutlass.Int64, 1)
        address = shared.allocate_array(cutlass.Int32, 1)
        shared_q = shared.allocate_tensor(self.dtype, layout_q.outer, 1024, layout_q.inner)
        shared_k = shared.allocate_tensor(self.dtype, layout_k.outer, 1024, layout_k.inner)
        shared_v = shared.allocate_tensor(self.dtype, layout_v.outer, 1024, layout_v.inner)
        shared_s = shared.allocate_tensor(self.dtype, layout_s.outer, 1024, layout_s.inner)
        # The same bytes as the B operands of the inter and update GEMMs.
        shared_qt = cute.make_tensor(shared_q.iterator, layout_qt.outer)
        shared_kt = cute.make_tensor(shared_k.iterator, layout_kt.outer)

        if warp == LOADER:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, 1)
                cute.arch.mbarrier_init(have_scores, 1)
                cute.arch.mbarrier_init(have_output, 1)
                cute.arch.mbarrier_init(have_state, CONVERTERS)
                cute.arch.mbarrier_init(have_masked, CONVERTERS)
            cute.arch.mbarrier_init_fence()
            cpasync.prefetch_descriptor(tma_q)
            cpasync.prefetch_descriptor(tma_k)
            cpasync.prefetch_descriptor(tma_v)
        if warp == MULTIPLIER:
            cute.arch.alloc_tmem(COLUMNS, address)
            cute.arch.relinquish_tmem_alloc_permit()
            parts.before_thread_sync()
        cute.arch.sync_threads()
        parts.after_thread_sync()

        base = cute.arch.retrieve_tmem_ptr(cutlass.Float32, parts.TMEM_ALIGNMENT, address)
        score = parts.accumulator(scores, self.scores, base, COLUMN_S)
        output = parts.accumulator(inter, self.inter, base, COLUMN_Y)
        hidden = parts.accumulator(update, self.update, base, COLUMN_H)
        half_hidden = parts.operand_in_tmem(inter, layout_p, base, COLUMN_P)
        tiles_q = scores.get_slice(0).partition_A(cute.local_tile(q, (CHUNK, self.depth), (None, 0)))
        tiles_k = scores.get_slice(0).partition_B(cute.local_tile(k, (CHUNK, self.depth), (None, 0)))
        tiles_v = intra.get_slice(0).partition_A(cute.local_tile(v, (WIDTH, CHUNK), (0, None)))
        to_q, from_q = parts.partition(tma_q, shared_q, tiles_q)
        to_k, from_k = parts.partition(tma_k, shared_k, tiles_k)
        to_v, from_v = parts.partition(tma_v, shared_v, tiles_v)
        operand_q, operand_k = scores.make_fragment_A(shared_q), scores.make_fragment_B(shared_k)
        operand_qt, operand_kt = inter.make_fragment_B(shared_qt), update.make_fragment_B(shared_kt)
        operand_v, operand_s = intra.make_fragment_A(shared_v), intra.make_fragment_B(shared_s)
        operand_vt = update.make_fragment_A(shared_v)
        chunks = cute.size(from_q, mode=[1])
        chunk_bytes = (
            parts.stage_bytes(self.dtype, layout_q)
            + parts.stage_bytes(self.dtype, layout_k)
            + parts.stage_bytes(self.dtype, layout_v)
        )

        if warp == LOADER:
            for chunk in cutlass.range(chunks, unroll=1):
                stage = chunk % self.stages
                cute.arch.mbarrier_wait(empty + stage, (chunk // self.stages) % 2 ^ 1)
                parts.expect(full + stage, chunk_bytes)
                cute.copy(tma_q, from_q[None, chunk], to_q[None, stage], tma_bar_ptr=full + stage)
                cute.copy(tma_k, from_k[None, chunk], to_k[None, stage], tma_bar_ptr=full + stage)
                cute.copy(tma_v, from_v[None, chunk], to_v[None, stage], tma_bar_ptr=full + stage)

        if warp == MULTIPLIER:
            for chunk in cutlass.range(chunks, unroll=1):
                stage = chunk % self.stages
                phase = chunk % 2
                at = (None, None, None, stage)
                cute.arch.mbarrier_wait(full + stage, (chunk // self.stages) % 2)
                scores = parts.gemm(scores, score, operand_q[at], operand_k[at], False)
                parts.commit(have_scores)
                # The state is decayed and the last chunk's output has been read: both precede this arrival.
                cute.arch.mbarrier_wait(have_state, phase)
                parts.after_thread_sync()
                inter = parts.gemm(inter, output, half_hidden[None, None, None, 0], operand_qt[at], False)
                cute.arch.mbarrier_wait(have_masked, phase)
                parts.after_thread_sync()
                intra = parts.gemm(intra, output, operand_v[at], operand_s[None, None, None, 0], True)
                update = parts.gemm(update, hidden, operand_vt[at], operand_kt[at], True)
                parts.commit(empty + stage)
                parts.commit(have_output)

        if warp < CONVERTERS:
            self.convert(
                thread,
                chunks,
                decay,
                yt,
                state,
                score,
                output,
                hidden,
                half_hidden,
                shared_s,
                have_scores,
                have_state,
                have_masked,
                have_output,
            )
        cute.arch.sync_threads()
        if warp == MULTIPLIER:
            parts.after_thread_sync()
            cute.arch.dealloc_tmem(base, COLUMNS)

    @cute.jit
    def convert(
        self,
        thread,
        chunks,
        decay,
        yt,
        state,
        score,
        output,
        hidden,
        half_hidden,
        shared_s,
        have_scores,
        have_state,
        have_masked,
        have_output,
    ):
        """Warps 0-3: decay the state, mask the scores, store the output; one thread per lane."""
        columns = (None, None)
        load_h, hidden_rows, out_h = parts.load_rows(
            thread,
            tcgen05.Repetition.x32,
            hidden[columns, 0, 0],
            cute.make_tensor(state.iterator, state.layout),
        )
        save_h, shape_h, hidden_targets = parts.store_rows(
            thread, tcgen05.Repetition.x32, hidden[columns, 0, 0]
        )
        save_p, shape_p, half_targets = parts.store_rows(
            thread, tcgen05.Repetition.x16, half_hidden[None, None, None, 0]
        )
        registers_h = cute.make_rmem_tensor(shape_h, cutlass.Float32)
        view_h = cute.make_tensor(registers_h.iterator, cute.make_layout(out_h.shape))
        half_h = cute.make_rmem_tensor(shape_p, self.dtype)
        load_s, score_rows, like_s = parts.load_rows(
            thread, tcgen05.Repetition.x32, score[columns, 0, 0], score[columns, 0, 0]
        )
        registers_s = cute.make_rmem_tensor(like_s.shape, cutlass.Float32)
        half_s = cute.make_rmem_tensor(cute.make_layout(CHUNK), self.dtype)

        registers_h.fill(0.0)
        for chunk in cutlass.range(chunks, unroll=1):
            phase = chunk % 2
            if chunk > 0:
                factor = decay[chunk]
                cute.copy(load_h, hidden_rows, view_h)
                cute.arch.fence_view_async_tmem_load()
                registers_h.store(registers_h.load() * factor)
            cute.copy(save_h, registers_h, hidden_targets)
            half_h.store(cute.make_tensor(registers_h.iterator, half_h.layout).load().to(self.dtype))
            cute.copy(save_p, half_h, half_targets)
            cute.arch.fence_view_async_tmem_store()
            parts.before_thread_sync()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(have_state)

            cute.arch.mbarrier_wait(have_scores, phase)
            parts.after_thread_sync()
            cute.copy(load_s, score_rows, registers_s)
            cute.arch.fence_view_async_tmem_load()
            for j in cutlass.range_constexpr(CHUNK):
                half_s[j] = (registers_s[j] if j <= thread else cutlass.Float32(0.0)).to(self.dtype)
            for block in cutlass.range_constexpr(CHUNK // 16):
                cute.autovec_copy(
                    cute.make_tensor(half_s.iterator + 16 * block, cute.make_layout(16)),
                    shared_s[(thread, None), 0, block, 0],
                )
            cute.arch.fence_proxy("async.shared", space="cta")
            parts.before_thread_sync()
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(have_masked)

            cute.arch.mbarrier_wait(have_output, phase)
            parts.after_thread_sync()
            tile = cute.local_tile(yt, (WIDTH, CHUNK), (0, chunk))
            load_y, output_rows, target = parts.load_rows(
                thread, tcgen05.Repetition.x32, output[columns, 0, 0], tile
            )
            registers_y = cute.make_rmem_tensor(target.shape, cutlass.Float32)
            cute.copy(load_y, output_rows, registers_y)
            cute.arch.fence_view_async_tmem_load()
            cute.autovec_copy(registers_y, target)

        cute.copy(load_h, hidden_rows, view_h)
        cute.arch.fence_view_async_tmem_load()
        cute.autovec_copy(view_h, out_h)
        parts.before_thread_sync()
