"""Barriers: PTX ISA 9.7.13.1-3 (bar, barrier, barrier.cluster) and 9.7.13.15 (mbarrier)."""

from __future__ import annotations

from lethe.ptx.emit import Emit
from lethe.ptx.isa.registry import instruction
from lethe.ptx.isa.warp import aligned
from lethe.ptx.syntax import Imm, Instruction, Not, Reg, Sink

_SPACE = ("shared", "shared::cta", "shared::cluster")
_ORDER = ("release", "acquire", "relaxed", "cta", "cluster")


@instruction("bar", "barrier", section="9.7.13.1", dests=0, ends=True)
def bar(e: Emit, ins: Instruction) -> None:
    """bar.sync, bar.arrive: counts whole warps; divergent warps are a fault for the aligned forms."""
    e.flag("cta", "aligned")
    op = e.choice("sync", "arrive")
    ident, *rest = ins.operands
    count = e.src(rest[0], "u32") if rest else "None"
    e.end = ("bar", op)
    e.line(f"return ({e.src(ident, 'u32')}, {count}, {e.m})")


@instruction("bar.red", "barrier.red", "bar.cta.red", "barrier.cta.red", section="9.7.13.1", ends=True)
def bar_red(e: Emit, ins: Instruction) -> None:
    """bar.red.{popc,and,or}: a barrier that also reduces a predicate over its threads."""
    e.flag("cta", "aligned", "red")
    op = e.choice("popc", "and", "or")
    e.flag("u32", "pred")
    d, ident, *rest = ins.operands
    pred = rest[-1]
    count = e.src(rest[0], "u32") if len(rest) == 2 else "None"
    assert isinstance(pred, Reg | Not)
    value = e.let(f"{e.src(pred, 'pred')}.copy()")
    e.end = ("bar", op)
    dest = e.dst(d, "u32" if op == "popc" else "pred")
    e.line(f"return ({e.src(ident, 'u32')}, {count}, {e.m}, {value}, {dest})")


@instruction("barrier.cluster", section="9.7.13.3", dests=0, ends=True)
def cluster(e: Emit, ins: Instruction) -> None:
    """barrier.cluster.{arrive,wait} of a cluster of one CTA: a split barrier of all its warps."""
    op = e.choice("arrive", "wait")
    e.flag("cluster", "aligned", *_ORDER)
    e.line(f"{e.obj(aligned)}({e.m})")
    e.end = ("cluster", op)
    e.line("return None")


@instruction("mbarrier.init", "mbarrier.inval", section="9.7.13.15.9-10", dests=0)
def init(e: Emit, ins: Instruction) -> None:
    """mbarrier.init [a], count; mbarrier.inval [a]."""
    e.flag("init", "inval", "b64", *_SPACE)
    a, *rest = ins.operands
    count = e.src(rest[0], "u32") if rest else "None"
    e.line(f"{e.cta('sync.init')}({e.rows}, {e.address(a)}, {count}, {e.m})")


@instruction("mbarrier.arrive", "mbarrier.arrive_drop", section="9.7.13.15.13-14")
def arrive(e: Emit, ins: Instruction) -> None:
    """mbarrier.arrive{.expect_tx}{.noComplete} state, [a] {, count}."""
    drop = e.flag("arrive_drop")
    e.flag("arrive", "b64", *_ORDER, *_SPACE)
    expect = e.flag("expect_tx")
    if e.flag("noComplete"):
        e.refuse("mbarrier.arrive.noComplete")
    d, a, *rest = ins.operands
    count = e.src(rest[0], "u32") if rest else e.src(Imm(1), "u32")
    state = "None" if isinstance(d, Sink) else e.dst(d, "u64")
    e.line(f"{e.cta('sync.arrive')}({e.rows}, {e.address(a)}, {count}, {expect}, {drop}, {state}, {e.m})")


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx", section="9.7.13.15.11-12", dests=0)
def transactions(e: Emit, ins: Instruction) -> None:
    """mbarrier.expect_tx / complete_tx [a], bytes: transaction count without an arrival."""
    expect = e.flag("expect_tx")
    e.flag("complete_tx", "b64", *_ORDER, *_SPACE)
    a, count = ins.operands
    e.line(f"{e.cta('sync.transactions')}({e.rows}, {e.address(a)}, {e.src(count, 'u32')}, {expect}, {e.m})")


@instruction("mbarrier.test_wait", "mbarrier.try_wait", section="9.7.13.15.16", ends=True)
def wait(e: Emit, ins: Instruction) -> None:
    """test_wait and try_wait, with a state or a phase parity; try_wait may suspend the warp."""
    blocking = e.flag("try_wait")
    e.flag("test_wait", "b64", *_ORDER, *_SPACE)
    parity = e.flag("parity")
    d, a, phase = ins.operands[:3]
    e.end = ("wait", blocking, parity)
    value = e.src(phase, "u32" if parity else "u64")
    dest = "None" if isinstance(d, Sink) else e.dst(d, "pred")
    e.line(f"return ({e.address(a)}, {value}, {dest}, {e.m})")


@instruction("mbarrier.pending_count", section="9.7.13.15.17")
def pending(e: Emit, ins: Instruction) -> None:
    """Pending count held in an opaque state."""
    e.flag("pending_count")
    e.type(("b64",))
    d, state = ins.operands
    e.put(d, "u32", f"({e.src(state, 'u64')} & 0xFFFFF)")
