"""Run an operator forward and backward and hold every output and gradient against its oracle."""

from __future__ import annotations

from typing import Any

import torch

from lethe.references import mamba3_block, mamba3_rope, mamba3_scan
from tests.kernels.mamba3.draws import BOUND, doubled, error, leaves

Errors = dict[str, float]


def scan_errors(operands: dict[str, Any], **how: Any) -> Errors:
    from lethe.kernels.mamba3.scan import selective_scan

    live = leaves(operands)
    y, final = selective_scan(**live, **how)
    dy, dfinal = torch.randn_like(y), torch.randn_like(final)
    got = torch.autograd.grad([y, final], list(live.values()), [dy, dfinal])
    exact = doubled(live)
    y64, final64 = mamba3_scan.forward_chunked_scan(**exact)
    g64 = mamba3_scan.backward_selective_scan(dy.double().cpu(), **exact, dfinal=dfinal.double().cpu())
    found = {"y": error(y, y64), "final": error(final, final64)}
    return found | {name: error(g, g64[name]) for name, g in zip(live, got, strict=True)}


def block_errors(operands: dict[str, Any], **how: Any) -> Errors:
    from lethe.kernels.mamba3.scan import fused_block

    live = leaves(operands)
    out = fused_block(**live, **how)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, list(live.values()), dout)
    exact = doubled(live)
    trap = exact.pop("trap", None)
    inputs = mamba3_block.BlockInputs(**exact)
    g64 = mamba3_block.fused_block_backward(dout.double().cpu(), inputs, trap=trap)
    found = {"out": error(out, mamba3_block.fused_block_forward(inputs, trap=trap))}
    return found | {name: error(g, g64[name]) for name, g in zip(live, got, strict=True)}


def head_errors(
    operands: dict[str, Any], *, pairwise: bool = True, state: bool = False, **how: Any
) -> Errors:
    from lethe.kernels.mamba3.head import HeadState, head_scan

    live = leaves(operands)
    batch, _, rank, _, n = live["q"].shape
    heads, width = live["v"].shape[2:]
    at = {"device": live["v"].device}
    begin = {
        "theta": torch.rand(batch, heads, live["angle"].shape[-1], **at), "S": torch.randn(batch, heads,
        width, n, **at),
        "k": torch.randn(batch, heads, rank, n, **at), "x": torch.randn(batch, heads, rank, width, **at),
    }  # fmt: skip
    start = leaves(begin) if state else {}
    out, final = head_scan(**live, pairwise=pairwise, state=HeadState(**start) if state else None, **how)
    dout, dS = torch.randn_like(out), torch.randn_like(final.S)
    wanted = [*live.values(), *start.values()]
    got = torch.autograd.grad([out, final.S], wanted, [dout, dS])
    inputs = mamba3_rope.HeadInputs(**doubled(live), pairwise=pairwise)
    first = mamba3_rope.HeadState(**doubled(start)) if state else None
    out64, final64 = mamba3_rope.complex_scan_rope(inputs, first)
    g64 = mamba3_rope.mimo_backward(dout.double().cpu(), inputs, first, dS.double().cpu())
    found = {"out": error(out, out64)}
    found |= {f"final {name}": error(getattr(final, name), getattr(final64, name)) for name in vars(final)}
    return found | {
        name: error(g, g64[name]) for name, g in zip([*live, *(f"{s}0" for s in start)], got, strict=True)
    }


def assert_within(errors: Errors, dtype: torch.dtype) -> None:
    beyond = {name: e for name, e in errors.items() if not e <= BOUND[dtype]}
    assert not beyond, f"beyond {BOUND[dtype]:g}: {beyond}"
