# mypy: disable-error-code="assignment"
# (a tuple grows in an unrolled loop, which only Triton's compiler sees)
"""Backward kernels of the rotated head scan (C3), SISO and MIMO; names as in `head_forward`.

G is the adjoint of g. For one token: dh = G + sum_i q^i dy^i' (output ranks first), dU = late G + gamma dh,
then each input rank is contracted: dk^r = dU x^r, dx^r = dU' k^r; and G_{t-1} = a dh. A chunk is replayed
forward from the state it met, with a checkpoint every SPAN tokens, then swept backward; each token is
recomputed from the checkpoint before it. Sums over P blocks and chunks are partial and added in a fixed
order.
"""

import triton
import triton.language as tl

from lethe.kernels.mamba3.activations import silu, silu_slope
from lethe.kernels.mamba3.head_forward import projected, rotated


@triton.jit
def head_adjoint(
    dout_ptr, q_ptr, z_ptr, decay_ptr, bias_ptr, cos_ptr, sin_ptr, mimo_z_ptr, mimo_o_ptr, local_ptr,
    total_ptr,
    q_sb, q_sl, q_sr, q_sg, z_sb, z_sl, z_sh,
    length, chunk, chunks, heads, per_group, n, width, angles,
    HAS_Z: tl.constexpr, MIMO: tl.constexpr, RANK: tl.constexpr, STEP: tl.constexpr, OFFSET: tl.constexpr,
    NB: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to the adjoint of the state it met [B, NC, H, N, P]; its log-decay [B, NC, H].

    dout [B, L, H, P] is dense. Grid (B * NC, H, P blocks).
    """
    batch = (tl.program_id(0) // chunks).to(tl.int64)
    part = tl.program_id(0) % chunks
    head = tl.program_id(1)
    channel = tl.program_id(2) * PB + tl.arange(0, PB)
    inside = channel < width
    pair = tl.arange(0, NB)
    known = pair < n // 2
    first = pair * STEP
    second = first + OFFSET
    q_ptr += batch * q_sb + (head // per_group) * q_sg
    z_ptr += batch * z_sb + head * z_sh
    scalar = (batch * heads + head) * length
    begin = part * chunk
    end = tl.minimum(begin + chunk, length)
    Ga = tl.zeros([NB, PB], tl.float32)
    Gb = Ga
    total = 0.0
    for back in range(end - begin):
        t = end - 1 - back
        log = tl.load(decay_ptr + scalar + t)
        token = (batch * length + t) * heads + head
        cos = tl.load(cos_ptr + token * angles + pair, mask=pair < angles, other=1.0)
        sin = tl.load(sin_ptr + token * angles + pair, mask=pair < angles, other=0.0)
        dout = tl.load(dout_ptr + token * width + channel, mask=inside, other=0.0).to(tl.float32)
        for r in tl.static_range(RANK):
            rank = head * RANK + r
            dy = projected(dout, mimo_o_ptr + rank * width, channel, inside, MIMO)
            if HAS_Z:
                z = tl.load(z_ptr + t * z_sl + channel, mask=inside, other=0.0).to(tl.float32)
                dy *= silu(projected(z, mimo_z_ptr + rank * width, channel, inside, MIMO))
            qa, qb = rotated(q_ptr + t * q_sl + r * q_sr, bias_ptr + rank * n, first, second, known, cos, sin)
            Ga += qa[:, None] * dy[None, :]
            Gb += qb[:, None] * dy[None, :]
        Ga *= tl.exp(log)
        Gb *= tl.exp(log)
        total += log
    place = (batch * chunks + part) * heads + head
    both = known[:, None] & inside[None, :]
    tl.store(local_ptr + (place * n + first)[:, None] * width + channel[None, :], Ga, mask=both)
    tl.store(local_ptr + (place * n + second)[:, None] * width + channel[None, :], Gb, mask=both)
    tl.store(total_ptr + place, total)


@triton.jit
def _key_outer(
    k_ptr, bias_ptr, v, mimo_x_ptr, head, first, second, known, channel, inside, cos, sin, k_sr, n, width,
    MIMO: tl.constexpr, RANK: tl.constexpr, NB: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """U = sum over ranks of k^r x^r', as two tiles; k_ptr points at the token."""
    Ua = tl.zeros([NB, PB], tl.float32)
    Ub = Ua
    for r in tl.static_range(RANK):
        rank = head * RANK + r
        ka, kb = rotated(k_ptr + r * k_sr, bias_ptr + rank * n, first, second, known, cos, sin)
        x = projected(v, mimo_x_ptr + rank * width, channel, inside, MIMO)
        Ua += ka[:, None] * x[None, :]
        Ub += kb[:, None] * x[None, :]
    return Ua, Ub


@triton.jit
def head_gradient(
    dout_ptr, q_ptr, k_ptr, v_ptr, z_ptr, decay_ptr, gamma_ptr, late_ptr, q_bias_ptr, k_bias_ptr, cos_ptr,
    sin_ptr, D_ptr, mimo_x_ptr, mimo_z_ptr, mimo_o_ptr, entry_ptr, exit_ptr, scratch_ptr,
    dq_ptr, dk_ptr, dv_ptr, dz_ptr, ddecay_ptr, dgamma_ptr, dlate_ptr, dD_ptr, dmimo_ptr, dbegin_ptr,
    q_sb, q_sl, q_sr, q_sg, k_sb, k_sl, k_sr, k_sg, v_sb, v_sl, v_sh, z_sb, z_sl, z_sh,
    length, chunk, chunks, spans, heads, per_group, n, width, angles,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_ENTRY: tl.constexpr, HAS_EXIT: tl.constexpr,
    MIMO: tl.constexpr, RANK: tl.constexpr, STEP: tl.constexpr, OFFSET: tl.constexpr,
    NB: tl.constexpr, PB: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """All gradients of one chunk, for one P block of one head. Grid (B * NC, H, P blocks).

    Outputs: dv, dz [B, L, H, P] in io dtype. Float32 partial sums: dq, dk (rotated) [P blocks, B, L, H, R,
    N];
    ddecay, dgamma, dlate [P blocks, B, H, L]; dD [P blocks, B * NC, H]; dmimo (x, z, o) [3, B * NC, H, R, P].
    dbegin [B, H, N, P]. Scratch: [B, NC, spans, H, N, P] float32.
    """
    batches = tl.num_programs(0) // chunks
    batch = (tl.program_id(0) // chunks).to(tl.int64)
    part = tl.program_id(0) % chunks
    head = tl.program_id(1)
    block = tl.program_id(2)
    channel = block * PB + tl.arange(0, PB)
    inside = channel < width
    pair = tl.arange(0, NB)
    known = pair < n // 2
    both = known[:, None] & inside[None, :]
    first = pair * STEP
    second = first + OFFSET
    q_ptr += batch * q_sb + (head // per_group) * q_sg
    k_ptr += batch * k_sb + (head // per_group) * k_sg
    v_ptr += batch * v_sb + head * v_sh
    z_ptr += batch * z_sb + head * z_sh
    scalar = (batch * heads + head) * length
    partial = block.to(tl.int64) * batches * heads * length + scalar
    at_a = first[:, None] * width + channel[None, :]
    at_b = second[:, None] * width + channel[None, :]
    size = heads * n * width
    place = (batch * chunks + part) * size + head * n * width
    scratch_ptr += (batch * chunks + part) * spans * size + head * n * width
    begin = part * chunk
    end = tl.minimum(begin + chunk, length)
    ga = tl.zeros([NB, PB], tl.float32)
    gb = ga
    if HAS_ENTRY:
        ga = tl.load(entry_ptr + place + at_a, mask=both, other=0.0)
        gb = tl.load(entry_ptr + place + at_b, mask=both, other=0.0)
    for t in range(begin, end):
        if (t - begin) % SPAN == 0:
            slot = ((t - begin) // SPAN) * size
            tl.store(scratch_ptr + slot + at_a, ga, mask=both)
            tl.store(scratch_ptr + slot + at_b, gb, mask=both)
        token = (batch * length + t) * heads + head
        cos = tl.load(cos_ptr + token * angles + pair, mask=pair < angles, other=1.0)
        sin = tl.load(sin_ptr + token * angles + pair, mask=pair < angles, other=0.0)
        v = tl.load(v_ptr + t * v_sl + channel, mask=inside, other=0.0).to(tl.float32)
        Ua, Ub = _key_outer(
            k_ptr + t * k_sl, k_bias_ptr, v, mimo_x_ptr, head, first, second, known, channel, inside, cos,
            sin,
            k_sr, n, width, MIMO, RANK, NB, PB,
        )  # fmt: skip
        decay = tl.exp(tl.load(decay_ptr + scalar + t))
        weight = tl.load(gamma_ptr + scalar + t) + tl.load(late_ptr + scalar + t)
        ga = decay * ga + weight * Ua
        gb = decay * gb + weight * Ub
    tl.debug_barrier()  # the checkpoints are read back by the program that wrote them

    Ga = tl.zeros([NB, PB], tl.float32)
    Gb = Ga
    if HAS_EXIT:
        Ga = tl.load(exit_ptr + place + at_a, mask=both, other=0.0)
        Gb = tl.load(exit_ptr + place + at_b, mask=both, other=0.0)
    skip = 0.0
    if HAS_D:
        skip = tl.load(D_ptr + head).to(tl.float32)
    dD = tl.zeros([PB], tl.float32)
    zero = tl.zeros([PB], tl.float32)
    dmx = ()
    dmz = ()
    dmo = ()
    for _ in tl.static_range(RANK):
        dmx = dmx + (zero,)  # noqa: RUF005 (a jit function has no unpacking)
        dmz = dmz + (zero,)  # noqa: RUF005
        dmo = dmo + (zero,)  # noqa: RUF005
    for back in range(end - begin):
        t = end - 1 - back
        slot = ((t - begin) // SPAN) * size
        ga = tl.load(scratch_ptr + slot + at_a, mask=both, other=0.0)
        gb = tl.load(scratch_ptr + slot + at_b, mask=both, other=0.0)
        # Replay from the checkpoint: `ga, gb` becomes the state that token t met.
        for s in range(begin + (t - begin) // SPAN * SPAN, t):
            turn = ((batch * length + s) * heads + head) * angles + pair
            cos = tl.load(cos_ptr + turn, mask=pair < angles, other=1.0)
            sin = tl.load(sin_ptr + turn, mask=pair < angles, other=0.0)
            v = tl.load(v_ptr + s * v_sl + channel, mask=inside, other=0.0).to(tl.float32)
            Ua, Ub = _key_outer(
                k_ptr + s * k_sl, k_bias_ptr, v, mimo_x_ptr, head, first, second, known, channel, inside, cos,
                sin, k_sr, n, width, MIMO, RANK, NB, PB,
            )  # fmt: skip
            decay = tl.exp(tl.load(decay_ptr + scalar + s))
            weight = tl.load(gamma_ptr + scalar + s) + tl.load(late_ptr + scalar + s)
            ga = decay * ga + weight * Ua
            gb = decay * gb + weight * Ub
        token = (batch * length + t) * heads + head
        cos = tl.load(cos_ptr + token * angles + pair, mask=pair < angles, other=1.0)
        sin = tl.load(sin_ptr + token * angles + pair, mask=pair < angles, other=0.0)
        v = tl.load(v_ptr + t * v_sl + channel, mask=inside, other=0.0).to(tl.float32)
        dout = tl.load(dout_ptr + token * width + channel, mask=inside, other=0.0).to(tl.float32)
        z = zero
        if HAS_Z:
            z = tl.load(z_ptr + t * z_sl + channel, mask=inside, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(decay_ptr + scalar + t))
        gamma = tl.load(gamma_ptr + scalar + t)
        late = tl.load(late_ptr + scalar + t)
        Ua, Ub = _key_outer(
            k_ptr + t * k_sl, k_bias_ptr, v, mimo_x_ptr, head, first, second, known, channel, inside, cos,
            sin,
            k_sr, n, width, MIMO, RANK, NB, PB,
        )  # fmt: skip
        ha = decay * ga + gamma * Ua
        hb = decay * gb + gamma * Ub
        row = ((block.to(tl.int64) * batches + batch) * length + t) * heads + head
        dha = Ga
        dhb = Gb
        dz = zero
        dx = ()
        mx = ()
        mz = ()
        mo = ()
        for r in tl.static_range(RANK):
            rank = head * RANK + r
            qa, qb = rotated(
                q_ptr + t * q_sl + r * q_sr, q_bias_ptr + rank * n, first, second, known, cos, sin
            )
            x = projected(v, mimo_x_ptr + rank * width, channel, inside, MIMO)
            y = tl.sum(ha * qa[:, None] + hb * qb[:, None], 0) + skip * x
            dy = projected(dout, mimo_o_ptr + rank * width, channel, inside, MIMO)
            gated = y
            if HAS_Z:
                zr = projected(z, mimo_z_ptr + rank * width, channel, inside, MIMO)
                gated = y * silu(zr)
                dzr = dy * y * silu_slope(zr)
                dz += projected(dzr, mimo_z_ptr + rank * width, channel, inside, MIMO)
                mz = mz + (dmz[r] + dzr * z,)  # noqa: RUF005
                dy *= silu(zr)
            else:
                mz = mz + (dmz[r],)  # noqa: RUF005
            mo = mo + (dmo[r] + dout * gated,)  # noqa: RUF005
            dha += qa[:, None] * dy[None, :]
            dhb += qb[:, None] * dy[None, :]
            at = (row * RANK + r) * n
            tl.store(dq_ptr + at + first, tl.sum(ha * dy[None, :], 1), mask=known)
            tl.store(dq_ptr + at + second, tl.sum(hb * dy[None, :], 1), mask=known)
            dD += dy * x
            dx = dx + (skip * dy,)  # noqa: RUF005
        dUa = late * Ga + gamma * dha
        dUb = late * Gb + gamma * dhb
        tl.store(dlate_ptr + partial + t, tl.sum(tl.sum(Ga * Ua + Gb * Ub, 1), 0))
        tl.store(dgamma_ptr + partial + t, tl.sum(tl.sum(dha * Ua + dhb * Ub, 1), 0))
        tl.store(ddecay_ptr + partial + t, decay * tl.sum(tl.sum(dha * ga + dhb * gb, 1), 0))
        dv = zero
        for r in tl.static_range(RANK):
            rank = head * RANK + r
            ka, kb = rotated(
                k_ptr + t * k_sl + r * k_sr, k_bias_ptr + rank * n, first, second, known, cos, sin
            )
            x = projected(v, mimo_x_ptr + rank * width, channel, inside, MIMO)
            at = (row * RANK + r) * n
            tl.store(dk_ptr + at + first, tl.sum(dUa * x[None, :], 1), mask=known)
            tl.store(dk_ptr + at + second, tl.sum(dUb * x[None, :], 1), mask=known)
            d = dx[r] + tl.sum(dUa * ka[:, None] + dUb * kb[:, None], 0)
            mx = mx + (dmx[r] + d * v,)  # noqa: RUF005
            dv += projected(d, mimo_x_ptr + rank * width, channel, inside, MIMO)
        dmx = mx
        dmz = mz
        dmo = mo
        tl.store(dv_ptr + token * width + channel, dv.to(dv_ptr.dtype.element_ty), mask=inside)
        if HAS_Z:
            tl.store(dz_ptr + token * width + channel, dz.to(dz_ptr.dtype.element_ty), mask=inside)
        Ga = decay * dha
        Gb = decay * dhb
    cell = (batch * chunks + part) * heads + head
    tl.store(dD_ptr + block.to(tl.int64) * tl.num_programs(0) * heads + cell, tl.sum(dD, 0))
    plane = tl.num_programs(0).to(tl.int64) * heads * RANK * width
    for r in tl.static_range(RANK):
        at = (cell * RANK + r) * width + channel
        tl.store(dmimo_ptr + at, dmx[r], mask=inside)
        tl.store(dmimo_ptr + plane + at, dmz[r], mask=inside)
        tl.store(dmimo_ptr + 2 * plane + at, dmo[r], mask=inside)
    if part == 0:
        begin_place = (batch * heads + head) * n * width
        tl.store(dbegin_ptr + begin_place + at_a, Ga, mask=both)
        tl.store(dbegin_ptr + begin_place + at_b, Gb, mask=both)


@triton.jit
def rope_gradient(
    d_ptr, raw_ptr, bias_ptr, cos_ptr, sin_ptr, draw_ptr, dcos_ptr, dsin_ptr,
    raw_sb, raw_sl, raw_sr, raw_sg, blocks, length, heads, per_group, n, angles,
    ADD: tl.constexpr, RANK: tl.constexpr, STEP: tl.constexpr, OFFSET: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Add the P blocks of a rotated gradient, turn it back [B, L, H, R, N], and differentiate the rotation.

    With ADD the gradients of cos and sin [B, L, H, S] are added to what is there. Grid (B * L, H).
    """
    token = tl.program_id(0).to(tl.int64)
    batch = token // length
    t = token % length
    head = tl.program_id(1)
    pair = tl.arange(0, NB)
    known = pair < n // 2
    turned = pair < angles
    first = pair * STEP
    second = first + OFFSET
    turn = (token * heads + head) * angles + pair
    cos = tl.load(cos_ptr + turn, mask=turned, other=1.0)
    sin = tl.load(sin_ptr + turn, mask=turned, other=0.0)
    dcos = tl.zeros([NB], tl.float32)
    dsin = dcos
    if ADD:
        dcos = tl.load(dcos_ptr + turn, mask=turned, other=0.0)
        dsin = tl.load(dsin_ptr + turn, mask=turned, other=0.0)
    rows = tl.num_programs(0).to(tl.int64) * heads * RANK * n
    for r in tl.static_range(RANK):
        at = ((token * heads + head) * RANK + r) * n
        da = tl.zeros([NB], tl.float32)
        db = da
        for block in range(blocks):
            da += tl.load(d_ptr + block * rows + at + first, mask=known, other=0.0)
            db += tl.load(d_ptr + block * rows + at + second, mask=known, other=0.0)
        source = raw_ptr + batch * raw_sb + t * raw_sl + r * raw_sr + (head // per_group) * raw_sg
        bias = bias_ptr + (head * RANK + r) * n
        a = tl.load(source + first, mask=known, other=0.0).to(tl.float32)
        b = tl.load(source + second, mask=known, other=0.0).to(tl.float32)
        a += tl.load(bias + first, mask=known, other=0.0).to(tl.float32)
        b += tl.load(bias + second, mask=known, other=0.0).to(tl.float32)
        dcos += a * da + b * db
        dsin += a * db - b * da
        tl.store(draw_ptr + at + first, cos * da + sin * db, mask=known)
        tl.store(draw_ptr + at + second, cos * db - sin * da, mask=known)
    tl.store(dcos_ptr + turn, dcos, mask=turned)
    tl.store(dsin_ptr + turn, dsin, mask=turned)
