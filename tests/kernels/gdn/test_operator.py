"""`gated_delta_rule` on a CPU: values and gradients, packing, modes, compilation, and what it refuses."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad

from lethe.kernels import gdn as family
from lethe.kernels.gdn import dispatch, explain, gated_delta_rule, torch_path
from lethe.references.gdn import gated_delta_rule_backward, gated_delta_rule_forward
from tests.references.gdn_draws import draw, state, worst

PUBLIC = {"q": "q", "k": "k", "v": "v", "g": "g", "b": "beta", "w": "w"}


def public(x):
    return {PUBLIC[name]: t for name, t in x.items()}


def operator_gradients(x, S0, do, dfinal, **how):
    leaves = {n: t.clone().requires_grad_() for n, t in {**x, "initial_state": S0}.items()}
    initial = leaves["initial_state"]
    o, final = gated_delta_rule(
        **public({n: t for n, t in leaves.items() if n != "initial_state"}),
        initial_state=initial,
        output_final_state=True,
        **how,
    )
    found = torch.autograd.grad([o, final], list(leaves.values()), [do, dfinal])
    return o.detach(), final.detach(), dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("mode", ["recompute", "save"])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 5e-6)], ids=["float64", "float32"]
)
def test_outputs_and_gradients(dtype, bound, mode):
    """float32 rounds by 6e-8; sums of up to 128 terms and the inverse amplify it by less than a hundred."""
    x, S0 = draw(150, 64, 32, batch=2, heads=2, gate=2.0), state(2, 2, 64, 32)
    x, S0 = {n: t.to(dtype) for n, t in x.items()}, S0.to(dtype)
    exact, S64 = {n: t.double() for n, t in x.items()}, S0.double()
    o, final = gated_delta_rule_forward(**exact, scale=0.125, initial_state=S64)
    do, dfinal = torch.randn_like(o).to(dtype), torch.randn_like(final).to(dtype)
    expected = gated_delta_rule_backward(
        do.double(), **exact, scale=0.125, initial_state=S64, dfinal=dfinal.double()
    )
    got_o, got_final, got = operator_gradients(x, S0, do, dfinal, mode=mode)
    assert worst({"o": got_o, "final": got_final}, {"o": o, "final": final}) < bound
    assert worst(got, expected) < bound
    assert all(got[n].dtype == dtype for n in got)


def test_packed_sequences_with_empty_ones():
    x, cu = draw(150, 16, 12, heads=2), torch.tensor([0, 0, 70, 134, 134, 150], dtype=torch.int32)
    S0, dfinal = state(5, 2, 16, 12), state(5, 2, 16, 12, seed=2)
    o, final = gated_delta_rule_forward(**x, initial_state=S0, cu_seqlens=cu)
    do = torch.randn_like(o)
    expected = gated_delta_rule_backward(do, **x, initial_state=S0, dfinal=dfinal, cu_seqlens=cu)
    for mode in ("recompute", "save"):
        got_o, got_final, got = operator_gradients(x, S0, do, dfinal, scale=1.0, cu_seqlens=cu, mode=mode)
        assert worst({"o": got_o, "final": got_final}, {"o": o, "final": final}) < 1e-12
        assert worst(got, expected) < 1e-12


@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bit_inputs_round_only_at_the_end(io):
    """The sums are float32, so a stored value is within an ulp of its own of the exact one, and a little."""
    x = {n: t if n == "g" else t.to(io) for n, t in draw(100, 16, 12, gate=1.0).items()}
    x["g"] = x["g"].float()
    exact, S0 = {n: t.double() for n, t in x.items()}, torch.zeros(1, 1, 16, 12)
    o, _ = gated_delta_rule_forward(**exact, scale=0.25)
    do = torch.randn_like(o).to(io)
    expected = gated_delta_rule_backward(do.double(), **exact, scale=0.25)
    got_o, _, got = operator_gradients(x, S0, do, S0, scale=0.25)
    assert got_o.dtype == io and got["g"].dtype == torch.float32 and got["b"].dtype == io
    half_ulp = torch.finfo(io).eps / 2
    assert worst({"o": got_o}, {"o": o}) < half_ulp + 5e-6
    assert worst(got, expected) < half_ulp + 5e-6


def test_gradcheck():
    x, S0 = draw(5, 3, 2), state(1, 1, 3, 2)
    leaves = [t.requires_grad_() for t in (*x.values(), S0)]

    def call(q, k, v, g, b, w, S):
        return gated_delta_rule(q, k, v, g, b, w, scale=0.7, initial_state=S, output_final_state=True)

    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("mode", ["recompute", "save"])
@pytest.mark.parametrize("gates", ["all", "none"])
def test_the_operators_are_well_formed(gates, mode, backend):
    """Schemas and fakes of both operators; that they trace is `test_it_compiles_without_a_break`."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    x, cu = list(draw(70, 4, 3).values()), torch.tensor([0, 30, 30, 70])
    x, cu = (x, cu) if gates == "all" else ([*x[:3], None, None, None], None)
    live = [None if t is None else t.requires_grad_() for t in x]
    for wide in ((), (True,)):
        args = (*live, None, cu, 0.5, backend, mode == "save", *wide)
        torch.library.opcheck(torch.ops.lethe.gated_delta_rule.default, args, test_utils=checks)
    plain = [None if t is None else t.detach() for t in x]
    _, final, *saved = torch.ops.lethe.gated_delta_rule(*plain, None, cu, 0.5, backend, mode == "save")
    args = (torch.randn_like(plain[2]), torch.randn_like(final), *saved, *plain, None, cu, 0.5, backend)
    torch.library.opcheck(torch.ops.lethe.gated_delta_rule_backward.default, args, test_utils=checks)


def test_it_compiles_without_a_break(monkeypatch):
    """And the compiler reads nothing of the dispatch: not every release could."""
    refusal = dispatch.refusal

    def unread(name, a):
        assert not torch.compiler.is_dynamo_compiling()
        return refusal(name, a)

    monkeypatch.setattr(dispatch, "refusal", unread)
    x = {n: t.float() for n, t in draw(100, 8, 6, heads=2).items()}

    def loss(q, k, v, g, b, w):
        o, final = gated_delta_rule(q * 2, k, v, g, b, w, output_final_state=True)
        return (o.sin().sum() + final.sum()) * 2

    grads = []
    for f in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [t.clone().requires_grad_() for t in x.values()]
        grads.append(torch.autograd.grad(f(*leaves), leaves))
    for eager, compiled in zip(*grads, strict=True):
        assert torch.equal(eager, compiled)


@torch.compiler.config.patch(force_disable_caches=True)
def test_training_compiles_with_saved_states_whatever_the_backend_is_called():
    """The compiler allocates what the fake promises: with ``auto`` those of the native kernels.

    Its caches on disk know an operator by its name, not by what its fake says: they would hide a change.
    """
    x = {n: t.float() for n, t in draw(70, 4, 3).items()}

    def loss(*leaves):
        return gated_delta_rule(*leaves, mode="save")[0].square().sum()

    grads = []
    for f in (loss, torch.compile(loss, fullgraph=True)):
        leaves = [t.clone().requires_grad_() for t in x.values()]
        grads.append(torch.autograd.grad(f(*leaves), leaves))
    for eager, compiled in zip(*grads, strict=True):
        assert torch.equal(eager, compiled)


def test_a_native_backend_sees_the_dtype_of_v_where_the_output_is_wide(monkeypatch):
    """It gives o in that of v, and takes the gradient so; the operator widens one and narrows the other."""

    def forward(a, save):
        assert a.v.dtype == torch.bfloat16
        return torch_path.forward(a, save)

    def backward(a, do, dfinal, saved):
        assert do.dtype == torch.bfloat16
        return torch_path.backward(a, do, dfinal, saved)

    native = SimpleNamespace(forward=forward, backward=backward)
    monkeypatch.setattr(dispatch, "module", lambda backend: native)
    x = [torch.randn(1, 5, 1, 4).bfloat16().requires_grad_() for _ in range(3)]
    op = torch.ops.lethe.gated_delta_rule
    absent = (None,) * 5
    o, final, *_ = op(*x, *absent, 0.5, "cute_sm90", False, True)
    assert o.dtype == final.dtype == torch.float32 and torch.equal(o, o.bfloat16().float())
    (dv,) = torch.autograd.grad(o.sum(), x[2])
    assert dv.dtype == torch.bfloat16 and dv.isfinite().all()


def test_forward_mode_is_refused_and_not_silently_zero():
    x = list(draw(5, 3, 2).values())
    refused = pytest.raises(NotImplementedError, match="gated_delta_rule has no forward-mode derivative")
    for name, i in zip(PUBLIC, range(6), strict=True):

        def call(t, i=i):
            return gated_delta_rule(*x[:i], t, *x[i + 1 :])[0]

        with refused:
            torch.func.jvp(call, (x[i],), (x[i],))
        if name == "q":
            with refused:
                torch.func.jacfwd(call)(x[i])
    with forward_ad.dual_level():
        assert gated_delta_rule(*x)[0].shape == x[2].shape
        with refused:
            gated_delta_rule(forward_ad.make_dual(x[0].requires_grad_(), x[0].detach()), *x[1:])
    with pytest.raises(Exception, match="no forward-mode derivative"):
        torch.compile(
            lambda t: torch.func.jvp(lambda k: gated_delta_rule(x[0].detach(), k, *x[2:])[0], (t,), (t,)),
            backend="aot_eager",
            fullgraph=True,
        )(x[1])


def test_a_tangent_of_the_gradient_is_refused():
    x = [t.requires_grad_() for t in draw(5, 3, 2).values()]
    o, _ = gated_delta_rule(*x)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.autograd.grad(o, x, forward_ad.make_dual(torch.ones_like(o), torch.ones_like(o)))


def test_a_second_derivative_is_refused():
    x = [t.requires_grad_() for t in draw(5, 3, 2).values()]
    o, _ = gated_delta_rule(*x)
    (dq,) = torch.autograd.grad(o.square().sum(), x[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiated once"):
        dq.sum().backward()


def test_memory_kept_for_the_backward_pass():
    """recompute keeps the inputs and nothing else; save adds A, T and the states."""
    x = [t.requires_grad_() for t in draw(128, 8, 6).values()]
    kept = {}
    for mode in ("recompute", "save"):
        sizes = []
        pack = lambda t, sizes=sizes: sizes.append(t.numel()) or t  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            gated_delta_rule(*x, mode=mode)
        kept[mode] = sum(sizes)
    inputs = sum(t.numel() for t in x)
    assert kept["recompute"] == inputs
    assert kept["save"] == inputs + 2 * (64 * 64 + 64 * 64 + 8 * 6)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"k": lambda x: x["k"][:, :3]}, ValueError, r"k has shape \(1, 3, 1, 4\), expected \(1, 5, 1, 4\)"),
        ({"v": lambda x: x["v"].float()}, TypeError, r"v is torch\.float32, q is torch\.float64"),
        ({"g": lambda x: x["g"].half()}, TypeError, r"g is torch\.float16; .* must be torch\.float64"),
        ({"g": lambda x: x["g"][..., :2]}, ValueError, r"g has shape .* one number a head"),
        ({"beta": lambda x: x["b"].int()}, TypeError, r"beta is torch\.int32"),
        ({"w": lambda x: None}, ValueError, "w is needed when beta has one number a channel"),
        ({"initial_state": lambda x: x["q"]}, ValueError, r"initial_state has shape"),
        ({"cu_seqlens": lambda x: torch.tensor([0, 3])}, ValueError, r"must rise from 0 to L=5"),
        (
            {"cu_seqlens": lambda x: torch.tensor([0.0, 5.0])},
            ValueError,
            r"cu_seqlens must be int32 or int64",
        ),
        ({"backend": lambda x: "triton"}, ValueError, r"backend is 'triton'; choose auto"),
        ({"mode": lambda x: "fast"}, ValueError, r"mode is 'fast'; choose recompute or save"),
        ({"q": lambda x: x["q"][0]}, ValueError, r"q must be \[B, L, H, dk\]"),
        ({"q": lambda x: x["q"].numpy()}, TypeError, r"q must be a tensor; it is of type ndarray"),
        ({"k": lambda x: None}, TypeError, r"k must be a tensor; it is None"),
        ({"g": lambda x: -0.1}, TypeError, r"g must be a tensor or None; it is of type float"),
        ({"beta": lambda x: [0.5]}, TypeError, r"beta must be a tensor or None; it is of type list"),
        ({"initial_state": lambda x: 0.0}, TypeError, r"initial_state must be a tensor or None"),
        ({"cu_seqlens": lambda x: [0, 5]}, TypeError, r"cu_seqlens must be a tensor or None"),
        ({"beta": lambda x: x["b"].float()}, TypeError, r"beta is .*32; .* it must be torch\.float64$"),
        ({"beta": lambda x: x["b"].to("meta")}, ValueError, r"beta is on meta, q is on cpu"),
        ({"scale": lambda x: torch.tensor(1.0).requires_grad_()}, TypeError, "scale must be a number"),
        ({"scale": lambda x: "a"}, TypeError, "scale must be a number; it is of type str"),
        ({"scale": lambda x: torch.ones(2)}, TypeError, r"scale must be a number; it is a tensor of shape"),
        ({"scale": lambda x: float("nan")}, ValueError, "scale must be finite; it is nan"),
        ({"scale": lambda x: float("inf")}, ValueError, "scale must be finite; it is inf"),
        ({"cu_seqlens": lambda x: torch.tensor([0, 4, 2, 5])}, ValueError, "its entry 2 is 2 after 4"),
        ({"cu_seqlens": lambda x: torch.tensor([1, 5])}, ValueError, "it begins with 1"),
        ({n: lambda x, n=n: x[n][:, :0] for n in "qkv"}, ValueError, "no axis may be empty"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_refusals_name_the_argument(change, error, sentence):
    x = draw(5, 4, 3)
    arguments = public(x) | {name: f(x) for name, f in change.items()}
    for call in (gated_delta_rule, explain):
        with pytest.raises(error, match=sentence):
            call(**arguments)


def test_a_bad_packing_is_described_in_a_few_words():
    x = torch.randn(3, 1, 3000, 1, 1)
    with pytest.raises(ValueError, match="it ends with 2999") as e:
        gated_delta_rule(*x, cu_seqlens=torch.arange(3000))
    assert len(str(e.value)) < 100


def test_explain_takes_what_the_call_takes():
    x = public(draw(5, 4, 3))
    assert explain(**x, output_final_state=True, mode="save").backend == "torch"
    taken = [inspect.signature(f).parameters for f in (gated_delta_rule, explain)]
    assert list(taken[0]) == list(taken[1])
    assert set(family.__all__) <= set(dir(family))


def test_the_choice_is_visible_and_a_named_backend_never_falls_back():
    x = public(draw(5, 4, 3))
    choice = explain(**x)
    assert choice.backend == "torch" and set(choice.refusals) == {"cute_sm90", "cute_sm100"}
    assert "need a CUDA device" in str(choice)
    with pytest.raises(ValueError, match=r"backend='cute_sm90' cannot run this call: q is on cpu"):
        gated_delta_rule(**x, backend="cute_sm90")
