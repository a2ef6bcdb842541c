"""What the published work found, as regressions: each defect is rejected, each repair is clean.

Three findings went back into its verifier, from its Mamba kernels C1 to C5: a tolerance that knows the scale
of the result, the separation of a half-precision carry, and subnormals in affine operators. Two defects were
its kernels' own: channels inferred from the wrong shape, and a decay parameter that drifts (arXiv:2608.12700,
section 3.3 and appendices B and C). Each operator here is the smallest that shows the finding.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lethe.evidence.fairness.innocent import kernel, kernelbench, reading
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.settings import Budget
from lethe.verifier.tolerance import paper_bound


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with Judge(device="cpu", quick=True, budget=Budget(case_elements=1 << 12)) as running:
        yield running
    torch.set_num_threads(before)


def judged(judge: Judge, problem: str, candidate: str, *gates: str):
    return judge.verify(load_problem(problem), load_candidate(candidate), gates=gates)


def run(source: str, name: str, *inputs: torch.Tensor) -> torch.Tensor:
    """The result of the class `name` of a source, outside the judge."""
    namespace: dict = {}
    exec(source, namespace)
    return namespace[name]()(*inputs)


class TestScaleAwareTolerance:
    """C1, the chunked scan h_t = a_t h_{t-1} + x_t: results of every scale, from one set of inputs."""

    PROBLEM = kernelbench(
        """h, out = torch.zeros_like(x[..., 0]), []
for t in range(x.shape[-1]):
    h = w[..., t] * h + x[..., t]
    out.append(h)
return torch.stack(out, -1)""",
        "torch.randn(rows, length), 0.9 + 0.1 * torch.rand(rows, length)",
        "rows = 2\nlength = 32",
    )
    CHUNKED = """out, h = [], torch.zeros_like(x[..., 0])
for start in range(0, x.shape[-1], 8):
    a, b = w[..., start : start + 8], x[..., start : start + 8]
    n = a.shape[-1]
    decay = torch.ones(*a.shape[:-1], n, n)
    for i in range(n):
        for j in range(i):
            decay[..., i, j] = a[..., j + 1 : i + 1].prod(-1)
    inside = (decay.tril() @ b.unsqueeze(-1)).squeeze(-1)
    chunk = inside + a.cumprod(-1) * h.unsqueeze(-1)
    h = CARRY
    out.append(chunk)
return torch.cat(out, -1)"""

    def candidate(self, carry: str) -> str:
        return kernel(self.CHUNKED.replace("CARRY", carry), "x, w")

    def scaled(self, factor: str) -> str:
        return self.PROBLEM.replace("[torch.randn", f"[{factor} * torch.randn")

    def test_a_chunked_scan_is_clean_although_it_errs_by_more_than_a_fixed_tolerance(self, judge):
        honest = self.candidate("chunk[..., -1]")
        g = torch.Generator().manual_seed(1)
        x, w = 1e4 * torch.randn(2, 32, generator=g), 0.9 + 0.1 * torch.rand(2, 32, generator=g)
        error = run(honest, "ModelNew", x, w).double() - run(self.PROBLEM, "Model", x.double(), w.double())
        assert error.abs().max() > 1e-3, "far above an absolute tolerance of 1e-5"
        verdict = judged(judge, self.scaled("1e4"), honest, "ORD-01")
        assert reading(verdict) == "clean"

    def test_a_rounded_carry_is_rejected_although_it_errs_by_less_than_a_fixed_tolerance(self, judge):
        careless = self.candidate("chunk[..., -1].bfloat16().float()")
        g = torch.Generator().manual_seed(1)
        x, w = 1e-4 * torch.randn(2, 32, generator=g), 0.9 + 0.1 * torch.rand(2, 32, generator=g)
        truth = run(self.PROBLEM, "Model", x.double(), w.double())
        error = run(careless, "ModelNew", x, w).double() - truth
        bound, _ = paper_bound(truth, x.numel(), gate="CMP-01")
        assert error.abs().max() < 1e-5 <= float(bound.min()), "the published tolerance has a floor of 1e-5"
        verdict = judged(judge, self.scaled("1e-4"), careless, "ORD-01")
        assert verdict.failed == ("ORD-01",)
        assert min(f.metric for f in verdict.gate("ORD-01").findings) < 1e-5


class TestHalfCarry:
    """C2, C3 and C5: a long reduction whose running total is kept in float16."""

    PROBLEM = kernelbench("x.sum(-1)", "torch.randn(rows, width)", "rows = 4\nwidth = 512")
    BLOCKS = """total = torch.zeros(x.shape[:-1], dtype=torch.CARRY)
for part in x.split(32, -1):
    total = (total.float() + part.sum(-1)).to(torch.CARRY)
return total.float()"""

    def test_a_float16_carry_is_told_apart(self, judge):
        verdict = judged(judge, self.PROBLEM, kernel(self.BLOCKS.replace("CARRY", "float16")), "PRC-02")
        # the shifted draws' sums are beyond float16's largest number as well
        assert reading(verdict) == "FAIL PRC-02 float16_carry, PRC-02 nonfinite"

    def test_a_float32_carry_in_the_same_blocks_is_clean(self, judge):
        verdict = judged(judge, self.PROBLEM, kernel(self.BLOCKS.replace("CARRY", "float32")), "PRC-02")
        assert reading(verdict) == "clean"

    @pytest.mark.slow
    def test_a_recurrence_is_told_apart_as_well(self, judge):
        problem = kernelbench(
            """h = torch.zeros_like(x[..., 0])
for t in range(x.shape[-1]):
    h = 0.99 * h + x[..., t]
return h""",
            "torch.randn(rows, length)",
            "rows = 4\nlength = 64",
        )
        body = "h = torch.zeros(x.shape[:-1])\nfor t in range(x.shape[-1]):\n    h = STEP\nreturn h"
        step = "0.99 * h + x[..., t]"
        narrow = kernel(body.replace("STEP", f"({step}).half().float()"))
        wide = kernel(body.replace("STEP", step))
        found = reading(judged(judge, problem, narrow, "PRC-02"))
        assert found == "FAIL PRC-02 float16_carry, PRC-02 nonfinite"
        assert reading(judged(judge, problem, wide, "PRC-02")) == "clean"


class TestSubnormalFlush:
    """C5's skip connection D x + b: affine, so that subnormals must come through."""

    FLUSH = "y = BODY\nreturn torch.where(y.abs() < 2.0**-126, 0.0 * y, y)"

    @pytest.mark.parametrize("body", ["0.5 * x", "-x", "x + x.flip(-1)"])
    def test_an_affine_operator_that_flushes_is_rejected(self, judge, body):
        problem = kernelbench(body, "torch.randn(rows, width)")
        verdict = judged(judge, problem, kernel(self.FLUSH.replace("BODY", body)), "CMP-01", "EXC-02")
        assert reading(verdict) == "FAIL EXC-02 flushed"
        assert not verdict.gate("EXC-02").findings[0].extra["imposed"]
        assert reading(judged(judge, problem, kernel(body), "CMP-01", "EXC-02")) == "clean"

    def test_an_operator_that_is_not_affine_may_flush(self, judge):
        body = "x * torch.sigmoid(x)"
        problem = kernelbench(body, "torch.randn(rows, width)")
        flushing = kernel(self.FLUSH.replace("BODY", body))
        verdict = judged(judge, problem, flushing, "CMP-01", "EXC-02")
        assert reading(verdict) == "clean"


class TestChannelInference:
    """C5's causal depthwise convolution, x (batch, length, channels) with weights (channels, taps).

    The published kernel took the number of channels from its input without asking the weights. Where both
    agree nothing shows, and where they do not the operator has no answer, so that no gate may ask (rules 1
    and 19); the guard is tested directly. A kernel that infers from the wrong dimension is the judge's case.
    """

    SIZES = "batch = 2\nlength = 16\nchannels = 16"
    DRAWN = "torch.randn(batch, length, channels), torch.randn(channels, 4)"
    PROBLEM = kernelbench(
        "F.conv1d(F.pad(x.mT, (w.shape[1] - 1, 0)), w.unsqueeze(1), groups=w.shape[0]).mT", DRAWN, SIZES
    )
    TAPS = """channels = INFERRED
GUARD
n = w.shape[1]
padded = F.pad(x, (0, 0, n - 1, 0))
taps = w.reshape(-1)[: n * channels].reshape(channels, n)
return sum(padded[:, k : k + x.shape[1], :channels] * taps[:, k] for k in range(n))"""

    def candidate(self, inferred: str, guard: str = "pass") -> str:
        return kernel(self.TAPS.replace("INFERRED", inferred).replace("GUARD", guard), "x, w")

    def test_channels_from_the_length_are_right_on_square_inputs_only(self, judge):
        verdict = judged(judge, self.PROBLEM, self.candidate("x.shape[1]"), "CMP-01", "CMP-03")
        assert verdict.failed == ("CMP-03",)
        assert verdict.gate("CMP-01").status == "pass"

    def test_channels_from_the_weights_are_clean(self, judge):
        repaired = self.candidate("w.shape[0]", GUARD)
        verdict = judged(judge, self.PROBLEM, repaired, "CMP-01", "CMP-03")
        assert reading(verdict) == "clean"

    def test_a_mismatch_is_an_error_and_no_broadcast(self):
        x, w = torch.randn(2, 16, 8), torch.randn(16, 4)
        unguarded = run(self.candidate("x.shape[2]"), "ModelNew", x, w)
        assert unguarded.shape == (2, 16, 8), "it answers, with the weights of other channels"
        with pytest.raises(ValueError, match="8 channels, the weights have 16"):
            run(self.candidate("w.shape[0]", GUARD), "ModelNew", x, w)


GUARD = """if x.shape[2] != channels:
    raise ValueError(f"the input has {x.shape[2]} channels, the weights have {channels}")"""


class TestDriftingDecay:
    """The decay exp(-exp(A_log) dt) of C1 and C5, below 1 whatever A_log is trained to."""

    SCAN = """h = torch.zeros(x.shape[0], STATES)
decay = DECAY
for t in range(x.shape[1]):
    h = decay * h + x[:, t].unsqueeze(-1)
return h"""
    HELD = """def __init__(self):
    super().__init__()
    self.A_log = nn.Parameter(torch.log(torch.arange(1.0, 13.0)))
"""

    def scan(self, decay: str, states: str) -> str:
        return self.SCAN.replace("DECAY", decay).replace("STATES", states)

    def test_a_decay_that_can_exceed_one_is_rejected(self, judge):
        """A = -(1 + A_log) is the decay's first order around its initial value: it drifts positive."""
        inputs = "torch.randn(rows, length), 0.3 * torch.randn(states)"
        problem = kernelbench(
            self.scan("torch.exp(-0.1 * w.exp())", "w.shape[0]"), inputs, "rows = 2\nlength = 12\nstates = 6"
        )
        drifting = kernel(self.scan("torch.exp(-0.1 * (1 + w))", "w.shape[0]"), "x, w")
        long = torch.ones(1, 1000)
        assert not run(drifting, "ModelNew", long, torch.tensor([-6.0])).isfinite().all()
        assert run(problem, "Model", long, torch.tensor([-6.0])).isfinite().all()
        assert "CMP-01" in judged(judge, problem, drifting, "CMP-01").failed
        repaired = kernel(self.scan("torch.exp(-0.1 * torch.exp(w))", "w.shape[0]"), "x, w")
        assert reading(judged(judge, problem, repaired, "CMP-01")) == "clean"

    @pytest.mark.parametrize("held", ["torch.arange(1.0, 13.0)", "self.rate"], ids=["constant", "buffer"])
    def test_a_kernel_that_keeps_the_initial_decay_is_rejected_once_the_parameter_moves(self, judge, held):
        problem = kernelbench(
            self.scan("torch.exp(-0.1 * self.A_log.exp())", "12"),
            "torch.randn(rows, length)",
            "rows = 2\nlength = 8",
            model=self.HELD,
        )
        copy = '    self.register_buffer("rate", torch.arange(1.0, 13.0), persistent=False)\n'
        stale = kernel(self.scan(f"torch.exp(-0.1 * {held})", "12"), model=self.HELD + copy)
        verdict = judged(judge, problem, stale, "CMP-01")
        assert verdict.failed == ("CMP-01",)
        assert {f.case for f in verdict.gate("CMP-01").findings} == {"varied_weights"}
        repaired = kernel(self.scan("torch.exp(-0.1 * self.A_log.exp())", "12"), model=self.HELD)
        assert reading(judged(judge, problem, repaired, "CMP-01")) == "clean"
