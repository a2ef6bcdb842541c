"""Training with the engine on a device: one compiled step, and steps replayed from a CUDA graph."""

from __future__ import annotations

from typing import Any

BOUND = 1e-2
"""Relative root mean square that the operator itself may err by (design, SSD section)."""

STEPS = 5

Row = dict[str, Any]


def _mixer(device: str) -> tuple[Any, Any, Any]:
    """A small layer, hidden states and a target, drawn on the CPU."""
    import torch

    from lethe.kernels.ssd.mixer import Mamba2Mixer

    torch.manual_seed(0)
    cuda = device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float16
    layer = Mamba2Mixer(256 if cuda else 64, d_state=64, dtype=dtype).to(device)
    shape = (2, 300, 256) if cuda else (1, 40, 64)
    return layer, torch.randn(shape).to(dtype).to(device), torch.randn(shape).to(dtype).to(device)


def _loss(layer: Any, hidden: Any, target: Any) -> Any:
    return (layer(hidden).float() - target.float()).square().mean()


def compiled(device: str) -> Row:
    """One training step under ``torch.compile(fullgraph=True)`` against the eager one.

    The inductor may round elsewhere than eager PyTorch does around the operator: the bound is that of the
    operator's own accuracy.
    """
    import torch

    layer, hidden, target = _mixer(device)
    _loss(layer, hidden, target).backward()
    eager = {name: p.grad.clone() for name, p in layer.named_parameters()}
    layer.zero_grad(set_to_none=True)
    backend = "inductor" if device == "cuda" else "aot_eager"
    step = torch.compile(_loss, fullgraph=True, backend=backend)
    step(layer, hidden, target).backward()
    measured = {
        name: float((p.grad.double() - eager[name].double()).norm() / eager[name].double().norm())
        for name, p in layer.named_parameters()
    }
    return {"ok": all(e < BOUND for e in measured.values()), "backend": backend, "errors": measured}


def captured(device: str) -> Row:
    """Training steps replayed from a CUDA graph, against the same steps run eagerly.

    The losses must fall and agree within `BOUND`: cuDNN and cuBLAS may choose other kernels under capture.
    """
    import torch

    if device != "cuda":
        return {"skipped": "needs a CUDA device"}

    def trainer() -> tuple[Any, Any, Any, Any]:
        layer, hidden, target = _mixer(device)
        return layer, torch.optim.SGD(layer.parameters(), lr=0.05), hidden, target

    def step(layer: Any, optimiser: Any, hidden: Any, target: Any) -> Any:
        optimiser.zero_grad(set_to_none=True)
        loss = _loss(layer, hidden, target)
        loss.backward()
        optimiser.step()
        return loss.detach()

    eager = trainer()
    wanted = [float(step(*eager)) for _ in range(STEPS)]
    layer, optimiser, hidden, target = trainer()
    first = {name: p.detach().clone() for name, p in layer.state_dict().items()}
    from lethe.kernels import timing

    kept: dict[str, Any] = {}
    graph = timing.capture(lambda: kept.update(loss=step(layer, optimiser, hidden, target)))
    layer.load_state_dict(first)  # the warm-up has trained already
    found = []
    for _ in range(STEPS):
        graph.replay()
        torch.cuda.synchronize()
        found.append(float(kept["loss"]))
    close = all(abs(a - b) <= BOUND * abs(b) for a, b in zip(found, wanted, strict=True))
    return {
        "ok": close and found[-1] < found[0], "same_bits": found == wanted, "losses": found, "eager": wanted,
    }  # fmt: skip
