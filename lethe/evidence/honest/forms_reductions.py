"""Other algorithms of normalisations, pooling, reductions, scans and softmax."""

from __future__ import annotations

from lethe.evidence.honest.form import SOFTMAX, Forms

DOUBLING = """
        step = 1
        while step < x.shape[-1]:
            x = torch.cat([x[..., :step], x[..., step:] {op} x[..., :-step]], dim=-1)
            step *= 2
        return x.clone() if step == 1 else x"""

FORMS: Forms = {
    "norm_batchnorm2d_eval": {
        "folded": (
            "x",
            """
        scale = self.bn.weight * torch.rsqrt(self.bn.running_var + self.bn.eps)
        shift = self.bn.bias - self.bn.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]""",
        ),
    },
    "norm_groupnorm": {
        "two_pass": (
            "x",
            """
        grouped = x.unflatten(1, (self.norm.num_groups, -1)).flatten(2)
        centred = grouped - grouped.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        y = (centred * torch.rsqrt(variance + self.norm.eps)).view(x.shape)
        return y * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]""",
        ),
    },
    "norm_l2_rows": {
        "library": ("x", "return torch.nn.functional.normalize(x, dim=-1, eps=self.eps)"),
        "reciprocal": (
            "x",
            "return x * (1.0 / x.square().sum(dim=-1, keepdim=True).sqrt().clamp_min(self.eps))",
        ),
    },
    "norm_layernorm": {
        "two_pass": (
            "x",
            """
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        return centred * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias""",
        ),
    },
    "norm_rmsnorm": {
        "quotient": (
            "x",
            """
        mean_square = x.square().sum(dim=-1, keepdim=True) / x.shape[-1]
        return x / torch.sqrt(mean_square + self.eps) * self.gain""",
        ),
    },
    "pooling_avg_1d": {
        "windows": ("x", "return x.unfold(2, *_window(self.pool)).mean(dim=-1)"),
    },
    "pooling_global_average": {
        "ones": ("x", "return x.flatten(2) @ x.new_ones(x[0, 0].numel()) / x[0, 0].numel()"),
        "rows_first": ("x", "return x.mean(dim=-1).mean(dim=-1)"),
    },
    "reduction_argmax": {
        "sorted": ("x", "return torch.sort(x, dim=-1, descending=True).indices[..., 0].clone()"),
        "topk": ("x", "return torch.topk(x, 1, dim=-1).indices[..., 0].clone()"),
    },
    "reduction_max": {
        "amax": ("x", "return x.amax(dim=1)"),
        "sorted": ("x", "return x.sort(dim=1).values[:, -1].clone()"),
        "cumulative": ("x", "return torch.cummax(x, dim=1).values[:, -1].clone()"),
    },
    "reduction_mean": {
        "ones": ("x", "return x @ x.new_ones(x.shape[-1], 1) / x.shape[-1]"),
        "cumulative": ("x", "return x.cumsum(dim=-1)[..., -1:] / x.shape[-1]"),
    },
    "reduction_sum": {
        "cumulative": ("x", "return x.cumsum(dim=1)[:, -1].clone()"),
        "ones": ("x", "return (x.new_ones(1, x.shape[1]) @ x)[:, 0]"),
        "sequential": (
            "x",
            """
        total = x[:, 0].clone()
        for i in range(1, x.shape[1]):
            total = total + x[:, i]
        return total""",
        ),
    },
    "reduction_variance": {
        "two_pass": (
            "x",
            """
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred.square().sum(dim=-1) / (x.shape[-1] - 1)""",
        ),
        "shifted": (
            "x",
            """
        first = x - x[..., :1]
        centred = first - first.mean(dim=-1, keepdim=True)
        return centred.square().sum(dim=-1) / (x.shape[-1] - 1)""",
        ),
    },
    "scan_cumprod": {"doubling": ("x", DOUBLING.format(op="*"))},
    "scan_cumsum": {
        "doubling": ("x", DOUBLING.format(op="+")),
        "blocked": (
            "x",
            """
        parts, carry = [], torch.zeros_like(x[..., :1])
        for part in x.split(64, dim=-1):
            parts.append(part.cumsum(dim=-1) + carry)
            carry = parts[-1][..., -1:]
        return torch.cat(parts, dim=-1)""",
        ),
    },
    "scan_gated_recurrence": {
        "doubling": (
            "a, b",
            """
        step = 1
        while step < b.shape[1]:
            b = torch.cat([b[:, :step], a[:, step:] * b[:, :-step] + b[:, step:]], dim=1)
            a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], dim=1)
            step *= 2
        return b.clone() if step == 1 else b""",
        ),
    },
    "scan_reverse_exclusive_cumsum": {
        "padded": (
            "x",
            """
        later = F.pad(x[..., 1:], (0, 1))
        return later.flip(-1).cumsum(dim=-1).flip(-1)""",
        ),
    },
    "softmax_log": {
        "explicit": (
            "x",
            """
        shifted = x - x.amax(dim=-1, keepdim=True)
        return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()""",
        ),
    },
    "softmax_logsumexp": {
        "explicit": (
            "x",
            """
        top = x.amax(dim=-1, keepdim=True)
        top = torch.where(top.isinf(), torch.zeros_like(top), top)
        return ((x - top).exp().sum(dim=-1, keepdim=True).log() + top).squeeze(-1)""",
        ),
    },
    "softmax_middle_dim": {
        "explicit": ("x", SOFTMAX.format(dim=1)),
        "last": ("x", "return torch.softmax(x.transpose(1, 2), dim=-1).transpose(1, 2).contiguous()"),
    },
    "softmax_row": {
        "explicit": ("x", SOFTMAX.format(dim=-1)),
        "powers_of_two": (
            "x",
            """
        weights = torch.exp2((x - x.amax(dim=-1, keepdim=True)) * 1.4426950408889634)
        return weights / weights.sum(dim=-1, keepdim=True)""",
        ),
    },
}
