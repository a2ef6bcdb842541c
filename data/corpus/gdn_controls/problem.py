import torch
import torch.nn as nn
import torch.nn.functional as F


def operand(t):
    """What a product of 16-bit operands takes of t."""
    return t.to(torch.bfloat16).float()


def half(t, peak):
    """float16 of t in units of a power of two that brings `peak` below 16: what is 2^-18 of it is subnormal."""
    unit = torch.exp2(torch.floor(torch.log2(peak.clamp(2.0**-100, 2.0**100))) - 3.0)
    return (t / unit).to(torch.float16).to(t.dtype) * unit


def narrow(t):
    """float16 of what is of order one."""
    return t.to(torch.float16).to(t.dtype)


class Narrow(torch.autograd.Function):
    """Scaled keys and queries and the triangles as products take them: plain float16, for they are of order one."""

    @staticmethod
    def forward(ctx, t):
        return narrow(t)

    @staticmethod
    def backward(ctx, g):
        return g


def back_to(g, bounds):
    """What comes back to a triangle: one power a chunk, from what is multiplied to give it, whose largest
    magnitudes are in `bounds`."""
    return half(g, torch.maximum(bounds[0] * bounds[1], of_chunk(g)) / 16)


class Scores(torch.autograd.Function):
    """left_i . right_j under the decay from j to i, one a channel, as products of operands that carry it; every
    operand is rounded with its decay. What comes back to the decay itself is `Decayed`'s."""

    @staticmethod
    def forward(ctx, left, right, decay, bounds):
        ctx.save_for_backward(left, right, decay)
        ctx.bounds = bounds
        return (narrow(left)[..., :, None, :] * narrow(right[..., None, :, :] * decay)).sum(-1)

    @staticmethod
    def backward(ctx, g):
        left, right, decay = ctx.saved_tensors
        g = back_to(g, ctx.bounds)[..., None]
        rows = (g * narrow(right[..., None, :, :] * decay)).sum(-2)
        return rows, (g * narrow(left[..., :, None, :] * decay)).sum(-3), None, None


class Weighted(torch.autograd.Function):
    """The same under one decay a head, which the products carry and the operands do not."""

    @staticmethod
    def forward(ctx, left, right, decay, bounds):
        ctx.save_for_backward(left, right, decay)
        ctx.bounds = bounds
        return narrow(left) @ narrow(right).mT * decay

    @staticmethod
    def backward(ctx, g):
        left, right, decay = ctx.saved_tensors
        g = back_to(g * decay, ctx.bounds)
        return g @ narrow(right), g.mT @ narrow(left), None, None


class Adjoint(torch.autograd.Function):
    """t as it is; `peak` becomes the largest magnitude of what comes back to it, by chunk."""

    @staticmethod
    def forward(ctx, t, peak):
        ctx.peak = peak
        return t.clone()

    @staticmethod
    def backward(ctx, g):
        ctx.peak.copy_(of_chunk(g))
        return g, None


class Decayed(torch.autograd.Function):
    """t as it is, where it is going to be multiplied by e^c (sign 1) or e^-c (sign -1).

    The gradient of c is the product of t and its gradient: a difference of such products, summed back over
    the tokens, is how the recurrence's kernels form that of g."""

    @staticmethod
    def forward(ctx, t, c, sign):
        ctx.save_for_backward(t, c)
        ctx.sign = sign
        return t.clone()

    @staticmethod
    def backward(ctx, g):
        t, c = ctx.saved_tensors
        return g, (ctx.sign * t * g).sum_to_size(c.shape), None


class Kept(torch.autograd.Function):
    """e^c S, and for c the product of the state that enters and the adjoint of the one that leaves, as they
    are handed on."""

    @staticmethod
    def forward(ctx, S, c, peak, back):
        ctx.save_for_backward(S, c, peak, back)
        return torch.exp(c) * S

    @staticmethod
    def backward(ctx, g):
        S, c, peak, back = ctx.saved_tensors
        both = half(S, peak) * half(g, torch.maximum(back, largest(g)))
        return torch.exp(c) * g, torch.exp(c) * both.sum_to_size(c.shape), None, None


class Held(torch.autograd.Function):
    """A state, or what is added to one, as products take it: float16 with one power for a whole sequence.

    What comes back for the states of a chunk has a power of the chunk's own."""

    @staticmethod
    def forward(ctx, t, peak):
        return half(t, peak)

    @staticmethod
    def backward(ctx, g):
        return half(g, largest(g) / 16), None


class Returned(torch.autograd.Function):
    """The same for the adjoint of a state, on its way back."""

    @staticmethod
    def forward(ctx, t, peak):
        ctx.save_for_backward(peak)
        return t.clone()

    @staticmethod
    def backward(ctx, g):
        (peak,) = ctx.saved_tensors
        return half(g, torch.maximum(peak, largest(g))), None


def largest(t):
    """Of each sequence and head [B, H, ...], the largest finite magnitude."""
    t = t.detach().abs().nan_to_num(0.0, 0.0, 0.0)
    return t.amax(tuple(range(2, t.dim())), keepdim=True).reshape(*t.shape[:2], 1, 1)


def of_chunk(t):
    """Of each chunk [B, H, n, ., .], the largest finite magnitude."""
    return t.detach().abs().nan_to_num(0.0, 0.0, 0.0).amax((-2, -1), keepdim=True)


def inverse(M):
    """(I + M)^-1 - I of a strictly lower triangle, from blocks of one row to all, by products alone."""
    size = M.shape[-1]
    rows = torch.arange(size, device=M.device)
    identity = torch.eye(size, dtype=M.dtype, device=M.device)
    T = identity
    width = 1
    while width < size:
        block = rows // width
        below = (block[:, None] % 2 == 1) & (block[:, None] == block + 1)
        T = T - T @ (M * below) @ T
        width *= 2
    return T - identity


def recurrence(q, k, v, g, b, w, S, do, dfinal, scale, chunk):
    """S_t = (I - k (b*k)^T) Diag(e^g) S + k (w*v)^T, o_t = scale S_t^T q, in its chunkwise WY form.

    q, k [B, L, H, dk]; v [B, L, H, dv]; g, b, w one number a head or a channel, b None without erasure;
    S [B, H, dk, dv]. Returns o and the last state. A chunk that is cut short is filled with zeros. The largest
    terms, the diagonals of both triangles, are not rounded and added by themselves.
    """
    length = q.shape[1]

    def cut(t):
        return F.pad(t.transpose(1, 2), (0, 0, 0, -length % chunk)).unflatten(2, (-1, chunk))

    q, k, u, c = (cut(t) for t in (q, k, operand(w * v), g))
    d = cut(operand(do))
    c = c.cumsum(-2)
    at, last = c.detach(), c[..., -1:, :]
    seen = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = torch.exp((at[..., :, None, :] - at[..., None, :, :]).masked_fill(~seen[:, :, None], -torch.inf))

    def scores(left, right, *bounds):
        """left_i . right_j under the decay from j to i; nothing comes from later tokens."""
        if decay.shape[-1] == 1:
            return Weighted.apply(left, right, decay[..., 0], bounds)
        return Scores.apply(left, right, decay, bounds)

    own, written = scale * (q * k).sum(-1, keepdim=True), torch.zeros_like(of_chunk(d))
    back = torch.zeros_like(written)
    q, later = Decayed.apply(q, c, 1), Decayed.apply(k, c, -1)
    if b is not None:
        p = Decayed.apply(operand(cut(b) * k), c, 1)
        T = Narrow.apply(inverse(scores(p, later, written, back) * seen.tril(-1)))
        read = Narrow.apply(p * torch.exp(at))
    A = Narrow.apply(scale * scores(q, later, written, 2 * scale * of_chunk(d)) * seen.tril(-1))
    q = Narrow.apply(q * torch.exp(at))
    k = Narrow.apply(Decayed.apply(later * torch.exp(at[..., -1:, :] - at), last, 1))
    peak = torch.maximum(largest(S), 8 * largest(k) * largest(u))
    returned = torch.maximum(largest(dfinal), scale * largest(q.detach().mT @ d))
    rows = []
    for n in range(q.shape[2]):
        held, N = Held.apply(S, peak), u[:, :, n]
        if b is not None:
            E = Adjoint.apply(operand(N - read[:, :, n] @ held), back[:, :, n])
            N = E + T[:, :, n] @ E
        written[:, :, n] = of_chunk(N)
        N = Held.apply(N, peak)
        rows.append(scale * (q[:, :, n] @ held) + A[:, :, n] @ N + own[:, :, n] * N)
        S = Kept.apply(S, last[:, :, n].mT, peak, returned) + Returned.apply(k[:, :, n].mT @ N, returned)
    return torch.cat(rows, 2)[:, :, :length].transpose(1, 2), S


def gradients(run, operands, upstream):
    """Gradients of run(*operands) with respect to each operand, detached."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in operands]
        return [g.detach() for g in torch.autograd.grad(run(*leaves), leaves, [g.detach() for g in upstream])]


class Model(nn.Module):
    chunk = 64

    def __init__(self, heads):
        super().__init__()
        if "dt" in GATES:
            self.A_log = nn.Parameter(torch.linspace(-2.0, 0.5, heads))

    def forward(self, q, k, v, initial, do, dfinal, *gates):
        keys, values = declared()
        if q.shape[-1] not in keys or v.shape[-1] not in values:
            keys, values = (" or ".join(map(str, sizes)) for sizes in (keys, values))
            raise ValueError(f"declared for {keys} keys and {values} values a head")

        def run(q, k, v, initial, *rest):
            q, k = (operand(F.normalize(t, dim=-1)) for t in (q, k))
            given = {n: t if kind == "channel" else t[..., None] for (n, kind), t in zip(GATES.items(), rest)}
            scale, b, w = q.shape[-1] ** -0.5, None, torch.ones_like(v[..., :1])
            g = torch.zeros_like(w)
            if "g" in given:
                g = -5.0 * torch.sigmoid(given["g"] - 5.0)
            if "beta" in given:
                b = w = operand(torch.sigmoid(given["beta"]))
            if "b" in given:
                b, w = (operand(torch.sigmoid(given[name])) for name in ("b", "w"))
            if "dt" in given:
                dt = torch.sigmoid(given["dt"] - 3.0)
                scale, g, w = 1.0, dt * -torch.exp(rest[-1])[:, None], operand(dt)
            o, final = recurrence(q, k, operand(v), g, b, w, initial, do, dfinal, scale, self.chunk)
            return [o.to(torch.bfloat16), final]

        operands = (q, k, v, initial, *gates, *self.parameters())
        return [*run(*operands), *gradients(run, operands, [do.to(torch.bfloat16), dfinal])]


batch = 1
length = 150
heads = 2
keys = 128
values = 128


def get_inputs():
    gate = {
        "head": (batch, length, heads),
        "g": (batch, length, heads, keys),
        "b": (batch, length, heads, keys),
        "w": (batch, length, heads, values),
    }
    return [
        torch.randn(batch, length, heads, keys),
        torch.randn(batch, length, heads, keys),
        torch.randn(batch, length, heads, values),
        torch.randn(batch, heads, keys, values),
        torch.randn(batch, length, heads, values),
        torch.randn(batch, heads, keys, values),
        *(torch.randn(gate[name if GATES[name] == "channel" else "head"]) for name in GATES),
    ]


def get_init_inputs():
    return [heads]
