"""References for functions of published libraries that the house corpus has no problem for.

KernelBench format, plain torch, float32. The recurrences are written step by step, as their papers define
them: retention (arXiv:2307.08621), gated linear attention (arXiv:2312.06635), the delta rule
(arXiv:2406.06484) and its gated form (arXiv:2412.06464), HGRN (arXiv:2311.04823). The losses on a target
distribution pass no gradient to the target, as training libraries have it.
"""

from __future__ import annotations

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"

ELEMENTWISE = {
    "geglu_tanh": (
        ("a", "b"),
        'return F.gelu(a, approximate="tanh") * b',
        "return [torch.randn(batch_size, width), torch.randn(batch_size, width)]",
    ),
    "relu_squared": (("x",), "return torch.relu(x).square()", "return [torch.randn(batch_size, width)]"),
    "jensen_shannon": (
        ("log_q", "log_p"),
        "log_p = log_p.detach()\n"
        "        log_m = torch.log(0.5 * (log_p.exp() + log_q.exp()))\n"
        "        terms = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)\n"
        "        return 0.5 * terms.sum() / log_q.shape[0]",
        "shape = (batch_size, width)\n"
        "    return [torch.randn(shape).log_softmax(-1), torch.randn(shape).log_softmax(-1)]",
    ),
    "total_variation": (
        ("p", "q"),
        "return 0.5 * (p - q.detach()).abs().sum() / p.shape[0]",
        "shape = (batch_size, width)\n"
        "    return [torch.randn(shape).softmax(-1), torch.randn(shape).softmax(-1)]",
    ),
    "l2_rows_inside": (
        ("x",),
        "return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + self.eps)",
        "return [torch.randn(batch_size, width)]",
    ),
}
"""Name -> (arguments, forward, inputs) of operators on a matrix."""

RECURRENT = {
    "linear_attention": ((), "state = state + outer"),
    "retention": ((), "state = decay[:, None, None] * state + outer"),
    "gated_by_head": (("g",), "state = g[:, t, :, None, None].exp() * state + outer"),
    "gated_by_key": (("gk",), "state = gk[:, t, :, :, None].exp() * state + outer"),
    "delta_rule": (
        ("beta",),
        "old = torch.einsum('bhk,bhkv->bhv', k[:, t], state)\n"
        "            new = beta[:, t, :, None] * (v[:, t] - old)\n"
        "            state = state + torch.einsum('bhk,bhv->bhkv', k[:, t], new)",
    ),
    "gated_delta_rule": (
        ("g", "beta"),
        "state = g[:, t, :, None, None].exp() * state\n"
        "            old = torch.einsum('bhk,bhkv->bhv', k[:, t], state)\n"
        "            new = beta[:, t, :, None] * (v[:, t] - old)\n"
        "            state = state + torch.einsum('bhk,bhv->bhkv', k[:, t], new)",
    ),
}
"""Name -> (further arguments, how the state of one step follows from the last)."""

GATES = {
    "g": "F.logsigmoid(torch.randn(batch_size, steps, heads))",
    "gk": "F.logsigmoid(torch.randn(batch_size, steps, heads, head_dim))",
    "beta": "torch.rand(batch_size, steps, heads)",
}


def _elementwise(arguments: tuple[str, ...], forward: str, inputs: str) -> str:
    eps = "eps" if "self.eps" in forward else ""
    held = f"    def __init__(self, {eps}):\n        super().__init__()\n        self.eps = eps\n\n"
    init = held if eps else ""
    return (
        f"{HEAD}class Model(nn.Module):\n{init}"
        f"    def forward(self, {', '.join(arguments)}):\n        {forward}\n\n\n"
        f"batch_size = 32\nwidth = 640\n{'eps = 1e-6' + chr(10) if eps else ''}\n\n"
        f"def get_inputs():\n    {inputs}\n\n\ndef get_init_inputs():\n    return [{eps}]\n"
    )


def _recurrent(name: str, further: tuple[str, ...], step: str) -> str:
    decay = ""
    if name == "retention":
        decay = (
            "        heads = torch.arange(q.shape[2], device=q.device, dtype=q.dtype)\n"
            "        decay = 1 - torch.exp2(-5 - heads)\n"
        )
    outer = "            outer = torch.einsum('bhk,bhv->bhkv', k[:, t], v[:, t])\n" if "outer" in step else ""
    keys = "F.normalize(torch.randn(*shape), dim=-1)" if "delta" in name else "torch.randn(*shape)"
    gates = "".join(f", {GATES[g]}" for g in further)
    return (
        f"{HEAD}class Model(nn.Module):\n"
        f"    def forward(self, q, k, v{''.join(', ' + g for g in further)}):\n"
        f"        scale = q.shape[-1] ** -0.5\n{decay}"
        "        state = torch.zeros_like(torch.einsum('bhk,bhv->bhkv', k[:, 0], v[:, 0]))\n"
        "        results = []\n        for t in range(q.shape[1]):\n"
        f"{outer}            {step}\n"
        "            results.append(torch.einsum('bhk,bhkv->bhv', scale * q[:, t], state))\n"
        "        return torch.stack(results, dim=1)\n\n\n"
        "batch_size = 2\nsteps = 36\nheads = 3\nhead_dim = 32\n\n\n"
        "def get_inputs():\n    shape = (batch_size, steps, heads, head_dim)\n"
        f"    return [torch.randn(*shape), {keys}, torch.randn(*shape){gates}]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )


HGRN = f"""{HEAD}class Model(nn.Module):
    def forward(self, x, g):
        state = torch.zeros_like(x[:, 0])
        states = []
        for t in range(x.shape[1]):
            state = g[:, t].exp() * state + x[:, t]
            states.append(state)
        return torch.stack(states, dim=1)


batch_size = 2
steps = 60
width = 64


def get_inputs():
    gate = F.logsigmoid(torch.randn(batch_size, steps, width))
    return [torch.randn(batch_size, steps, width), gate]


def get_init_inputs():
    return []
"""

DYNAMIC_TANH = f"""{HEAD}class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        made = torch.Generator().manual_seed(31)
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.gamma = nn.Parameter(1.0 + 0.1 * torch.randn(width, generator=made))
        self.beta = nn.Parameter(0.1 * torch.randn(width, generator=made))

    def forward(self, x):
        return self.gamma * torch.tanh(self.alpha * x) + self.beta


batch_size = 32
width = 640


def get_inputs():
    return [torch.randn(batch_size, width)]


def get_init_inputs():
    return [width]
"""

ROPE = f"""{HEAD}class Model(nn.Module):
    def __init__(self, steps, head_dim):
        super().__init__()
        half = head_dim // 2
        frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(steps, dtype=torch.float32), frequency)
        self.register_buffer("cos", torch.cat([angle, angle], dim=-1).cos()[None])
        self.register_buffer("sin", torch.cat([angle, angle], dim=-1).sin()[None])

    def rotate(self, x):
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[:, None] + torch.cat([-second, first], dim=-1) * self.sin[:, None]

    def forward(self, q, k):
        return self.rotate(q), self.rotate(k)


batch_size = 2
q_heads = 4
k_heads = 2
steps = 48
head_dim = 64


def get_inputs():
    q = torch.randn(batch_size, q_heads, steps, head_dim)
    return [q, torch.randn(batch_size, k_heads, steps, head_dim)]


def get_init_inputs():
    return [steps, head_dim]
"""

REFERENCES: dict[str, str] = {
    **{name: _elementwise(*parts) for name, parts in ELEMENTWISE.items()},
    **{name: _recurrent(name, *parts) for name, parts in RECURRENT.items()},
    "hgrn": HGRN,
    "dynamic_tanh": DYNAMIC_TANH,
    "rope_full": ROPE,
}

ARGUMENTS: dict[str, tuple[str, ...]] = {
    **{name: parts[0] for name, parts in ELEMENTWISE.items()},
    **{name: ("q", "k", "v", *parts[0]) for name, parts in RECURRENT.items()},
    "hgrn": ("x", "g"),
    "dynamic_tanh": ("x",),
    "rope_full": ("q", "k"),
}
