"""Narrow regimes, accumulators, orders, subnormals and gradients are blamed only for what they explain."""

from __future__ import annotations

import pytest

from lethe.evidence.fairness.innocent import kernel, kernelbench
from lethe.verifier.judge import Judge
from lethe.verifier.problem import load_candidate, load_problem
from lethe.verifier.verdict import GateStatus, Reason, Verdict

ELEVEN_BITS = "tf32 or float16"
LINEAR = "def __init__(self):\n    super().__init__()\n    self.fc = nn.Linear(96, 40)\n"
CONV = "def __init__(self):\n    super().__init__()\n    self.conv = nn.Conv2d(3, 8, 3)\n"
PAIR = "torch.randn(m, k), torch.randn(k, n)"
PAIR_SIZES = "m = 24\nk = 96\nn = 20"
PRODUCT = kernelbench("x @ w", PAIR, PAIR_SIZES)
MASK = "def tf32(t):\n    return (t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)\n"


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", quick=True) as j:
        yield j


def judged(judge: Judge, problem: str, candidate: str, *gates: str) -> Verdict:
    return judge.verify(load_problem(problem), load_candidate(candidate), gates=gates)


def found(v: Verdict, gate: str) -> set[str]:
    return {f.mechanism for f in v.gate(gate).findings}


def excused(v: Verdict, *gates: str) -> bool:
    return all(v.gate(g).reason is Reason.EARLIER_FAILURE for g in gates)


# ---------------------------------------------------------------- names of regimes


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("tf32(x) @ tf32(w)", ELEVEN_BITS),
        ("x.clamp(-6e4, 6e4).half().float() @ w.clamp(-6e4, 6e4).half().float()", ELEVEN_BITS),
        ("x.half().float() @ w.half().float()", "float16"),
        ("(x.half() @ w.half()).float()", "float16"),
        ("x.bfloat16().float() @ w.bfloat16().float()", "bfloat16"),
        ("(x.bfloat16() @ w.bfloat16()).float()", "bfloat16"),
    ],
)
def test_float16_is_told_from_tf32_by_its_range_alone(judge, body, name):
    assert found(judged(judge, PRODUCT, kernel(body, "x, w", top=MASK), "PRC-01"), "PRC-01") == {name}


@pytest.mark.parametrize("kind", ["half", "bfloat16"])
@pytest.mark.parametrize("stored", ["", ".KIND().float()"])
def test_narrow_operands_and_results_before_an_epilogue_in_float32_are_charged(judge, kind, stored):
    problem = kernelbench("F.gelu(self.fc(x))", "torch.randn(rows, 96)", "rows = 24", model=LINEAR)
    product = f"F.linear(x.KIND().float(), f.weight.KIND().float(), f.bias){stored}"
    body = f"f = self.fc\nreturn F.gelu({product})"
    v = judged(judge, problem, kernel(body.replace("KIND", kind), model=LINEAR), "PRC-01")
    assert len(found(v, "PRC-01")) == 1, v.gate("PRC-01")


def test_an_error_far_beyond_a_regime_is_not_its_own(judge):
    problem = kernelbench(
        "torch.sigmoid(self.conv(x).softmax(1))", "torch.randn(2, 3, 12, 12)", "", model=CONV
    )
    wrong = kernel("torch.sigmoid(self.conv(x).softmax(-1))", model=CONV)
    v = judged(judge, problem, wrong, "CMP-01", "ORD-01", "PRC-01", "PRC-02")
    assert v.failed == ("CMP-01",) and excused(v, "ORD-01", "PRC-01")


def test_unmasked_lanes_of_a_variance_are_no_narrow_regime(judge):
    """Each lane beyond the end adds the mean's square: an error as large as that of bfloat16 here."""
    normed = "y = self.conv(x)\nreturn F.instance_norm(y)"
    problem = kernelbench(normed, "torch.randn(4, 3, 16, 16)", "", model=CONV)
    body = """y = self.conv(x)
mean = y.mean((2, 3), keepdim=True)
n = y.shape[2] * y.shape[3]
variance = ((y - mean) ** 2).mean((2, 3), keepdim=True) + mean**2 * (-n % 256) / n / 4
return (y - mean) * torch.rsqrt(variance + 1e-5)"""
    v = judged(judge, problem, kernel(body, model=CONV), "CMP-01", "ORD-01", "PRC-01", "PRC-02")
    assert v.failed == ("CMP-01",) and excused(v, "ORD-01", "PRC-01", "PRC-02")
    half = body.replace("self.conv(x)", "F.conv2d(x.bfloat16().float(), self.conv.weight, self.conv.bias)")
    half = half.replace(" / n / 4", " / n * 0")
    v = judged(judge, problem, kernel(half, model=CONV), "PRC-01", "ORD-01")
    assert found(v, "PRC-01") == {"bfloat16"} and v.gate("ORD-01").reason is not Reason.EARLIER_FAILURE


def test_a_constructor_that_reads_its_weights_is_not_given_others(judge):
    """The copy that it made would be stale, and the error of narrow operands would seem to stay."""
    problem = kernelbench("self.fc(x)", "torch.randn(rows, 96)", "rows = 24", model=LINEAR)
    made = LINEAR + "    self.narrow = [self.fc.weight.detach().bfloat16().float()]\n"
    v = judged(judge, problem, kernel("F.linear(x, self.narrow[0], self.fc.bias)", model=made), "PRC-01")
    assert found(v, "PRC-01") == {"bfloat16"}


# ---------------------------------------------------------------- accumulators

NORM_SIZES = "rows = 3\nwidth = 4225"
NORM = kernelbench("F.layer_norm(x, x.shape[-1:])", "torch.randn(rows, width)", NORM_SIZES)


def normed(variance: str, top: str = "") -> str:
    body = f"m = x.mean(-1, keepdim=True)\nv = {variance}\nreturn (x - m) * torch.rsqrt(v + 1e-5)"
    return kernel(body, top=top)


def test_a_one_pass_variance_is_no_narrow_carry(judge):
    """Over many terms it loses so much that the carry's threshold is passed at the longest length too."""
    sequential = """def total(x):
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=-1, dtype=np.float32)[..., -1:].copy())
"""
    one_pass = "(total(x * x / x.shape[-1]) - total(x / x.shape[-1]) ** 2).clamp(min=0)"
    problem = NORM.replace("width = 4225", "width = 65536")
    assert found(judged(judge, problem, normed(one_pass, sequential), "PRC-02"), "PRC-02") == {"one_pass"}


def test_lanes_that_add_the_square_of_the_mean_are_no_narrow_carry(judge):
    """They show on inputs of one sign only, where a narrow carry would show on any."""
    lanes = "((x - m) ** 2).mean(-1, keepdim=True) + m * m * (-x.shape[-1] % 64) / x.shape[-1]"
    v = judged(judge, NORM, normed(lanes), "CMP-01", "PRC-02")
    assert v.failed == ("CMP-01",) and excused(v, "PRC-02")


def test_a_narrow_carry_of_a_variance_is_still_charged(judge):
    carried = """def total(x):
    t = x.new_zeros(*x.shape[:-1], 1)
    for part in x.split(32, -1):
        t = (t + part.sum(-1, keepdim=True)).bfloat16().float()
    return t
"""
    v = judged(judge, NORM, normed("total((x - m) ** 2) / x.shape[-1]", carried), "PRC-01", "PRC-02")
    assert v.failed, [g.detail for g in v.gates]


# ---------------------------------------------------------------- failures of another kind


def test_what_is_never_written_is_blamed_on_no_subnormal(judge):
    problem = kernelbench("x * 2", "torch.randn(rows, width)")
    unwritten = "y = x * 2\ny[:, 9:] = torch.nan\nreturn y"
    v = judged(judge, problem, kernel(unwritten), "CMP-01", "EXC-02")
    assert v.failed == ("CMP-01",) and excused(v, "EXC-02")


def test_an_element_that_is_nan_without_subnormals_too_is_not_charged_to_them(judge, monkeypatch):
    from lethe.verifier import fairness

    monkeypatch.setattr(fairness, "is_rounding", lambda f: True)
    problem = kernelbench("torch.sigmoid(x)", "torch.randn(rows, width)")
    odd = "y = torch.sigmoid(x)\ny[:, 9:] = torch.nan\nreturn y"
    assert judged(judge, problem, kernel(odd), "EXC-02").gate("EXC-02").status is GateStatus.PASS
    tiny = odd.replace("y[:, 9:] =", "y[:, :] += 0 *").replace("torch.nan", "(x * 2.0**126 / x.abs().amax())")
    assert judged(judge, problem, kernel(tiny), "EXC-02").gate("EXC-02").status is GateStatus.PASS
    minted = odd.replace("[:, 9:]", "[(x != 0) & (x.abs() < 2.0**-126)]")
    assert found(judged(judge, problem, kernel(minted), "EXC-02"), "EXC-02") == {"minted"}


def test_an_overflow_is_blamed_on_no_order_of_summation(judge):
    problem = kernelbench("F.mish(x @ w)", PAIR, PAIR_SIZES)
    overflows = "y = x @ w\ne = torch.exp(y)\nreturn y * (e * e + 2 * e) / (e * e + 2 * e + 2)"
    v = judged(judge, problem, kernel(overflows, "x, w"), "CMP-01", "ORD-01", "ORD-03")
    assert v.failed == ("CMP-01",) and excused(v, "ORD-01", "ORD-03")


ROW_SUMS = """
@triton.jit
def rows(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    s = tl.sum(tl.load(x_ptr + row * width + at, mask=at < width, other=0.0), 0)
    e = tl.exp(2 * s)
    tl.store(y_ptr + row, tl.maximum((e - 1) / (e + 1), -2.0))
"""
LAUNCH = """x = x.contiguous()
y = torch.empty(x.shape[:1], device=x.device)
rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
return y"""


def test_nor_is_one_that_a_maximum_turns_into_a_number(judge):
    """inf/inf is NaN, of which ``tl.maximum`` makes -2: a wrong value, and no rounding error."""
    problem = kernelbench("torch.tanh(x.sum(-1)).clamp(min=-2)", "torch.randn(rows, width)")
    top = "import triton\nimport triton.language as tl\n" + ROW_SUMS
    v = judged(judge, problem, kernel(LAUNCH, top=top), "CMP-01", "ORD-01", "ORD-03")
    assert found(v, "CMP-01") == {"value"}, "no NaN is to be seen"
    assert v.failed == ("CMP-01",) and excused(v, "ORD-01")


def test_narrow_operands_stay_charged_by_the_orders_of_summation(judge):
    v = judged(
        judge, PRODUCT, kernel("x.bfloat16().float() @ w.bfloat16().float()", "x, w"), "ORD-01", "ORD-03"
    )
    assert "ORD-01" in v.failed and found(v, "ORD-01") == {"value"}


# ---------------------------------------------------------------- gradients

CLAMPED = kernelbench("F.hardtanh(x @ w)", "0.1 * torch.randn(m, k), torch.randn(k, n)", PAIR_SIZES)
COARSE = "z = x @ w\nreturn F.hardtanh(z + ((z * 64).round() / 64 - z).detach())"


def test_the_gradient_of_other_values_is_not_charged_but_a_missing_one_is(judge):
    v = judged(judge, CLAMPED, kernel(COARSE, "x, w"), "CMP-01", "CMP-02")
    assert v.failed == ("CMP-01",) and excused(v, "CMP-02")
    v = judged(judge, CLAMPED, kernel(COARSE.replace("x @ w", "x @ w.detach()"), "x, w"), "CMP-02")
    assert found(v, "CMP-02") == {"missing_gradient"}
    right_values = "z = x @ w\nreturn F.hardtanh(z) * 2 - F.hardtanh(z).detach()"
    assert found(judged(judge, CLAMPED, kernel(right_values, "x, w"), "CMP-02"), "CMP-02") == {"value"}
