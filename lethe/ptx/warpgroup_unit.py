"""``wgmma``: operations of whole warpgroups in commit groups (PTX ISA 9.7.15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lethe.ptx import wgmma
from lethe.ptx.emit import Array
from lethe.ptx.faults import Fault
from lethe.ptx.fenced import FragmentFence
from lethe.ptx.schedule import Engine, Operation

if TYPE_CHECKING:
    from lethe.ptx.cta import CTA, Rows

LOAD = "tcgen05.wait::ld"
"""Tag of registers that wait for that instruction; the others wait for a wgmma group."""


class WarpgroupUnit:
    """The part of the tensor unit that serves sm_90a."""

    cta: CTA
    engine: Engine
    pending: dict[int, dict[str, Any]]
    fragments: FragmentFence
    group_ops: dict[int, list[list[Operation]]]
    stage: Any
    submit: Any
    check_reads: Any
    where: Any
    keep: Any

    def wgmma(
        self,
        index: int,
        rows: Rows,
        form: tuple[str, str, str, str],
        d: tuple[Array, ...],
        a: Array | tuple[Array, ...],
        b: Array,
        scale_d: Array,
        scales: tuple[int, int],
        transposes: tuple[int, int],
        names: tuple[str, ...],
        mask: Array | None,
    ) -> None:
        """wgmma.mma_async by whole warpgroups."""
        if mask is not None:
            raise Fault("divergence", "wgmma.mma_async executed by part of a warp")
        if rows[0] % 4 or rows[1] % 4:
            raise Fault("divergence", "wgmma.mma_async executed by part of a warpgroup")
        for low in range(0, rows[1] - rows[0], 4):
            part = slice(low, low + 4)
            in_registers = isinstance(a, tuple)
            a_desc = None if in_registers else int(a[low, 0])  # type: ignore[call-overload]
            step = wgmma.plan(*form, a_desc, int(b[low, 0]), *transposes)
            self.check_reads(rows[0] + low, step.reads, "wgmma.mma_async")
            if self.cta.checks:
                for warp in range(rows[0] + low, rows[0] + low + 4):
                    self.fragments.check(warp, names)
            use_d = bool(scale_d[low, 0])

            def compute(part: slice = part, step: wgmma.Plan = step, use_d: bool = use_d) -> None:
                regs = np.stack([x[part] for x in a], axis=2) if isinstance(a, tuple) else None
                acc = np.stack([x[part] for x in d], axis=2)
                wgmma.execute(step, self.cta.shared.data, regs, acc, use_d, *scales)
                for i, x in enumerate(d):
                    x[part] = acc[:, :, i]

            warpgroup = (rows[0] + low) // 4
            op = Operation(
                ("wgmma", warpgroup), [self.stage(index, compute)], self.where(index), step.reads.chunks
            )
            number = len(self.group_ops.setdefault(warpgroup, [[]])) - 1
            self.group_ops[warpgroup][-1].append(op)
            if self.cta.checks:
                tag = ("wgmma.wait_group", number)
                for warp in range(rows[0] + low, rows[0] + low + 4):
                    self.pending.setdefault(warp, {}).update(dict.fromkeys(names, tag))
            self.submit(op)

    def wgmma_fence(self, rows: Rows) -> None:
        """wgmma.fence."""
        self.fragments.fence(rows)

    def touched(
        self, rows: Rows, names: tuple[str, ...], sources: tuple[str, ...], mask: Array | None
    ) -> None:
        """Registers of wgmma operations were written by something else."""
        self.fragments.wrote(rows, names, sources, mask)

    def wgmma_commit(self, rows: Rows, mask: Array | None) -> None:
        """wgmma.commit_group."""
        for warpgroup in range(rows[0] // 4, (rows[1] + 3) // 4):
            self.group_ops.setdefault(warpgroup, [[]]).append([])

    def wgmma_wait(self, rows: Rows, n: int, mask: Array | None) -> None:
        """wgmma.wait_group n: all but the newest n committed groups are complete."""
        for warpgroup in range(rows[0] // 4, (rows[1] + 3) // 4):
            groups = self.group_ops.setdefault(warpgroup, [[]])
            done = len(groups) - 1 - n
            for i in range(max(done, 0)):
                for op in groups[i]:
                    self.engine.finish(op)
                groups[i] = []
            for warp in range(4 * warpgroup, min(4 * warpgroup + 4, self.cta.warps)):
                old = self.pending.get(warp, {})
                self.keep(warp, {k: v for k, v in old.items() if v[0] == LOAD or v[1] >= done})
