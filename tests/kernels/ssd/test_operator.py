"""`ssd` as a PyTorch operator: layouts, options, what it keeps, torch.compile, and one derivative only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lethe.kernels.ssd.cases import Case

SMALL = Case("small", batch=1, length=40, heads=2, groups=1, chunk=32, dtype="float16")


def call(case: Case, o: dict, **changes):
    from lethe.kernels.ssd import ssd

    options = {
        "chunk_size": case.chunk, "dt_softplus": case.softplus, "dt_limit": case.limits,
        "checkpoint_dtype": case.checkpoint, "reuse_checkpoints": case.reuse,
    }  # fmt: skip
    return ssd(**(o | options | changes))


def drawn(case: Case, grad: bool = True):
    from lethe.kernels.ssd.cases import operands

    return {k: t.requires_grad_(grad and t.is_floating_point()) for k, t in operands(case, "cpu").items()}


def test_operands_may_lie_in_any_layout():
    """x across, B from a wider projection, one z for all tokens, D and A in half: as their dense copies."""
    import torch

    o = drawn(SMALL, grad=False)
    other = dict(o)
    other["x"] = o["x"].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    wide = torch.randn(1, 40, 1, 3 * 64).half()
    wide[..., 64:128] = o["B"]
    other["B"] = wide[..., 64:128]
    other["z"] = o["z"][:, :1].expand_as(o["z"])
    other["dt"] = torch.cat([o["dt"], o["dt"]], -1)[..., :2]
    dense = o | {"z": other["z"].contiguous()}
    assert torch.equal(call(SMALL, other), call(SMALL, dense))


def test_every_gradient_has_its_tensor_s_dtype_and_shape():
    import torch

    o = drawn(SMALL)
    o["D"] = torch.randn(2).half().requires_grad_()
    y, final = call(SMALL, o, return_final_states=True)
    assert (y.dtype, final.dtype, tuple(final.shape)) == (torch.float16, torch.float32, (1, 2, 64, 64))
    leaves = list(o.values())
    for leaf, gradient in zip(leaves, torch.autograd.grad([y.sum(), final.sum()], leaves), strict=True):
        assert gradient.dtype == leaf.dtype and gradient.shape == leaf.shape


def test_only_the_final_states_may_be_differentiated():
    """Without a gradient of y: C, D and z get zero, the initial states what the decays leave."""
    import torch

    o = drawn(SMALL)
    _, final = call(SMALL, o, return_final_states=True)
    found = dict(zip(o, torch.autograd.grad(final.sum(), list(o.values())), strict=True))
    assert all(not found[name].any() for name in ("C", "D", "z"))
    v = o["dt"].detach().double() + o["dt_bias"].detach().double()
    left = torch.exp((torch.nn.functional.softplus(v) * o["A"].detach().double()).sum(1))
    wanted = left[..., None, None].expand_as(found["initial_states"])
    # The chain rounds once a tile of 32 tokens in float32, and the exponent carries its own rounding.
    assert torch.allclose(found["initial_states"].double(), wanted, rtol=1e-5)


def test_checkpoints_are_kept_only_for_a_backward_pass_that_reuses_them():
    """What autograd holds on to: states where they are reused, none where they are computed again."""
    import torch

    shapes = {}
    for reuse in (True, False):
        seen: list[tuple[int, ...]] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, to=seen: to.append(tuple(t.shape)), id):
            call(replace(SMALL, reuse=reuse), drawn(SMALL))
        shapes[reuse] = seen
    states = (2, 2, 64, 64)
    assert states in shapes[True] and states not in shapes[False]
    with torch.no_grad():
        assert call(SMALL, drawn(SMALL, grad=False)).grad_fn is None


def test_it_can_be_differentiated_once():
    import torch

    o = drawn(SMALL)
    (gradient,) = torch.autograd.grad(call(SMALL, o).sum(), o["x"], create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiated once"):
        gradient.sum().backward()


def test_bfloat16_is_declined_where_the_interpreter_cannot_multiply_it():
    """Triton's own interpreter, without the repairs that these tests run with, gives numbers of 1e10."""
    import torch
    from triton.runtime.interpreter import InterpreterBuilder

    from lethe.kernels.ssd import Declined, builder

    case = replace(SMALL, dtype="bfloat16", length=1)
    repaired = InterpreterBuilder.create_dot
    builder.forget()
    InterpreterBuilder.create_dot = lambda self, a, b, d, *_: type(d)(
        a.data @ b.data + d.data, d.dtype.scalar
    )
    try:
        with pytest.raises(Declined, match=r"SSD-13 target: .* use float16 on a CPU"):
            call(case, drawn(case, grad=False))
    finally:
        InterpreterBuilder.create_dot = repaired
    assert torch.isfinite(call(case, drawn(case, grad=False))).all()


def test_operands_are_on_one_device_and_cuts_rise():
    import torch

    from lethe.kernels.ssd.operator import plan_of

    o = drawn(SMALL, grad=False)
    with pytest.raises(ValueError, match="A is on meta and x on cpu"):
        plan_of("SSD", o | {"A": o["A"].to("meta")}, (False, False), (32, True, 0.0, 1.0, "float32"))
    packed = {k: v for k, v in o.items() if k != "initial_states"}
    for cuts in ([0, 30], [5, 40], [0, 30, 10, 40], [0, 41]):
        with pytest.raises(ValueError, match="must rise from 0 to L = 40"):
            call(SMALL, packed, cu_seqlens=torch.tensor(cuts))


def test_memory_of_the_host_is_interpreted_whatever_it_passes_for():
    """As under the verifier, whose suspects see a GPU where Triton interprets."""
    import torch
    from torch.overrides import TorchFunctionMode

    from lethe.kernels.ssd.operator import target_of

    class Pretended(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func == torch.Tensor.device.__get__:
                return torch.device("cuda", 0)
            return func(*args, **(kwargs or {}))

    tensor = torch.zeros(2)
    with Pretended():
        assert tensor.device.type == "cuda"
        assert target_of(tensor) is None


def test_what_the_engine_declines_is_said_in_one_sentence():
    import torch

    from lethe.kernels.ssd import Declined
    from lethe.kernels.ssd.operator import target_of

    o = drawn(SMALL, grad=False)
    with pytest.raises(Declined, match="SSD-07 parameters: A is int64"):
        call(SMALL, o, A=torch.tensor([-1, -1]))
    with pytest.raises(Declined, match="SSD-07 parameters: cu_seqlens is float32"):
        call(SMALL, {k: v for k, v in o.items() if k != "initial_states"}, cu_seqlens=torch.tensor([0.0, 40]))
    with pytest.raises(Declined, match="declined by SSD-03 chunk: chunk_size is 48"):
        call(SMALL, o, chunk_size=48)
    with pytest.raises(ValueError, match="x is on meta; the engine needs a CUDA device"):
        target_of(torch.empty(1, device="meta"))


def test_the_operators_describe_themselves_to_torch():
    """`torch.library.opcheck`: schema, fake tensors and autograd registration agree with what runs."""
    import torch

    from lethe.kernels.ssd import operator
    from lethe.kernels.ssd.operator import NAMES

    case = replace(SMALL, length=33, heads=1)
    o = drawn(case)
    given = [o.get(name) for name in NAMES]
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        operator._forward, (*given, 32, True, 0.0, float("inf"), "float32", True, True), test_utils=tests
    )
    y, final, checkpoints = operator._forward(*given, 32, True, 0.0, float("inf"), "float32", True, True)
    upstream = (torch.randn_like(y).detach(), final.detach(), checkpoints.detach())
    torch.library.opcheck(
        operator._backward,
        (
            *upstream,
            *(None if t is None else t.detach() for t in given),
            32,
            True,
            0.0,
            float("inf"),
            "float32",
        ),
        test_utils=tests,
    )


def test_a_training_step_compiles_as_one_graph():
    """``fullgraph`` fails where the operator broke the graph; the gradients are the eager ones."""
    import torch

    def loss(o):
        y, final = call(SMALL, o, return_final_states=True)
        return y.float().square().mean() + final.square().mean()

    o = drawn(SMALL)
    names = list(o)
    eager = torch.autograd.grad(loss(o), [o[n] for n in names])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for mine, theirs in zip(torch.autograd.grad(compiled(o), [o[n] for n in names]), eager, strict=True):
        assert torch.equal(mine, theirs)
