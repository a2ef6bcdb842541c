"""The two tasks, the small models that learn them, and the lines of their trainings; on a processor."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from lethe.evidence import gdn_gpu_training, sequence_model, sequence_tasks
from lethe.evidence.gdn_gpu_training import ASKED, DROPPED, LONG, NATIVE, TORCH, Training
from lethe.evidence.gdn_precision import MEMBERS
from lethe.evidence.sequence_model import BLOCKS, DK, DV, HEADS, Replicas
from lethe.evidence.sequence_tasks import PAIRS, SILENT, TASKS, VOCABULARY
from lethe.kernels.gdn import dispatch, torch_path
from lethe.kernels.gdn.chunks import CHUNK

torch.set_num_threads(1)
TINY = Training("gdn", TORCH, steps=3, length=34, batch=2, seeds=2)


@pytest.fixture
def small(monkeypatch):
    """Narrower models: the same code in a fraction of the time."""
    for name, width in (("MODEL", 32), ("DK", 16), ("DV", 16)):
        monkeypatch.setattr(sequence_model, name, width)


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_is_a_draw(task):
    first, again, other = (sequence_tasks.draw(task, seed, 3, 2, 40) for seed in (1, 1, 2))
    for name in ("tokens", "answers"):
        assert torch.equal(getattr(first, name), getattr(again, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))
        assert getattr(first, name).shape == (3, 2, 40) and getattr(first, name).dtype == torch.uint8
    assert int(first.tokens.max()) < VOCABULARY
    with pytest.raises(ValueError, match="choose recall or text"):
        sequence_tasks.draw("sums", 0, 1, 1, 64)


def test_a_query_is_answered_by_the_value_of_its_key():
    drawn = sequence_tasks.recall(0, 20, 10, 64)
    for tokens, answers in zip(drawn.tokens.flatten(0, 1), drawn.answers.flatten(0, 1), strict=True):
        pairs = dict(zip(tokens[: 2 * PAIRS : 2].tolist(), tokens[1 : 2 * PAIRS : 2].tolist(), strict=True))
        at = (answers != SILENT).nonzero().flatten().tolist()
        assert len(set(pairs)) == len(set(pairs.values())) == len(at) == PAIRS
        assert all(i >= 2 * PAIRS and i % 2 == 0 for i in at)
        assert {int(tokens[i]): int(answers[i]) for i in at} == pairs
        assert max(pairs) < VOCABULARY // 2 <= min(pairs.values()) and min(pairs) > 0
    assert drawn.memoryless == math.log2(PAIRS)
    with pytest.raises(ValueError, match="no room"):
        sequence_tasks.recall(0, 1, 1, 4 * PAIRS - 2)


def test_gaps_fall_by_a_power_and_do_not_tell_the_pair():
    drawn = sequence_tasks.recall(0, 50, 40, 128)
    asked = (drawn.answers != SILENT).flatten(0, 1)[:, 2 * PAIRS :: 2].float().mean(0)
    assert asked[0] > 2 * asked[5] > 4 * asked[50] > 0
    first = drawn.tokens.flatten(0, 1)[:, :1]
    where = (drawn.tokens.flatten(0, 1) == first) & (drawn.answers.flatten(0, 1) != SILENT)
    gap = where.float().argmax(1).float()
    every = (drawn.answers.flatten(0, 1) != SILENT).nonzero()[:, 1].float()
    assert abs(float(gap.mean() - every.mean())) < 4 * float(every.std()) / math.sqrt(len(gap))


def test_text_is_foretold_byte_by_byte_and_tells_what_it_asks_for():
    drawn = sequence_tasks.text(0, 6, 4, 500)
    assert torch.equal(drawn.tokens[..., 1:], drawn.answers[..., :-1])
    stream = torch.cat([drawn.tokens, drawn.answers[..., -1:]], -1)  # a window's last byte is an answer alone
    asked, answered = 0, set()
    for story in bytes(stream.flatten().tolist()).decode("ascii").split("\n"):
        owner: dict[str, str] = {}
        for who, has, thing, by in re.findall(r"(\w+) has the (\w+)\.|Who has the (\w+)\? (\w+)\.", story):
            if who:
                owner[has] = who
            else:
                asked, answered = asked + 1, answered | {owner[thing] == by}
    assert asked > 30 and answered == {True}
    assert drawn.memoryless == sequence_tasks.entropy(drawn.answers)


def test_entropy_in_bits():
    assert sequence_tasks.entropy([5, 5, 5]) == 0.0
    assert sequence_tasks.entropy([0, 1, 2, 3] * 3) == 2.0
    assert sequence_tasks.entropy([0, 0, 1, 2]) == 1.5


# --- the models ---------------------------------------------------------------------------------


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_sees_the_past_alone_and_has_gradients_everywhere(member, small):
    model = Replicas(member, [0], torch.float32, "torch")
    x = tokens(1, 1, 9)
    changed = x.clone()
    changed[..., 5] ^= 1
    logits, other = model(x), model(changed)
    assert torch.equal(logits[:, :, :5], other[:, :, :5]) and not torch.equal(
        logits[..., 8, :], other[..., 8, :]
    )
    logits.logsumexp(-1).sum().backward()
    assert all(float(p.grad.abs().max()) > 0 for p in model.parameters())


def test_replicas_share_nothing(small):
    """But the order of float32 sums, which batched products choose: 1e-7 a step; other data are percents."""
    data = [sequence_tasks.recall(seed, 3, 2, 34) for seed in (0, 7)]
    together = [torch.stack([getattr(one, name) for one in data], 1) for name in ("tokens", "answers")]
    both, *_ = gdn_gpu_training.optimised(Replicas("gdn", [0, 7], torch.float32, "torch"), *together)
    alone = [x[:, 1:] for x in together]
    second, *_ = gdn_gpu_training.optimised(Replicas("gdn", [7], torch.float32, "torch"), *alone)
    torch.testing.assert_close(both[:, 1:], second, rtol=1e-4, atol=0)
    assert float((both[:, 0] - both[:, 1]).abs().min()) > 1e-3


def test_a_dropped_state_is_missed_from_the_second_part_on(small):
    x, whole, cut = tokens(1, 2, 16), *(Replicas("kda", [0], torch.float32, "torch", n) for n in (0, 8))
    torch.testing.assert_close(whole(x)[:, :, :8], cut(x)[:, :, :8])
    assert float((whole(x) - cut(x)).detach()[:, :, 8:].abs().max()) > 1e-2


@pytest.mark.parametrize("member", MEMBERS)
def test_native_kernels_run_or_raise(member, monkeypatch):
    """No GPU here: asking for them is an error for every member, and the torch path is not touched."""
    for name in ("forward", "backward"):
        monkeypatch.setattr(torch_path, name, lambda *_: pytest.fail("fell back to the torch path"))
    for backend in (NATIVE, DROPPED):
        training = replace(TINY, member=member, backend=backend, length=CHUNK)
        with pytest.raises(ValueError, match="cannot run this call"):
            gdn_gpu_training.train(training, "cpu")


# --- the lines ----------------------------------------------------------------------------------


def test_a_line_has_a_curve_for_each_task_and_seed(small):
    row = gdn_gpu_training.train(TINY, "cpu")
    assert set(row["losses"]) == set(row["right"]) == set(row["memoryless"]) == set(TASKS)
    assert all(len(curves) == 2 and {len(c) for c in curves} == {3} for curves in row["losses"].values())
    assert row["calls"] == {"torch": 2 * BLOCKS * 3} and row["as_asked"]
    assert row["non_finite"] == {"losses": 0, "gradients": 0}
    assert not any(row["learnt"].values()) and not row["passed"]


def test_calls_of_the_native_kernels_are_counted_and_any_other_is_noticed(monkeypatch, small):
    """What the dispatch asks a backend before it chooses is no call."""
    refusal = dispatch.refusal

    def able(name, a):
        return dispatch.module(name).NAME and "" if name == "cute_sm90" else refusal(name, a)

    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "refusal", able)
        patched.setattr(torch_path, "NAME", "as a backend answers", raising=False)
        patched.setattr(dispatch, "module", lambda backend: torch_path)
        row = gdn_gpu_training.train(replace(TINY, backend=NATIVE), "cpu")
    assert row["calls"] == {"cute_sm90": 2 * BLOCKS * 3} and row["as_asked"]
    monkeypatch.setitem(ASKED, NATIVE, "torch")
    assert not gdn_gpu_training.train(replace(TINY, backend=NATIVE), "cpu")["as_asked"]


def test_recall_is_learnt():
    """In thirty steps of the full size."""
    data = sequence_tasks.recall(0, 30, 4, 34)
    model = Replicas("linear", [0], torch.float32, "torch")
    losses, right, broken = gdn_gpu_training.optimised(model, data.tokens[:, None], data.answers[:, None])
    assert float(losses[0]) > math.log2(VOCABULARY // 2) > 2 * float(losses[-3:].mean())
    assert float(right[-3:].mean()) > 0.5 and not broken.any()


def test_what_is_not_finite_is_counted(small):
    data = sequence_tasks.recall(0, 2, 1, 34)
    model = Replicas("linear", [0], torch.float32, "torch")
    with torch.no_grad():
        model.blocks[0].up[0, 0, 0] = math.inf
    losses, _, broken = gdn_gpu_training.optimised(model, data.tokens[:, None], data.answers[:, None])
    assert broken.all() and not losses.isfinite().any()


@pytest.mark.parametrize(("end", "learnt"), [(1.4, True), (1.6, False), (math.nan, False)])
def test_learnt_is_half_of_the_memoryless_loss_for_every_seed(end, learnt):
    curves = [[6.0] * 27 + [0.1] * 3, [6.0] * 27 + [end] * 3]
    assert gdn_gpu_training.learnt(curves, 3.0) is learnt


def test_the_plan_has_every_member_on_both_backends_and_a_control():
    abouts = [about for about, _ in gdn_gpu_training.tasks()]
    assert {a["kind"] for a in abouts} == {"training"} and len(abouts) == 17
    sides = {b: [a for a in abouts if a["backend"] == b] for b in (NATIVE, TORCH, DROPPED)}
    assert [len(sides[b]) for b in sides] == [8, 8, 1]
    for ours, theirs in zip(sides[NATIVE], sides[TORCH], strict=True):
        assert {**ours, "backend": TORCH} == theirs
    assert {a["member"] for a in sides[NATIVE]} == set(MEMBERS)
    assert {(a["steps"], a["length"]) for a in sides[NATIVE]} == {(300, 128), (4000, 64)}
    assert LONG.member == "linear" and all(a["seeds"] >= 3 and a["length"] % CHUNK == 0 for a in abouts)


def test_every_kernel_of_the_trainings_is_built():
    from lethe.evidence.gdn_gpu import wanted
    from lethe.kernels.gdn.checks import Arguments
    from lethe.kernels.gdn.native import kind_of, libraries

    names, asked = {variant.name for variant in wanted()}, []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            dispatch, "choose", lambda a, backend: asked.append(a) or dispatch.Choice("torch", backend, {})
        )
        for member in MEMBERS:
            Replicas(member, [0], torch.bfloat16, "cute")(tokens(1, 1, 3))
    assert len(asked) == BLOCKS * len(MEMBERS) and all(isinstance(a, Arguments) for a in asked)
    for a in asked:
        assert a.q.dtype == torch.bfloat16 and a.q.shape[2:] == (HEADS, DK) and a.v.shape[3] == DV
        assert {variant.name for variant in libraries(kind_of(a))} <= names
