"""Plans: the workspace, the caches, addresses bound again, and that execution compiles nothing."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lethe.evidence.ssd_cases import FULL, described
from lethe.kernels.ssd import tiles as tiles_module
from lethe.kernels.ssd.cases import PLAIN, Case, graphs
from lethe.kernels.ssd.plan import ALIGNMENT, Layout, layout
from lethe.kernels.ssd.tiles import Tiles, fitted, lookup
from lethe.kernels.ssd.traffic import floor_us, operations, traffic

SMALL = Case("small", batch=1, length=40, heads=2, groups=1, chunk=32, dtype="float16")


@pytest.mark.parametrize("case", [*map(described, FULL)], ids=lambda c: c.id)
def test_regions_of_the_workspace_are_apart_and_aligned(case):
    for graph in graphs(case):
        plan = layout(graph.nodes[0], "", 90)
        spans = sorted(plan.regions.values())
        assert all(offset % ALIGNMENT == 0 for offset, _ in spans)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))
        assert not spans or spans[-1][0] + spans[-1][1] <= plan.workspace_bytes
        named = {v.name for x in plan.launches for v in x.values.values() if v.kind == "workspace"}
        assert named == set(plan.regions)


def test_a_layout_survives_the_disk():
    for graph in graphs(PLAIN):
        plan = layout(graph.nodes[0], "triton sm_90", 90)
        assert Layout.from_json(plan.to_json()) == plan


def test_checkpoints_shrink_with_the_chunk_and_time_does_not_grow():
    """A chunk of 256 keeps a quarter of the states of 64; the launches of the forward pass are the same."""
    base = Case("", length=4096, heads=8, groups=1)
    kept, work = {}, {}
    for chunk in (64, 256):
        node = graphs(replace(base, chunk=chunk))[0].nodes[0]
        kept[chunk] = node.outputs["checkpoints"].dims[0]
        work[chunk] = operations(node, layout(node, "", 90))
    assert kept[64] == 4 * kept[256]
    assert work[64] == work[256]


def test_prediction_counts_bytes_and_products_by_hand():
    """One full tile of one head: x, B, C and the rest once; six products of 64 x 64 x 64 in the gradient."""
    case = Case("", batch=1, length=64, heads=1, groups=1, gated=False, initial=False, final=False,
                skip="none", bias=False, checkpoint="bfloat16")  # fmt: skip
    forward, backward = (graph.nodes[0] for graph in graphs(case))
    one = 2 * 64**3
    assert operations(forward, layout(forward, "", 90)) == {"scan": one, "output": 3 * one}
    found = operations(backward, layout(backward, "", 90))
    assert found == {"scan": one, "gradient": (2 + 1 + 3 + 2) * one, "finish": 0}
    io, state, steps = 64 * 64 * 2, 64 * 64 * 2, 2 * 64 * 4
    plan = layout(forward, "", 90)
    assert traffic(forward, plan)["output"] == 3 * io + state + io + steps
    assert floor_us(forward, plan)["output"] == pytest.approx((4 * io + state + steps) / 4.3e6)


@contextlib.contextmanager
def table(rows):
    """Tiles from these rows in place of the package's."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tiles.json"
        file.write_text(json.dumps({"rows": rows}))
        os.environ[tiles_module.VARIABLE] = str(file)
        try:
            yield
        finally:
            del os.environ[tiles_module.VARIABLE]


@pytest.mark.parametrize("reuse", [True, False])
def test_a_gate_adds_launches_and_changes_none(reuse):
    """The kernels of a gated backward pass are the ungated ones, on a dy that takes a region of its own.

    With one row of tiles for both: a search may find that the two want different ones."""
    from lethe.kernels.ssd.engine import specialisation

    with table([{"where": {}, "source": "one for both", "tiles": {}}]):
        plain, gated = (
            layout(graphs(replace(PLAIN, gated=g, reuse=reuse))[1].nodes[0], "", 90) for g in (False, True)
        )
    assert [x.kernel for x in gated.launches] == ["gate", "scan", "output", "gradient", "finish"]
    common = [x for x in gated.launches if x.kernel not in ("gate", "output")]
    assert list(map(specialisation, common)) == list(map(specialisation, plain.launches))
    dy = PLAIN.batch * PLAIN.length * PLAIN.heads * PLAIN.width * 2
    assert gated.regions["gated dy"][1] == dy
    assert gated.workspace_bytes - plain.workspace_bytes == -(-dy // ALIGNMENT) * ALIGNMENT


def test_the_table_chooses_the_row_that_agrees_most():
    rows = [
        {"where": {}, "source": "all", "tiles": {"output_heads": 1}},
        {"where": {"op": "SSD", "n": 64}, "source": "some", "tiles": {"output_heads": 2}},
        {"where": {"op": "SSD", "n": 64, "gated": True}, "source": "one", "tiles": {"output_heads": 16}},
    ]
    with table(rows):
        found = [
            lookup(op="SSD", chunk=64, n=n, gated=gated, target=90)
            for n, gated in ((128, False), (64, False), (64, True))
        ]
    assert [source for _, source in found] == ["all", "some", "one"]
    assert [tiles.output_heads for tiles, _ in found] == [1, 2, 16]
    assert fitted(Tiles(tile=128, scan_n=128), 32, 64) == Tiles(tile=32, scan_n=64)
    for wrong in (Tiles(tile=48), Tiles(scan_p=128), Tiles(scan_n=48), Tiles(output_heads=0)):
        with pytest.raises(ValueError, match="do not divide a chunk of 64 and a state of 64 x 64"):
            fitted(wrong, 64, 64)


def test_the_packaged_table_is_readable_for_every_shape():
    for op in ("SSD", "SSD_BWD"):
        for n in (64, 128):
            for chunk in (32, 64, 128, 256):
                tiles, _ = lookup(op=op, chunk=chunk, n=n, gated=True, target=90)
                assert chunk % tiles.tile == 0 and n % tiles.scan_n == 0 and 64 % tiles.scan_p == 0


def test_plans_are_kept_in_memory_and_on_disk():
    from lethe.kernels.ssd import builder

    graph = graphs(SMALL)[0]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[builder.VARIABLE] = folder
        try:
            builder.forget()
            first = builder.build(graph)
            assert builder.build(graph) is first
            (file,) = Path(folder).iterdir()
            builder.forget()
            written = file.stat().st_mtime_ns
            assert builder.build(graph).layout == first.layout
            assert file.stat().st_mtime_ns == written
            text = file.read_bytes()
            for spoiled in (b"", b"{}", text[:-9], text.replace(b'"SSD"', b'"SSE"'), b"\xff" + text):
                file.write_bytes(spoiled)
                builder.forget()
                assert builder.build(graph).layout == first.layout
                assert file.read_bytes() == text
            other = builder.build(graphs(replace(SMALL, length=41))[0])
            assert other is not first and len(list(Path(folder).iterdir())) == 2
        finally:
            del os.environ[builder.VARIABLE]
    assert first.engine == "triton interpreter" and first.workspace_bytes > 0
    assert "scan" in first.explain() and f"{first.workspace_bytes:,} bytes" in first.explain()


def test_one_plan_runs_on_any_memory():
    """Bound to other addresses it gives what those operands are worth, forward and backward."""
    import torch

    from lethe.kernels.ssd import builder
    from lethe.kernels.ssd.bound import bind

    case = replace(SMALL, length=33, heads=1, reuse=False)
    for op in ("SSD", "SSD_BWD"):
        builder.forget()
        ours = bind(case, op, "cpu", None, seed=0)
        builder.forget()
        other = bind(case, op, "cpu", None, seed=1)
        for bound in (ours, other):
            bound.execute()
        names = list(other.plan.node.outputs)
        wanted = [other.tensors[name].clone() for name in names]
        assert any(not torch.equal(ours.tensors[name], other.tensors[name]) for name in names)
        for name in names:
            other.tensors[name].zero_()
        assert ours.plan is not other.plan
        other.plan = ours.plan
        other.execute()
        assert all(torch.equal(other.tensors[n], w) for n, w in zip(names, wanted, strict=True))


def test_addresses_are_checked():
    from lethe.kernels.ssd.bound import bind

    bound = bind(SMALL, "SSD", "cpu", None)
    pointers, workspace = bound.pointers, bound.workspace.data_ptr()
    with pytest.raises(ValueError, match=r"missing \['y'\], unknown \['w'\]"):
        bound.plan.execute({k if k != "y" else "w": v for k, v in pointers.items()}, workspace)
    with pytest.raises(ValueError, match=r"x is at .* multiple of 16"):
        bound.plan.execute({**pointers, "x": pointers["x"] + 2}, workspace)
    with pytest.raises(ValueError, match="workspace is at 0x0"):
        bound.plan.execute(pointers, 0)
    with pytest.raises(ValueError, match="y is at -0x10"):
        bound.plan.execute({**pointers, "y": -16}, workspace)
    with pytest.raises(ValueError, match=r"dt is at .* multiple of 2"):
        bound.plan.execute({**pointers, "dt": pointers["dt"] + 1}, workspace)
    for wrong in (None, 1.5, bound.workspace):
        with pytest.raises(ValueError, match="an address is an int"):
            bound.plan.execute(pointers, wrong)


@pytest.mark.compiles
@pytest.mark.parametrize("op", ["SSD", pytest.param("SSD_BWD", marks=pytest.mark.slow)])
def test_execution_compiles_nothing(monkeypatch, op):
    """A plan for sm_90 is compiled when it is built. Executed with the kernels' launchers replaced, it hands
    over every address, and the compiler is not called."""
    import triton

    from lethe.kernels.ssd import builder, engine

    case = replace(SMALL, dtype="bfloat16", chunk=64, gated=False)
    plan = builder.plan_for(graphs(case)[op == "SSD_BWD"].nodes[0], 90)
    monkeypatch.setattr(triton, "compile", lambda *a, **k: pytest.fail("execution compiles"))
    seen: list[tuple[str, tuple[int, int, int], list[object], int]] = []
    again = [_recorded(one, seen) for one in plan.prepared]
    names = [*plan.node.inputs, *plan.node.outputs]
    pointers = {name: 4096 * (i + 1) for i, name in enumerate(names)}
    replace(plan, prepared=tuple(again)).execute(pointers, 1 << 20, 77)
    assert [kernel for kernel, *_ in seen] == [x.kernel for x in plan.layout.launches]
    for (_, grid, arguments, stream), launch in zip(seen, plan.layout.launches, strict=True):
        assert grid == launch.grid and stream == 77
        for name, argument in zip(engine.function_of(launch.kernel).arg_names, arguments, strict=True):
            value = launch.values.get(name)
            if value is not None and value.kind == "tensor":
                assert argument == pointers[value.name]
            if value is not None and value.kind == "workspace":
                assert argument == (1 << 20) + plan.layout.regions[value.name][0]


def _recorded(one, seen):
    """The prepared launch with a stand-in for its compiled kernel."""
    from lethe.kernels.ssd import engine

    class Kernel:
        def __getitem__(self, grid):
            return lambda *a, stream: seen.append((one.launch.kernel, grid, list(a), stream))

    return engine.prepared(one.launch, Kernel(), 90, device=lambda: 0)


@pytest.mark.compiles
def test_a_second_process_would_find_the_kernels_compiled():
    """A plan for sm_90 laid out by the disk is made of kernels that Triton's own cache has."""
    from lethe.kernels.ssd import builder, engine

    case = replace(SMALL, dtype="bfloat16", chunk=64, gated=False)
    graph = graphs(case)[0]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[builder.VARIABLE] = folder
        try:
            builder.forget()
            first = builder.build(graph, 90)
            builder.forget()
            engine.forget()
            second = builder.build(graph, 90)
        finally:
            del os.environ[builder.VARIABLE]
    hashes = [[one.artifact.hash for one in plan.prepared] for plan in (first, second)]
    assert hashes[0] == hashes[1]
