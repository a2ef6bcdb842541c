"""Run in a process of its own, under Triton's interpreter: the blocks on the kernels against torch operators.

Prints, as JSON, the largest relative difference of the output and of every gradient for each block, and what
the profiler counted for a classifier. Interpreting is decided when the kernels are imported, hence the
process.
"""

from __future__ import annotations

import json

import torch

from lethe.ecg.model import Shape, block, build
from lethe.evidence.ecg_gpu_work import kernel_calls


def error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def compared(shape: Shape) -> dict[str, float]:
    torch.manual_seed(0)
    kernels, plain = block(shape, "kernels"), block(shape, "torch")
    plain.load_state_dict(kernels.state_dict())
    hidden = torch.randn(1, 4, shape.d_model, requires_grad=True)
    weight = torch.randn(1, 4, shape.d_model)
    outputs = [one(hidden) for one in (kernels, plain)]
    found = {"output": error(*outputs)}
    gradients = [
        torch.autograd.grad((y * weight).sum(), [hidden, *one.parameters()])
        for y, one in zip(outputs, (kernels, plain), strict=True)
    ]
    names = ["hidden", *(name for name, _ in kernels.named_parameters())]
    return found | {name: error(a, b) for name, a, b in zip(names, *gradients, strict=True)}


def main() -> None:
    torch.set_num_threads(1)
    mamba = Shape("mamba", d_model=6, d_state=4, expand="3/2", dt_rank=2)
    tiny = Shape("mamba", d_model=4, layers=2, d_state=2, stem="patch", stride=100)
    found = {
        "mamba": compared(mamba),
        "mamba3": compared(Shape("mamba3", d_model=6, d_state=4, headdim=4)),
        "calls": kernel_calls(build(tiny, "kernels"), torch.randn(1, 12, 300)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
