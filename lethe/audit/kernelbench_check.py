"""KernelBench's correctness check, written anew so that it runs where theirs cannot (no CUDA, no checkout).

What ``eval_kernel_against_ref`` does, read off its source at the two revisions (`VARIANTS`):

1. The reference's text is executed in a fresh dict; `Model`, ``get_init_inputs`` and ``get_inputs`` are
   taken from it. Seed 42, then ``get_init_inputs()``; seed 42, then ``Model(*init)``, on the CPU.
2. The candidate's text is executed **in the same dict** (later: in a module of its own if it is Triton).
   The reference's functions look their globals up in that dict, so a candidate that assigns
   ``batch_size`` or redefines a helper changes what the reference is and which inputs are drawn.
3. Seed 42, then ``ModelNew(*init)`` with the very objects that built the reference.
4. Seed 42, five trial seeds from ``torch.randint(0, 2**32 - 1)``. Each trial: seed, ``get_inputs()``,
   move to the device; both modules are moved to the device (a no-op after the first); **the reference runs
   first, then the candidate, on the same uncloned inputs**: what one writes the other reads, and memory
   that the reference freed may be handed to the candidate.
5. ``output.shape`` must agree and ``torch.allclose(output, output_new, atol=t, rtol=t)`` hold: **no
   equal_nan** (agreeing NaN reject), no check of dtype beyond what allclose raises on, and only one tensor
   (a tuple has no ``shape``, so operators with several outputs are always rejected).
6. Both modules stay **in train mode** (there is no ``eval()``); gradients are off; one shape, one
   distribution; backends keep torch's defaults (TF32 off in matmul, on in cudnn); nothing checks that the
   inputs are unchanged or that a kernel ran at all. Everything happens in one process.

A mismatch does not end the trials; a wrong shape or an exception does. An exception while the candidate's
text is executed is "not compiled". The later variant differs by its tolerance (1e-4 in float32, 1e-2 in
half precision), casts **every** input tensor and both modules to the precision (integer labels too, so
that its own reference raises on problems such as cross entropy), and loads Triton from a file.

Revision 48642c5c executes the candidate's text without a file and in a dict without ``__name__``. As it
stands it rejects every Triton kernel: ``triton.jit`` finds no source ("not compiled"), and a kernel that
calls another jit function would not compile, because functions have no ``__module__``. Two things are done
for it outside their code, and each line of the differential says so: `register_source` gives Python's own
`linecache` the text that is about to run, and `NAMED` before the reference's text sets ``__name__`` to what
classes in such a dict get anyway.
"""

from __future__ import annotations

import importlib.util
import linecache
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

SEED = 42
TRIALS = 5
LOCKED = ("lock", "No such file or directory")
"""Their check takes an exception with these words for another build's lock and returns None."""
NAMED = '__name__ = "builtins"\n'
MAX_TEXT = 300


@dataclass(frozen=True)
class Variant:
    """One revision of KernelBench's check."""

    name: str
    revision: str
    module: str
    """Where ``eval_kernel_against_ref`` is, relative to `root`."""
    root: str
    """Folder of the checkout that has to be importable."""
    sha256: str
    """Of the file of `module` at `revision`."""
    tolerances: dict[str, float] = field(default_factory=dict)
    """``atol = rtol`` by precision."""
    casts: bool = False
    """Whether every input tensor and both modules are cast to the precision."""
    triton_from_file: bool = False
    """Whether Triton text gets a module of its own."""

    @property
    def file(self) -> str:
        """Path of the file of `module` inside a checkout."""
        return os.path.join(self.root, *self.module.split(".")) + ".py"


VARIANTS = {
    "48642c5c": Variant(
        name="48642c5c",
        revision="48642c5c4ff616e1a2339f7e84b72eea0ac1a6a8",
        module="src.eval",
        root=".",
        sha256="c1dc5f6b4275193d59fc38a3f8a808da1b75cc75ffc8e92dc752dbebba81f92f",
        tolerances={"float32": 1e-2, "float16": 1e-2, "bfloat16": 1e-2},
    ),
    "later": Variant(
        name="later",
        revision="423217d9fda91e0c2d67e4a43bf62f96f6d104f1",
        module="kernelbench.eval",
        root="src",
        sha256="b42ce1268ec64ee7274db307ab98945c1e868792b54689554014b28c41787ee6",
        tolerances={"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2},
        casts=True,
        triton_from_file=True,
    ),
}
"""January 2025 (the references of both corpora here) and March 2026; the per-dtype tolerances came in
November 2025 (2c3dbda)."""


@dataclass
class Outcome:
    """What a check returned, theirs or ours."""

    accepted: bool | None
    """None: no answer that speaks of the candidate."""
    status: str = "judged"
    """``judged``; ``raised`` (an exception left the check, which their scripts count as a rejection);
    ``reference_failed`` (their check rejects, although nothing was compared); or how the process ended."""
    compiled: bool | None = None
    passed: int | None = None
    """Trials that agreed."""
    message: str = ""
    seconds: float | None = None
    """Of the check alone, in a process that had torch and Triton imported."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def register_source(text: str) -> None:
    """Let ``inspect`` find the text of what is executed as ``<string>``; Triton refuses functions without."""
    linecache.cache["<string>"] = (len(text), None, text.splitlines(keepends=True), "<string>")


def check(
    reference: str, candidate: str, variant: Variant, *, device: str, triton: bool, precision: str = "float32"
) -> Outcome:
    """The check of `variant` in this process, which the candidate may do anything to.

    `device` is ``"cpu"`` or ``"cuda"`` (also where tensors pass for CUDA's). Whatever the candidate
    raises is an Outcome.
    """
    import torch

    context: dict[str, Any] = {}
    if triton and not variant.triton_from_file:
        exec(NAMED, context)
    seed = _seeder(device)
    dtype = getattr(torch, precision)

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(dtype=dtype).to(device) if variant.casts else value.to(device)

    try:
        exec(reference, context)
        model_class, draw_init = context["Model"], context["get_init_inputs"]
        draw = context["get_inputs"]
        seed(SEED)
        init = [place(value) for value in draw_init()]
        with torch.no_grad():
            seed(SEED)
            original = model_class(*init)
    except Exception as e:
        return Outcome(False, "reference_failed", message=said(e))
    try:
        os.environ["TORCH_USE_CUDA_DSA"] = "1"
        made = _load(candidate, context, variant, triton)
    except Exception as e:
        if any(words in str(e) for words in LOCKED):
            return Outcome(None, "locked", message=said(e))
        return Outcome(False, compiled=False, message=said(e))
    if made is None and variant.triton_from_file:
        return Outcome(False, compiled=False, message="no ModelNew, or not Python")
    try:
        with torch.no_grad():
            seed(SEED)
            custom = made(*init)
            assert hasattr(custom, "forward")
            if variant.casts:
                original, custom = original.to(device, dtype), custom.to(device, dtype)
    except RuntimeError as e:
        return Outcome(False, compiled=True, message=said(e))
    except Exception as e:
        return Outcome(False, "raised", message=said(e))
    tolerance = variant.tolerances[precision]
    return _trials(original, custom, draw, place, seed, device, tolerance)


def _trials(
    original: Any,
    custom: Any,
    draw: Callable[[], list[Any]],
    place: Callable[[Any], Any],
    seed: Callable[[int], None],
    device: str,
    tolerance: float,
) -> Outcome:
    import torch

    torch.manual_seed(SEED)
    seeds = [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(TRIALS)]
    passed, message = 0, ""
    with torch.no_grad():
        for trial in seeds:
            try:
                seed(trial)
                inputs = [place(value) for value in draw()]
                seed(trial)
                original.to(device)
                seed(trial)
                custom.to(device)
                expected = original(*inputs)
                _synchronize(device)
            except Exception as e:
                return Outcome(False, "reference_failed", True, passed, said(e))
            try:
                got = custom(*inputs)
                _synchronize(device)
                if expected.shape != got.shape:
                    shapes = f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
                    return Outcome(False, compiled=True, passed=passed, message=shapes)
                if torch.allclose(expected, got, atol=tolerance, rtol=tolerance):
                    passed += 1
                else:
                    message = message or f"off by up to {(expected - got).abs().max().item():.6g}"
            except Exception as e:
                return Outcome(False, compiled=True, passed=passed, message=said(e))
    return Outcome(passed == TRIALS, compiled=True, passed=passed, message=message)


def _load(text: str, context: dict[str, Any], variant: Variant, triton: bool) -> Any:
    """`ModelNew` as `variant` gets it: from the shared dict, or from a module of its own."""
    if triton and variant.triton_from_file:
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False, encoding="utf-8") as file:
            file.write(text)
        spec = importlib.util.spec_from_file_location("temp_module", file.name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.ModelNew
    register_source(text)
    try:
        exec(text, context)
    except SyntaxError:
        return None
    return context.get("ModelNew")


def _seeder(device: str) -> Callable[[int], None]:
    import torch

    def seed(value: int) -> None:
        torch.manual_seed(value)
        if device == "cuda":
            torch.cuda.manual_seed(value)

    return seed


def _synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def said(e: BaseException) -> str:
    """An exception in one line."""
    try:
        text = f"{type(e).__name__}: {e}"
    except Exception:
        text = type(e).__name__
    return " ".join(text.split())[:MAX_TEXT]
