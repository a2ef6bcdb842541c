"""A plan together with memory for one case: what tests, the tile search and the benchmark execute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lethe.kernels.ssd import builder
from lethe.kernels.ssd.cases import Case, graphs, operands
from lethe.kernels.ssd.graph import Node
from lethe.kernels.ssd.tiles import Tiles


@dataclass
class Bound:
    """A plan, a tensor for each of its names, and a workspace."""

    plan: builder.Plan
    tensors: dict[str, Tensor]
    workspace: Tensor

    @property
    def pointers(self) -> dict[str, int]:
        return {name: t.data_ptr() for name, t in self.tensors.items()}

    def execute(self) -> None:
        """The whole plan on the current stream."""
        self.plan.execute(self.pointers, self.workspace.data_ptr(), stream_of(self.workspace))

    def launch(self, index: int) -> None:
        """One launch of the plan, on what the ones before it left in the workspace."""
        one, base = self.plan.prepared[index], self.workspace.data_ptr()
        addresses = [
            self.tensors[v.name].data_ptr()
            if v.kind == "tensor"
            else base + self.plan.layout.regions[v.name][0]
            for v in one.sources
        ]
        one.run(addresses, stream_of(self.workspace))


def stream_of(tensor: Tensor) -> int:
    """Handle of the current stream of the tensor's device; 0 on a CPU."""
    if tensor.device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def node_of(case: Case, op: str) -> Node:
    """The case's forward (``SSD``) or backward (``SSD_BWD``) node."""
    return graphs(case)[op == "SSD_BWD"].nodes[0]


def bind(case: Case, op: str, device: str, target: int | None, seed: int = 0, drawn_on: str = "cpu") -> Bound:
    """A plan for `case` with operands drawn by `seed`. A backward plan gets a random dy and dfinal_states,
    and checkpoints by a forward plan."""
    node = node_of(case, op)
    tensors = operands(case, device, seed, drawn_on)
    for name, spec in (*node.inputs.items(), *node.outputs.items()):
        if name not in tensors:
            tensors[name] = torch.zeros(spec.dims, dtype=getattr(torch, spec.dtype), device=device)
    if op == "SSD_BWD":
        source = torch.Generator(drawn_on).manual_seed(seed + 1)
        for name in ("dy", "dfinal_states"):
            if name in tensors:
                t = tensors[name]
                t.copy_(torch.randn(t.shape, generator=source, device=drawn_on))
        if "checkpoints" in tensors:
            first = bind(case, "SSD", device, target, seed, drawn_on)
            first.execute()
            tensors["checkpoints"] = first.tensors["checkpoints"]
    return _with_workspace(builder.plan_for(node, target), tensors, device)


def cut_anew(bound: Bound, target: int | None, tiles: Tiles) -> Bound:
    """The same node on the same tensors by a plan of other tiles, with a workspace of its own."""
    plan = builder.plan_for(bound.plan.node, target, tiles)
    return _with_workspace(plan, bound.tensors, bound.workspace.device)


def _with_workspace(plan: builder.Plan, tensors: dict[str, Tensor], device: Any) -> Bound:
    return Bound(plan, tensors, torch.zeros(plan.workspace_bytes, dtype=torch.uint8, device=device))
