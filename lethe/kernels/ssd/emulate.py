"""The engine's launches executed from Triton's PTX by `lethe.ptx`, on a CPU: no GPU, no interpreter."""

from __future__ import annotations

from typing import Any

from lethe.kernels.ssd.cases import Case
from lethe.kernels.ssd.graph import ITEM_BYTES
from lethe.kernels.ssd.plan import Launch
from lethe.kernels.ssd.tiles import Tiles

TILES = Tiles(output_heads=2, output_stages=1, gradient_heads=2, gradient_stages=1)
"""Two heads a program, so that a block has more than one. One stage: the emulator takes no copy that every
lane of a warp masks, as the pipelined load of a short vector is for some warps."""


class Emulated:
    """Plans of one case run by `lethe.ptx`, launch by launch, on the case's tensors."""

    def __init__(self, case: Case, target: int, schedule: str | int = "early", checks: bool = True) -> None:
        self.case, self.target, self.schedule, self.checks = case, target, schedule, checks
        self.instructions: dict[str, int] = {}

    def run(self, op: str, given: dict[str, Any]) -> dict[str, Any]:
        """Outputs of a node by name. Raises `lethe.ptx.Fault`, and ParseError for an unknown instruction."""
        import torch

        from lethe.kernels.ssd.bound import node_of
        from lethe.kernels.ssd.plan import layout

        node = node_of(self.case, op)
        plan = layout(node, "", self.target, TILES)
        arrays = {name: given[name].detach().clone() for name in node.inputs}
        for name, spec in node.outputs.items():
            arrays[name] = torch.full(spec.dims, float("nan"), dtype=getattr(torch, spec.dtype))
        for launch in plan.launches:
            for value in launch.values.values():
                if value.kind == "workspace" and value.name not in arrays:
                    count = plan.regions[value.name][1] // ITEM_BYTES[value.dtype]
                    arrays[value.name] = torch.full((count,), float("nan"), dtype=getattr(torch, value.dtype))
        for launch in plan.launches:
            self._launch(op, launch, arrays)
        return {name: arrays[name] for name in node.outputs}

    def _launch(self, op: str, launch: Launch, arrays: dict[str, Any]) -> None:
        from lethe.kernels.ssd.engine import compiled, function_of
        from lethe.ptx import GlobalMemory, parse, run
        from lethe.ptx.launch import address_of
        from lethe.ptx.triton_launch import launch_of

        kernel = compiled(launch, self.target)
        memory, arguments = GlobalMemory(), {}
        for name in function_of(launch.kernel).arg_names:
            value = launch.values.get(name)
            if value is not None and value.kind == "number":
                arguments[name] = value.number
            elif value is not None and value.kind != "none":
                arguments[name] = arrays[value.name]
        tensors = {name: v for name, v in arguments.items() if hasattr(v, "shape")}
        for name, array in tensors.items():
            memory.add(array, name, writable=True)
        packed = launch_of(kernel, arguments, launch.grid)
        report = run(
            parse(kernel.asm["ptx"]), packed.kernel, packed.grid, packed.block,
            packed.bind({name: address_of(array) for name, array in tensors.items()}), memory,
            dynamic_shared=packed.shared, schedule=self.schedule, checks=self.checks, cluster=packed.cluster,
        )  # fmt: skip
        self.instructions[f"{op} {launch.kernel}"] = int(report.instructions)
