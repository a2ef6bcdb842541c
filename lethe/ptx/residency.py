"""A CTA slot of the machine: one thread block at a time, its groups of warps, and who runs next.

Groups take turns; a seeded schedule also shuffles the order, the length of turns and the initial division
into groups. When nothing moves, suspended waits time out; when that changes nothing either, ``describe``
says who waits for what.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lethe.ptx.asynchronous import Copies
from lethe.ptx.cta import CTA
from lethe.ptx.ends import BlockEnds
from lethe.ptx.faults import Fault
from lethe.ptx.order import Order
from lethe.ptx.program import Block, Code
from lethe.ptx.schedule import Engine
from lethe.ptx.sync import Sync
from lethe.ptx.tensor_unit import Tensor
from lethe.ptx.warps import Group, Path, merge
from lethe.ptx.watch import Watch

if TYPE_CHECKING:
    from lethe.ptx.machine import Dim, Machine

QUANTUM = 64
"""Basic blocks that a group runs before others get their turn."""


class Residency(BlockEnds):
    """A CTA slot of the machine: its state, its groups of warps, its scheduler."""

    def __init__(self, machine: Machine, number: int) -> None:
        m = self.machine = machine
        self.program = m.program
        self.random = m.random
        seed = m.schedule if not isinstance(m.schedule, int) else m.schedule * 7919 + number
        self.engine = Engine(seed)
        self.cta = CTA(
            m.program, m.layout, m.grid, m.block, m.memory, self.engine, m.dynamic_shared, m.checks
        )
        order = Order(self.cta.warps, self.cta.shared.size, m.fences) if m.checks and m.proxies else None
        self.sync = Sync(self.cta, order)
        self.watch = Watch(self.cta, self.engine, order) if m.asynchronous else None
        self.tensor = Tensor(self.cta, self.sync, self.engine, self.watch, order)
        self.copies = Copies(self.cta, self.sync, self.engine, self.watch, order)
        self.cta.units = {"sync": self.sync, "copies": self.copies, "tensor": self.tensor}
        if m.checks:
            self.cta.shared.watch = self.watch
        self.functions: dict[tuple[int, bool, tuple[int, int]], tuple[Callable[[Any], Any], Code, Block]] = {}
        self.groups: list[Group] = []
        self.running = False
        self.mergeable = False
        self.stalled: Any = None

    def begin(self, index: Dim) -> None:
        """Start a CTA of the grid in this slot."""
        self.cta.start(index)
        if self.watch is not None:
            self.watch.start()
        if self.sync.order is not None:
            self.sync.order.start()
        self.running, self.stalled = True, None
        warps, threads = self.cta.warps, self.cta.threads
        last = None
        if threads % 32:
            last = np.zeros((1, 32), bool)
            last[0, : threads % 32] = True
        whole = threads // 32
        self.groups = [Group((0, whole), [Path(0)])] if whole else []
        if last is not None:
            self.groups.append(Group((warps - 1, warps), [Path(0, last)]))
        if self.random is not None:
            cuts = self.random.integers(0, 2, max(self.groups[0].size - 1, 0))
            kinds = np.concatenate([[0], np.cumsum(cuts)])
            self.groups[:1] = list(self.groups[0].split(kinds)) if whole else self.groups[:1]

    def finish(self) -> None:
        """All warps exited: outstanding operations and leaks are faults."""
        self.running = False
        self.copies.at_exit()
        self.engine.drain()
        if self.cta.checks:
            self.sync.at_exit()
            self.tensor.at_exit()

    # -- scheduling
    def round(self) -> bool:
        """Give every group a turn; False when none could move."""
        moved = False
        order = list(self.groups)
        random = self.random
        quantum = QUANTUM
        if random is not None:
            random.shuffle(order)
            quantum = int(random.integers(1, 8))
        for group in order:
            if group.current().wait is None:
                moved = True
                self._turn(group, quantum)
                self.engine.idle()
        if self.mergeable and len(self.groups) > 1 and (random is None or random.random() < 0.5):
            self.groups = merge(self.groups)
            self.mergeable = False
        return moved

    def _turn(self, group: Group, quantum: int) -> None:
        for _ in range(quantum):
            if not group.paths:
                self.groups.remove(group)
                return
            path = group.current()
            if path.wait is not None:
                return
            if self.program.at[path.pc].warpgroup and not self._gather(group, path):
                return
            if not self._block(group, path):
                return
        if not group.paths:
            self.groups.remove(group)

    def _gather(self, group: Group, path: Path) -> bool:
        """Warpgroup instructions wait for all four warps; True when this group has them."""
        low, high = group.rows
        if path.mask is not None or (low % 4 == 0 and high % 4 == 0):
            return True
        pieces = list(group.split(np.arange(low, high) // 4))
        if len(pieces) > 1:
            self._replace(group, pieces)
        else:
            pieces = [group]
        for piece in pieces:
            piece.current().wait = ("warpgroup", path.pc)
        for first in sorted({piece.rows[0] // 4 * 4 for piece in pieces}):
            self._join((first, first + 4), ("warpgroup", path.pc))
        return False

    def _join(self, rows: tuple[int, int], wait: tuple[str, int]) -> None:
        """Make one group of a warpgroup whose warps all wait."""
        team = [g for g in self.groups if rows[0] <= g.rows[0] < rows[1]]
        ready = all(g.current().wait == wait and g.current().mask is None for g in team)
        if ready and sum(g.size for g in team) == rows[1] - rows[0]:
            for g in team:
                self.groups.remove(g)
            self.groups.append(Group(rows, [Path(wait[1])]))

    def _function(self, group: Group, path: Path) -> tuple[Callable[[Any], Any], Code, Block]:
        masked = path.mask is not None
        key = (path.pc, masked, group.rows)
        found = self.functions.get(key)
        if found is None:
            block = self.program.at[path.pc]
            code = self.program.code(block, masked)
            names = [self.cta.bind(spec, group.rows, code.objects) for spec in code.specs]
            found = self.functions[key] = (code.factory(*names), code, block)
        return found

    def _block(self, group: Group, path: Path) -> bool:
        """Run one block of a path; False when the group must give way (it was split or waits)."""
        run, code, block = self._function(group, path)
        machine = self.machine
        if self.watch is not None:
            self.watch.rows = group.rows
        try:
            out = run(path.mask)
            end = code.end
            warps = path.warps(group.size)
            machine.visits[block.index] += warps
            machine.executed += warps * (block.stop - block.start)
            if machine.executed > machine.limit:
                raise Fault("limit", f"more than {machine.limit} warp-instructions")
            if end[0] == "fall":
                path.pc = block.stop
            elif end[0] == "bra":
                return self._branch(group, path, out, end, block)
            elif end[0] == "exit":
                return self._exit(group, path, out, block)
            elif end[0] == "cluster":
                return self._cluster(group, path, end, block)
            elif end[0] == "wait":
                return self._wait(group, path, out, end, block)
            else:
                return self._barrier(group, path, out, end, block)
        except Fault as fault:
            raise self._locate(fault, group, code, block) from None
        except Exception as error:
            where = self._locate(Fault("unsupported", str(error)), group, code, block).where
            error.add_note(f"while executing {where}")
            raise
        if len(group.paths) > 1:
            group.settle(path)
        return True

    def _locate(self, fault: Fault, group: Group, code: Code, block: Block) -> Fault:
        index = block.stop - 1
        trace = fault.__traceback__ or sys.exc_info()[2]
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == code.filename:
                index = code.owner[min(trace.tb_lineno - 3, len(code.owner) - 1)]
            trace = trace.tb_next
        low, high = group.rows
        warps = f"warp {low}" if high == low + 1 else f"warps {low}-{high - 1}"
        return fault.at(f"{self.place(index)}, {warps} of CTA {self.cta.index}")

    def place(self, index: int) -> str:
        """Line and text of an instruction."""
        return self.program.places[index]

    # -- stalls
    def time_out(self) -> bool:
        """Let suspended waits return false once; False when that already changed nothing."""
        signature = (
            self.sync.version,
            self.engine.completed,
            tuple((g.rows, tuple((p.pc, p.mask is None) for p in g.paths)) for g in self.groups),
        )
        if signature == self.stalled:
            return self._let_others_run()
        self.stalled = signature
        hit = False
        for group in self.groups:
            for path in group.paths:
                if path.wait is not None and path.wait[0] == "mbarrier":
                    for barrier, _ in path.wait[1]:
                        barrier.waiters = [w for w in barrier.waiters if w is not path]
                    path.wait = "timed out"
                    hit = True
        for group in self.groups:
            for path in list(group.paths):
                if path.wait == "timed out":
                    self._block(group, path)
        return hit

    def _let_others_run(self) -> bool:
        """Last resort: inside a warp, paths with higher program counters may go on."""
        for group in list(self.groups):
            for path in sorted(group.paths, key=lambda p: p.pc):
                if path.wait is None and path is not group.current():
                    self._block(group, path)
                    self.stalled = None
                    return True
        return False

    def describe(self) -> str:
        """Every blocked warp: instruction, barrier, phase, pending count, missing bytes."""
        lines = [f"CTA {self.cta.index}: {len(self.groups)} groups of warps are blocked"]
        for group in sorted(self.groups, key=lambda g: g.rows):
            for path in group.paths:
                lines.append(f"  warps {group.rows[0]}-{group.rows[1] - 1}: {self._waiting(path)}")
        return "\n".join(lines)

    def _waiting(self, path: Path) -> str:
        if path.wait is None:
            return f"waits for its other lanes before {self.place(path.pc)}"
        if path.wait[0] == "cluster":
            missing = np.flatnonzero(~self.sync.cluster_arrived).tolist()
            return f"{self.place(path.pc)}: cluster barrier, warps {missing} have not arrived"
        if path.wait[0] == "warpgroup":
            return f"{self.place(path.pc)}: waits for the other warps of its warpgroup"
        if path.wait[0] == "barrier":
            _, barrier, block = path.wait
            have = f"{barrier.arrived} of {barrier.expected} threads arrived"
            return (
                f"{self.place(block.start)}: barrier {barrier.number}, {have} (warps {sorted(barrier.warps)})"
            )
        _, keys, block, parity = path.wait
        parts = [
            f"mbarrier {b.address:#x}, {'parity' if parity else 'state'} {v}: {b.describe()}" for b, v in keys
        ]
        return f"{self.place(block.start)}: " + "; ".join(parts)
