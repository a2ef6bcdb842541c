"""The graph layer: what the analyzer accepts, what it declines by which rule, and that it imports no GPU
module."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lethe.evidence import ssd_cases
from lethe.evidence.ssd_cases import FULL
from lethe.kernels.ssd.analyzer import RULES, SINGLE, TARGET, analyze
from lethe.kernels.ssd.cases import Case, graphs, speed
from lethe.kernels.ssd.graph import Attributes, Graph, TensorSpec, row_major, slots

SMALL = Case("small", batch=1, length=70, heads=4, groups=2)
BOUNDARY = (
    "import sys; import lethe.kernels.ssd as ssd; from lethe.kernels.ssd.graph import Graph;"
    "from lethe.kernels.ssd.cases import PLAIN, graphs; from lethe.kernels.ssd.plan import layout;"
    "from lethe.kernels.ssd.traffic import traffic;"
    "g = graphs(PLAIN)[0]; assert ssd.analyze(g).accepted; plan = layout(g.nodes[0], '', 90);"
    "traffic(g.nodes[0], plan); assert ssd.RULES and ssd.Declined and ssd.build;"
    "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'triton', 'cutlass', 'cuda', 'numpy'}))"
)


def test_the_graph_layer_loads_no_gpu_module():
    """Describing, analysing, laying out and predicting need neither torch nor triton."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", BOUNDARY], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("case", [*map(ssd_cases.described, FULL), *speed()], ids=lambda c: c.id)
def test_every_case_is_accepted(case):
    for graph in graphs(case):
        assert analyze(graph, 90).accepted, str(analyze(graph, 90))


def described(op: str = "SSD", case: Case = SMALL, *, drop: str = "", **changes: TensorSpec) -> Graph:
    """The case's graph with tensors replaced or one left out."""
    node = graphs(case)[op == "SSD_BWD"].nodes[0]
    inputs = {k: v for k, v in node.inputs.items() if k != drop} | changes
    graph = Graph()
    make = graph.ssd if op == "SSD" else graph.ssd_bwd
    make(inputs, **case.attributes)
    return graph


def tensor(
    name: str, dims: tuple[int, ...], dtype: str = "bfloat16", strides: tuple[int, ...] = ()
) -> TensorSpec:
    return TensorSpec(name, dims, strides or row_major(dims), dtype)


X, B = (1, 70, 4, 64), (1, 70, 2, 64)

DECLINED = {
    "no B": ("SSD-01 operands", {"drop": "B"}, "B is missing"),
    "no dy": ("SSD-01 operands", {"op": "SSD_BWD", "drop": "dy"}, "dy is missing"),
    "seq_idx": ("SSD-01 operands", {"seq_idx": tensor("seq_idx", (1, 70), "int32")}, "no operand"),
    "x of three axes": ("SSD-02 dims", {"x": tensor("x", (70, 4, 64))}, "3 axes"),
    "C of other N": ("SSD-02 dims", {"C": tensor("C", (1, 70, 2, 32))}, "C has dims"),
    "no tokens": ("SSD-02 dims", {"case": replace(SMALL, length=0)}, "empty"),
    "chunk 48": ("SSD-03 chunk", {"case": replace(SMALL, chunk=48)}, "chunk_size is 48"),
    "P 32": ("SSD-04 widths", {"case": replace(SMALL, width=32)}, "P is 32"),
    "N 32": ("SSD-04 widths", {"case": replace(SMALL, n=32)}, "N is 32"),
    "three groups of four": ("SSD-05 groups", {"case": replace(SMALL, groups=3)}, "4 heads"),
    "float32": ("SSD-06 dtypes", {"case": replace(SMALL, dtype="float32")}, "x is float32"),
    "mixed": ("SSD-06 dtypes", {"B": tensor("B", B, "float16")}, "B is float16 and x is bfloat16"),
    "A in bfloat16": ("SSD-07 parameters", {"A": tensor("A", (4,))}, "A is bfloat16"),
    "checkpoints in float16": (
        "SSD-08 checkpoints", {"case": replace(SMALL, checkpoint="float16")}, "checkpoint_dtype is 'float16'"
    ),
    "x across": ("SSD-09 layout", {"x": tensor("x", X, strides=(17920, 1, 4480, 70))}, "must be adjacent"),
    "odd rows": ("SSD-09 layout", {"B": tensor("B", B, strides=(9100, 130, 64, 1))}, "16 bytes"),
    "expanded": ("SSD-09 layout", {"x": tensor("x", X, strides=(0, 0, 64, 1))}, "16 bytes"),
    "heads too far apart": (
        "SSD-10 reach", {"x": tensor("x", X, strides=(1 << 33, 64, 1 << 29, 1))}, "32-bit"
    ),
    "more heads than a grid holds": (
        "SSD-10 reach", {"case": replace(SMALL, heads=4096, groups=1)}, "4096 heads"
    ),
    "more rows than a launch numbers": (
        "SSD-10 reach", {"case": replace(SMALL, length=1 << 20, heads=2048, groups=1)}, "2147483648 rows"
    ),
    "too far apart": ("SSD-10 reach", {"x": tensor("x", X, strides=(1, 1 << 23, 64, 1))}, "32-bit"),
    "two packed batches": ("SSD-11 packed", {"case": replace(SMALL, batch=2, cuts=(0, 70))}, "must be 1"),
    "limits crossed": ("SSD-12 limits", {"case": replace(SMALL, limits=(0.5, 0.1))}, "must not exceed"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(DECLINED))
def test_declined_by_the_rule_and_with_the_reason(name):
    rule, how, reason = DECLINED[name]
    finding = analyze(described(**how))
    assert not finding.accepted
    assert finding.rule == rule and reason in finding.reason, str(finding)


def test_every_rule_declines_something():
    assert {rule for rule, *_ in DECLINED.values()} == {rule.id for rule in RULES}


def test_one_node_and_a_capable_target():
    assert analyze(Graph()).rule == SINGLE
    two = described()
    two.nodes.append(two.nodes[0])
    assert analyze(two).rule == SINGLE
    assert analyze(described(), 75).rule == TARGET
    assert "name it by a number" in analyze(described(), "sm_90").reason


def test_a_tensor_is_declared_once_with_a_known_dtype():
    graph = Graph()
    graph.tensor("x", (2, 3), "float16")
    assert graph.tensors["x"].strides == (3, 1)
    with pytest.raises(ValueError, match="already has a tensor 'x'"):
        graph.tensor("x", (2, 3), "float16")
    with pytest.raises(ValueError, match="dtype 'float64'"):
        graph.tensor("w", (2, 3), "float64")
    with pytest.raises(ValueError, match="2 dims and 1 strides"):
        graph.tensor("w", (2, 3), "float16", (1,))
    with pytest.raises(ValueError, match="must be integers"):
        graph.tensor("w", (2, 3.0), "float16")
    with pytest.raises(ValueError, match="none may be negative"):
        graph.tensor("w", (2, -3), "float16")
    with pytest.raises(ValueError, match="w has 2 dims and 0 strides"):
        graph.tensor("w", (2, 3), "float16", ())


def test_attributes_are_numbers():
    assert Attributes(64, 1, [0, 1]) == Attributes(64, True, (0.0, 1.0))
    for chunk in ("64", 64.0, None, True):
        with pytest.raises(ValueError, match="chunk_size is"):
            Attributes(chunk)
    for limit in (None, (0.0,), (0, 1, 2), "ab"):
        with pytest.raises(ValueError, match="must be two numbers"):
            Attributes(dt_limit=limit)


@pytest.mark.parametrize("step", [32, 64, 256])
def test_packed_sequences_own_separate_slots(step):
    """The rule of `tokens`: sequence s begins at cuts[s] // step + s. Its tiles never reach the next one's,
    and the last ends within `slots`, for any lengths, empty ones included."""
    draw = random.Random(step)
    for _ in range(300):
        cuts = [0]
        for _ in range(draw.randint(1, 9)):
            cuts.append(cuts[-1] + draw.choice([0, 1, step - 1, step, step + 1, draw.randint(0, 5 * step)]))
        begins = [cut // step + s for s, cut in enumerate(cuts)]
        ends = [begins[s] + -(-(cuts[s + 1] - cuts[s]) // step) for s in range(len(cuts) - 1)]
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=True))
        assert ends[-1] <= slots(cuts[-1], len(cuts) - 1, step, True)
