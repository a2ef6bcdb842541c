"""The generator: which rewriting is honest for which reference, found by running both in float64.

* A size of the reference (a named number of its file) is an axis: the dimensions that move with it. Reversal
  or cutting along it is admitted only if the rewritten reference agrees with the reference at two sizes.
* The other rewritings are admitted if the candidate's text runs and agrees at two sizes as well.

The programs are compared as torch runs them on a CPU, our own text against our own text; no gate takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lethe.evidence.honest.registry import DISHONEST, TRANSFORMS
from lethe.evidence.honest.traits import Axis, Place, Traits
from lethe.evidence.honest.transform import Transform
from lethe.verifier.problem import Problem, ProblemError, instantiate, sizes_as_written
from lethe.verifier.structure import flatten

if TYPE_CHECKING:
    from torch import Tensor

AGREEMENT = 2.0**-30
"""Largest difference of two faithful float64 runs, relative to the largest result: rounding is near 2^-53 and
a wrong rewriting errs by about 1, so that both are more than a factor 2^20 away."""
SEEDS = (0, 1)
SMALL = (5, 8)
"""Sizes tried for an axis: odd and even, so that halves and thirds are uneven once, and small, so that it is
cheap."""


def traits_of(problem: Problem) -> Traits:
    """Measure one reference: its axes, and which rewritings do not apply to it and why."""
    import torch

    torch.set_num_threads(1)
    drawn, _ = _written(problem)
    dims = _moving(problem)
    batch = {s: dict.fromkeys(i for i, d in places if d == 0) for s, (places, _) in dims.items()}
    rows = next((r for s, on in batch.items() if on and (r := _rows(problem, s, list(on)))), ())
    axes = {s: axis for s, (ins, outs) in dims.items() if (axis := _axis(problem, s, ins, outs)) is not None}
    instance = instantiate(problem)
    traits = Traits(
        problem=problem.name,
        arguments=len(drawn),
        images=tuple(i for i, t in enumerate(drawn) if t.dim() == 4),
        rows=rows,
        axes=axes,
        state=bool(instance.module.state_dict()),
        init=bool(instance.init),
    )
    return replace(traits, left_out=left_out(problem, traits))


def left_out(problem: Problem, traits: Traits) -> dict[str, str]:
    """Rewriting -> why it does not apply to this reference."""
    reasons = {}
    for transform in TRANSFORMS.values():
        texts = transform.texts(problem.source, traits)
        if (transform.name, problem.name) in DISHONEST:
            reasons[transform.name] = DISHONEST[transform.name, problem.name]
        elif not texts:
            reasons[transform.name] = _ABSENT[transform.name]
        elif transform.measured:
            why = next((w for t in texts.values() if (w := disagreement(problem, transform, t))), None)
            if why is not None:
                reasons[transform.name] = why
    return reasons


_INDEPENDENT = "no dimension of the inputs holds independent samples"
_ABSENT = {
    **dict.fromkeys(
        ("halves", "thirds", "singles", "vmapped", "doubled", "padded", "backwards"), _INDEPENDENT
    ),
    "channels_last": "no input is an image",
    "reversed": "the order of elements matters along every axis",
    "split_terms": "no sum over an axis of the inputs can be split",
    "algorithm": "no other algorithm was written for it",
    "wrapped": "it holds no weights",
    "function": "it is constructed with arguments or holds weights, which a function cannot be given",
}


def disagreement(problem: Problem, transform: Transform, text: str) -> str | None:
    """Why the candidate `text` is not the reference, as it shows at two sizes; None if it is.

    Values are compared in float64; shapes and dtypes also in float32, as declared.
    """
    import torch

    for sizes in _two_sizes(problem):
        for dtype in (torch.float64, torch.float32):
            try:
                why = _differs(problem, transform, text, sizes, dtype)
            except Exception as e:  # whatever torch's transformations raise on what they do not support
                return f"torch raises {type(e).__name__}: {_first_line(e)}"
            if why is not None:
                return why
    return None


def _differs(
    problem: Problem, transform: Transform, text: str, sizes: dict[str, int], dtype: Any
) -> str | None:
    import torch

    instance = instantiate(problem, sizes)
    own = instance.module.to(dtype)
    made = _candidate(transform, text, instance.init, own)
    for seed in SEEDS:
        given = [t.to(dtype) if t.is_floating_point() else t for t in instance.draw(seed)]
        with torch.no_grad():
            expected, got = flatten(own(*given))[0], flatten(made(*given))[0]
        if [(t.shape, t.dtype) for t in expected] != [(t.shape, t.dtype) for t in got]:
            return "it returns other shapes or dtypes than the reference"
        if dtype is torch.float64 and not agree(expected, got):
            return "its float64 result differs from the reference's by more than rounding"
    return None


def agree(expected: list[Tensor], got: list[Tensor]) -> bool:
    """Whether two float64 results differ by rounding at most."""
    for a, b in zip(expected, got, strict=True):
        if a.shape != b.shape:
            return False
        a, b = a.double(), b.double()
        scale = max(float(a.abs().max()) if a.numel() else 0.0, 1e-300)
        if not bool(((a - b).abs() <= AGREEMENT * scale).all()):
            return False
    return True


def _candidate(transform: Transform, text: str, init: Any, own: Any) -> Callable[..., Any]:
    """Execute our own candidate text and build it with the reference's weights."""
    import linecache
    import sys

    name = "lethe_honest_candidate"
    module = sys.modules[name] = ModuleType(name)
    file = module.__file__ = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    made = getattr(module, transform.entry)
    if transform.kind == "function":
        return made
    model = (made(**init) if isinstance(init, dict) else made(*init)).eval()
    inner = model.inner if transform.name == "wrapped" else model
    state = own.state_dict()
    for dtype in {t.dtype for t in state.values() if t.is_floating_point()}:
        inner.to(dtype)
    inner.load_state_dict(state)
    return model


@lru_cache(maxsize=4)
def _written(problem: Problem) -> tuple[list[Tensor], list[Tensor]]:
    import torch

    instance = instantiate(problem)
    drawn = instance.draw(0)
    if not all(isinstance(t, torch.Tensor) for t in drawn):
        raise ProblemError(f"{problem.name}: an input is no tensor, which no rewriting expects")
    with torch.no_grad():
        return drawn, flatten(instance.module(*drawn))[0]


@lru_cache(maxsize=4)
def _moving(problem: Problem) -> dict[str, tuple[tuple[Place, ...], tuple[Place, ...]]]:
    """Size name -> dimensions of inputs and of outputs that move with it."""
    before = [[t.shape for t in side] for side in _written(problem)]
    found = {}
    for name, value in sizes_as_written(problem).items():
        moved = _shapes(problem, {name: value + 1}) or _shapes(problem, {name: 2 * value})
        if moved is None:
            continue
        inputs, outputs = (
            tuple(
                (i, d)
                for i, (a, b) in enumerate(zip(x, y, strict=True))
                for d in range(len(a))
                if a[d] != b[d]
            )
            for x, y in zip(before, moved, strict=True)
        )
        if inputs:
            found[name] = (inputs, outputs)
    return found


def _shapes(problem: Problem, sizes: dict[str, int]) -> list[list[Any]] | None:
    try:
        instance = instantiate(problem, sizes)
        drawn = instance.draw(0)
        result, _ = flatten(instance.module(*drawn))
    except (ProblemError, RuntimeError, ValueError, IndexError):
        return None
    same_rank = all(t.dim() == u.dim() for t, u in zip(drawn, _written(problem)[0], strict=True))
    return [[t.shape for t in drawn], [t.shape for t in result]] if same_rank else None


def _two_sizes(problem: Problem) -> Iterator[dict[str, int]]:
    """As written, and with the batch (or whatever moves first) at an odd size."""
    yield {}
    for name in _moving(problem):
        yield {name: SMALL[0]}
        return


def _evaluations(problem: Problem, site: str) -> Iterator[tuple[Any, list[Tensor]]]:
    """The float64 reference and inputs at two sizes of `site`, the written one where those are illegal.

    A single element (a dimension that is there to be broadcast) would prove nothing.
    """
    written = sizes_as_written(problem)[site]
    for size in SMALL:
        for tried in (size, written) if written > 1 else (size,):
            try:
                instance = instantiate(problem, {site: tried})
                given = _double(instance.draw(0))
                instance.module.double()(*given)
                yield instance.module, given
                break
            except (ProblemError, RuntimeError, ValueError, IndexError):
                continue


def _holds(problem: Problem, site: str, rewritten: Callable[[Any, list[Tensor]], Any]) -> bool:
    """Whether `rewritten(model, inputs)` agrees with ``model(*inputs)`` at the sizes of `_evaluations`."""
    import torch

    seen = 0
    with torch.no_grad():
        for model, given in _evaluations(problem, site):
            try:
                got = flatten(rewritten(model, given))[0]
            except (RuntimeError, ValueError, IndexError):
                return False
            if not agree(flatten(model(*given))[0], got):
                return False
            seen += 1
    return seen == len(SMALL)


def _rows(problem: Problem, site: str, carriers: list[int]) -> tuple[int, ...]:
    """The largest set of arguments that may be cut along their first dimension together."""
    import torch

    for count in range(len(carriers), 0, -1):
        for chosen in combinations(carriers, count):

            def cut(model: Any, given: list[Tensor], chosen: tuple[int, ...] = chosen) -> list[Tensor]:
                n = given[chosen[0]].shape[0]
                parts = [
                    flatten(model(*[t[a:b] if i in chosen else t for i, t in enumerate(given)]))[0]
                    for a, b in ((0, n // 3), (n // 3, n))
                ]
                return [torch.cat(p) for p in zip(*parts, strict=True)]

            if _holds(problem, site, cut):
                return chosen
    return ()


def _axis(problem: Problem, site: str, inputs: tuple[Place, ...], outputs: tuple[Place, ...]) -> Axis | None:
    def reverse(tensors: list[Tensor], places: tuple[Place, ...]) -> list[Tensor]:
        return [t.flip([d for j, d in places if j == i]) for i, t in enumerate(tensors)]

    def reversed_(model: Any, given: list[Tensor]) -> list[Tensor]:
        return reverse(flatten(model(*reverse(given, inputs)))[0], outputs)

    if not _holds(problem, site, reversed_):
        return None
    return Axis(inputs, outputs, adds=not outputs and _adds(problem, site, dict(inputs)))


def _adds(problem: Problem, site: str, where: dict[int, int]) -> bool:
    first = next(iter(where))

    def added(model: Any, given: list[Tensor]) -> Tensor:
        n = given[first].shape[where[first]]

        def part(start: int, stop: int) -> Any:
            cut = [t.narrow(where[i], start, stop - start) if i in where else t for i, t in enumerate(given)]
            return model(*cut)

        return part(0, n // 2) + part(n // 2, n)

    return _holds(problem, site, added)


def _double(given: list[Tensor]) -> list[Tensor]:
    return [t.double() if t.is_floating_point() else t for t in given]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else "").strip()[:160]
