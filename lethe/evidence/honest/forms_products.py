"""Other algorithms of activations, attention, convolutions, fused operators, losses and products."""

from __future__ import annotations

from lethe.evidence.honest.form import SOFTMAX, Forms

BLOCKED_K = """
        total = {first}
        for start in range(32, {length}, 32):
            total = total + {rest}
        return total"""

FORMS: Forms = {
    "activation_gelu": {
        "erf": ("x", "return 0.5 * x * (1.0 + torch.erf(x * 0.5**0.5))"),
        "erfc": ("x", "return 0.5 * x * torch.erfc(-x * 0.5**0.5)"),
    },
    "activation_leaky_relu": {
        "library": ("x", "return nn.functional.leaky_relu(x, self.negative_slope)"),
        "two_parts": ("x", "return torch.relu(x) - self.negative_slope * torch.relu(-x)"),
    },
    "activation_silu": {
        "quotient": ("x", "return x / (1.0 + torch.exp(-x))"),
        "library": ("x", "return nn.functional.silu(x)"),
    },
    "activation_softplus": {
        "logaddexp": ("x", "return torch.logaddexp(x, torch.zeros_like(x))"),
        "stable": ("x", "return torch.relu(x) + torch.log1p(torch.exp(-x.abs()))"),
    },
    "attention_single_head": {
        "online": (
            "q, k, v",
            """
        top = total = value = None
        for start in range(0, k.shape[-2], 16):
            scores = q @ k[:, start : start + 16].transpose(-2, -1) / q.shape[-1] ** 0.5
            peak = scores.amax(dim=-1, keepdim=True)
            new = peak if top is None else torch.maximum(top, peak)
            weights = torch.exp(scores - new)
            part, sums = weights @ v[:, start : start + 16], weights.sum(dim=-1, keepdim=True)
            if top is None:
                value, total = part, sums
            else:
                value, total = value * torch.exp(top - new) + part, total * torch.exp(top - new) + sums
            top = new
        return value / total""",
        ),
        "scaled_queries": (
            "q, k, v",
            "return torch.softmax(q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1), dim=-1) @ v",
        ),
    },
    "conv_1d": {
        "windows": (
            "x",
            """
        windows = x.unfold(2, self.conv.weight.shape[-1], 1)
        y = torch.einsum("bclk,ock->bol", windows, self.conv.weight) + self.conv.bias[:, None]
        return y.contiguous()""",
        ),
        "fourier": (
            "x",
            """
        k, n = self.conv.weight.shape[-1], x.shape[-1]
        spectrum = torch.fft.rfft(x, n=n + k)
        filters = torch.fft.rfft(self.conv.weight.flip(-1), n=n + k)
        product = torch.einsum("bcf,ocf->bof", spectrum, filters)
        return torch.fft.irfft(product, n=n + k)[..., k - 1 : n] + self.conv.bias[:, None]""",
        ),
    },
    "conv_2d_3x3": {
        "columns": (
            "x",
            """
        columns = nn.functional.unfold(x, 3, padding=1)
        weight = self.conv.weight.flatten(1)
        return (weight @ columns + self.conv.bias[:, None]).unflatten(-1, x.shape[-2:])""",
        ),
        "shifted": (
            "x",
            """
        height, width = x.shape[-2:]
        padded = nn.functional.pad(x, (1, 1, 1, 1))
        total = self.conv.bias[:, None, None]
        for i in range(3):
            for j in range(3):
                part = padded[..., i : i + height, j : j + width]
                total = total + torch.einsum("bchw,oc->bohw", part, self.conv.weight[:, :, i, j])
        return total.contiguous()""",
        ),
    },
    "conv_depthwise_causal_1d": {
        "taps": (
            "x",
            """
        padded = F.pad(x, (self.left, 0))
        total = self.conv.bias[:, None]
        for k in range(self.left + 1):
            total = total + self.conv.weight[:, 0, k, None] * padded[..., k : k + x.shape[-1]]
        return total""",
        ),
    },
    "conv_pointwise_2d": {
        "matrix": (
            "x",
            "return (self.mix.weight[:, :, 0, 0] @ x.flatten(2)).unflatten(-1, x.shape[-2:])",
        ),
    },
    "fused_add_rmsnorm": {
        "quotient": (
            "x, residual",
            """
        total = residual + x
        root = torch.sqrt((total * total).sum(dim=-1, keepdim=True) / total.shape[-1] + self.eps)
        return total / root * self.gain, total""",
        ),
    },
    "fused_linear_bias_gelu": {
        "erf": (
            "x",
            """
        y = x @ self.proj.weight.t() + self.proj.bias
        return 0.5 * y * (1.0 + torch.erf(y * 0.5**0.5))""",
        ),
    },
    "fused_rope_qk": {
        "complex": (
            "q, k",
            """
        turn = torch.complex(self.cos, self.sin)

        def rotate(x):
            turned = torch.complex(*x.chunk(2, dim=-1)) * turn
            return torch.cat([turned.real, turned.imag], dim=-1)

        return rotate(q), rotate(k)""",
        ),
    },
    "fused_scale_mask_softmax": {
        "explicit": (
            "scores, hidden",
            "x = torch.where(hidden, float('-inf'), self.scale * scores)" + SOFTMAX.format(dim=-1),
        ),
    },
    "fused_swiglu": {"quotient": ("a, b", "return a * b / (1.0 + torch.exp(-a))")},
    "loss_cross_entropy": {
        "gathered": (
            "logits, target",
            "return -torch.log_softmax(logits, dim=-1).gather(1, target[:, None]).mean()",
        ),
    },
    "loss_kl_divergence": {
        "entropies": (
            "log_probs, target",
            "return (torch.special.xlogy(target, target) - target * log_probs).sum() / target.shape[0]",
        ),
    },
    "loss_mse": {
        "dot": (
            "prediction, target",
            """
        d = (prediction - target).flatten()
        return d @ d / d.numel()""",
        ),
        "row_means": ("prediction, target", "return (prediction - target).square().mean(dim=-1).mean()"),
    },
    "matmul_batched": {
        "products": ("a, b", "return (a.unsqueeze(-1) * b.unsqueeze(1)).sum(dim=2)"),
        "blocked": (
            "a, b",
            BLOCKED_K.format(
                first="a[..., :32] @ b[:, :32]",
                rest="a[..., start : start + 32] @ b[:, start : start + 32]",
                length="a.shape[-1]",
            ),
        ),
    },
    "matmul_linear_bias": {
        "columns": ("x", "return (self.proj.weight @ x.t()).t().contiguous() + self.proj.bias"),
        "bias_first": ("x", "return torch.addmm(self.proj.bias, x, self.proj.weight.t())"),
    },
    "matmul_square": {
        "transposed": ("a, b", "return (b.t() @ a.t()).t().contiguous()"),
        "blocked": (
            "a, b",
            BLOCKED_K.format(
                first="a[:, :32] @ b[:32]",
                rest="a[:, start : start + 32] @ b[start : start + 32]",
                length="a.shape[-1]",
            ),
        ),
        "sequential": (
            "a, b",
            """
        total = a[:, :1] * b[:1]
        for k in range(1, a.shape[-1]):
            total = total + a[:, k : k + 1] * b[k : k + 1]
        return total""",
        ),
    },
    "matmul_transposed_b": {
        "einsum": ("a, b", 'return torch.einsum("mk,nk->mn", a, b)'),
        "products": ("a, b", "return (a[:, None] * b[None]).sum(dim=-1)"),
    },
    "matmul_vector": {
        "products": ("a, v", "return (a * v).sum(dim=-1)"),
        "reverse": ("a, v", "return (a.flip(-1) * v.flip(-1)).cumsum(dim=-1)[:, -1].clone()"),
    },
}
