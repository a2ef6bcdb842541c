"""@TITLE@

@REASON@

    python counterexample.py            exit status 1: the defect shows; 0: it does not;
                                        2: it cannot be run here, with the reason
    python counterexample.py --control  puts the reference in the candidate's place: must end with 0

Imports torch, and triton if the candidate does. `EMBEDDED`, at the end, is what the verifier put around the
candidate: guarded memory in which nothing is zero by luck, and for Triton kernels on a machine without a
GPU the repairs that make Triton's interpreter compute what the device computes.
"""

import base64
import copy
import hashlib
import importlib.abc
import importlib.util
import json
import linecache
import lzma
import os
import random
import sys
import tempfile
import types
import zlib
from math import inf, nan

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch

CASE: dict = {}  # @CASE@
REFERENCE = ""  # @REFERENCE@
CANDIDATE = ""  # @CANDIDATE@


def make_inputs(drawn) -> list:
    """The smallest input found."""
    return []  # @INPUTS@


class CannotRun(Exception):
    """This machine cannot show or refute the defect; the message says why."""


class Embedded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules packed into a text."""

    def __init__(self, text):
        self.sources = json.loads(lzma.decompress(base64.b85decode("".join(text.split()))))

    def find_spec(self, name, path, target=None):
        if name not in self.sources:
            return None
        package = any(other.startswith(name + ".") for other in self.sources)
        return importlib.util.spec_from_loader(name, self, origin=f"<{name}>", is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name, source = f"<{module.__name__}>", self.sources[module.__name__]
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)


CONTROL = "--control" in sys.argv
TRITON = CASE.get("language") == "triton"
DEVICE = "cuda" if CASE.get("executor") == "cuda" and torch.cuda.is_available() else "cpu"
EXECUTOR = "cuda" if DEVICE == "cuda" else "interpreter" if TRITON else "cpu"


# ---------------------------------------------------------------- inputs


def full(shape, value, dtype="float32"):
    return torch.full(shape, value, dtype=getattr(torch, dtype))


def packed(text, shape, dtype):
    raw = bytearray(zlib.decompress(base64.b85decode("".join(text.split()))))
    kind = getattr(torch, dtype)
    return (torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)).reshape(shape)


def strided(t, stride, lead=0):
    """`t` with other strides, `lead` elements into its storage."""
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, stride, strict=True)) if t.numel() else 0
    laid = torch.empty(lead + reach, dtype=t.dtype).as_strided(tuple(t.shape), stride, lead)
    once = tuple(slice(None) if s else slice(1) for s in stride)  # of places that elements share
    laid[once] = t[once]
    return laid


def put(t, entries):
    """`t` with single elements replaced: {index: value}."""
    for index, value in entries.items():
        t[index] = value
    return t


def checksum(t):
    from embedded.structure import bytes_of

    return zlib.crc32(bytes_of(t).numpy().tobytes())


def map_tensors(value, f):
    from embedded.structure import flatten, unflatten

    tensors, skeleton = flatten(value)
    return unflatten([f(t) for t in tensors], skeleton)


def cast(value, dtype):
    return map_tensors(value, lambda t: t.to(dtype) if t.is_floating_point() else t)


# ---------------------------------------------------------------- the reference


def seed_all(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


class Reference:
    """The reference's module and its draws, on the device."""

    def __init__(self):
        from embedded.placing import placed

        sys.modules["reference"] = types.ModuleType("reference")
        self.space = sys.modules["reference"].__dict__
        lines = REFERENCE.splitlines(keepends=True)
        linecache.cache["<reference>"] = (len(REFERENCE), None, lines, "<reference>")
        with placed("cpu"):
            seed_all(CASE["seed"])
            exec(compile(REFERENCE, "<reference>", "exec", dont_inherit=True), self.space)
            get_init = self.space.get("get_init_inputs")
            init = get_init() if get_init else []
            self.init = list(init) if isinstance(init, tuple) else init or []
            self.module = self.build().float().eval().to(DEVICE)
        if CASE["varied"]:
            from embedded.weights import vary_uniform

            vary_uniform(self.module, CASE["seed"])

    def build(self):
        made, init = self.space["Model"], self.init
        with torch.no_grad():
            seed_all(CASE["seed"])
            return made(**init) if isinstance(init, dict) else made(*init)

    def drawn(self, seed, index, crc):
        """The `index`-th tensor of what `get_inputs` draws."""
        from embedded.placing import placed
        from embedded.structure import flatten

        with placed("cpu"), torch.no_grad():
            seed_all(seed)
            values = self.space["get_inputs"]()
        values = [values] if isinstance(values, torch.Tensor) else list(values)
        found = flatten(values)[0][index].detach()
        found = found.float() if found.is_floating_point() else found
        if checksum(found) != crc:
            raise CannotRun(f"this torch ({torch.__version__}) draws other inputs from seed {seed}")
        return found.clone()

    def copy(self, *dtypes):
        """A private copy of the module, rounded to each dtype in turn."""
        module = copy.deepcopy(self.module)
        for dtype in dtypes:
            # not `to`, which casts complex tensors too
            module._apply(lambda t, dtype=dtype: t.to(dtype) if t.is_floating_point() else t)
            for part in module.modules():
                for name, t in list(vars(part).items()):
                    if isinstance(t, torch.Tensor) and t.is_floating_point():
                        object.__setattr__(part, name, t.detach().to(dtype))
        return module.eval()

    def run(self, inputs, dtype):
        """Its own outputs in working precision."""
        from embedded.structure import flatten

        with torch.no_grad():
            return flatten(self.copy(dtype)(*cast(map_tensors(inputs, torch.clone), dtype)))

    def exact(self, inputs, dtype):
        """Its float64 outputs: what the candidate is measured against."""
        from embedded.modes import widened
        from embedded.structure import flatten

        wide = cast(cast(map_tensors(inputs, torch.clone), dtype), torch.float64)
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad():
                if "oracle" in self.space:
                    return flatten(self.space["oracle"](*wide))[0]
                with widened(dtype):
                    return flatten(self.copy(dtype, torch.float64)(*wide))[0]
        finally:
            torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------- the candidate


class Candidate:
    """The candidate in guarded memory, called as the verifier calls it."""

    def __init__(self, reference):
        from embedded import entry, executors, poison
        from embedded.executors import accesses

        if "configuration" in CASE:
            os.environ["LETHE_AUTOTUNE_CONFIG"] = str(CASE["configuration"])
        executors.install(EXECUTOR)
        self.ledger = poison.Ledger()
        poison.install(self.ledger)
        if EXECUTOR == "interpreter":
            accesses.watch(self.ledger.saw_load)
        source, name, kind = CANDIDATE, CASE["entry"], CASE["kind"]
        if CONTROL:
            source, name, kind = REFERENCE, "Model", "module"
        path = os.path.join(tempfile.mkdtemp(prefix="counterexample-"), "candidate.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(source)
        module = entry.fresh_module(path)
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        made = getattr(module, name)
        seed_all(CASE["seed"])
        if kind == "function":
            self.target = made
            return
        self.ledger.begin()
        self.ledger.active = True
        init = map_tensors(reference.init, torch.clone)
        model = made(**init) if isinstance(init, dict) else made(*init)
        self.ledger.active = False
        model = entry.settle(model, torch.device(DEVICE), getattr(torch, CASE["dtype"]), False)
        with torch._C.DisableTorchFunction():
            if CASE["weights"] == "copied" or CASE["varied"]:
                state = {n: t.detach() for n, t in reference.module.state_dict().items()}
                entry.copy_state(model, state)
            own = entry.state_of(model)
            self.ledger.keep({entry.storage_address(t): f"param:{n}" for n, t in own.items()})
        self.target = model

    def call(self, inputs, **options):
        """One call; raises what the candidate raises."""
        once = self.prepared(inputs, **options)
        with torch._C._EnableTorchFunction():
            outcome = once.once()
        torch.set_flush_denormal(False)  # a library built with -ffast-math turns it on for the whole process
        return outcome

    def prepared(self, inputs, upstream=None, mode=None, taint=False):
        from embedded import calling
        from embedded.structure import flatten

        with torch._C.DisableTorchFunction():
            tensors, skeleton = flatten(inputs)
            given = [t.detach().cpu().contiguous() for t in tensors]
            strides = [list(t.stride()) for t in tensors]
            leads = [t.storage_offset() for t in tensors]
        return calling.Call(
            target=self.target,
            device=torch.device(DEVICE),
            ledger=self.ledger,
            strides=strides,
            leads=leads,
            given=given,
            skeleton=skeleton,
            upstream=upstream,
            guard=True,
            mode=mode,
            taint=taint,
        )


# ---------------------------------------------------------------- both of them


def real(t):
    """Float64 view of any tensor; a complex one gets a last dimension of two."""
    t = t.detach().cpu()
    return (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).double()


def same_bytes(a, b):
    """Bit-for-bit equality; all NaN are alike."""
    a, b = (torch.where(t != t, nan, t) if t.is_floating_point() else t for t in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and checksum(a) == checksum(b)


def kind_of(v):
    return "nan" if v != v else "inf" if v == inf else "-inf" if v == -inf else "finite"


def digest(tensors):
    return hashlib.sha256(repr([checksum(t) for t in tensors]).encode()).hexdigest()


class Run:
    """Reference and candidate on the inputs."""

    def __init__(self):
        self.dtype = getattr(torch, CASE["dtype"])
        self.reference = Reference()
        self.inputs = make_inputs(self.reference.drawn)
        here = map_tensors(self.inputs, lambda t: t.to(DEVICE))
        self.want, self.skeleton = self.reference.run(here, self.dtype)
        self.exact = self.reference.exact(here, self.dtype) if CASE["check"] in ("value", "statistic") else []
        self.true_grads = self.gradients(here) if CASE["check"] == "gradient" else {}
        self.candidate = Candidate(self.reference)

    def call(self, **options):
        return self.candidate.call(cast(self.inputs, self.dtype), **options)

    def upstream(self):
        g = torch.Generator().manual_seed(CASE["upstream_seed"])
        return [
            torch.randn(t.shape, generator=g, dtype=torch.float32).to(DEVICE)
            if t.is_floating_point()
            else None
            for t in self.want
        ]

    def gradients(self, inputs):
        """Float64 gradients of the reference by name."""
        from embedded.modes import widened
        from embedded.structure import flatten, unflatten

        torch.set_default_dtype(torch.float64)
        try:
            module = self.reference.copy(torch.float64)
            tensors, skeleton = flatten(cast(inputs, torch.float64))
            leaves = [t.detach().clone().requires_grad_() for t in tensors if t.is_floating_point()]
            left = iter(leaves)
            given = [next(left).clone() if t.is_floating_point() else t for t in tensors]
            named = {f"input:{i}": t for i, t in enumerate(leaves)}
            named |= {f"param:{n}": p.requires_grad_() for n, p in module.named_parameters()}
            with widened():
                outs = flatten(module(*unflatten(given, skeleton)))[0]
                pairs = [
                    (o, u.to(o.dtype))
                    for o, u in zip(outs, self.upstream(), strict=True)
                    if u is not None and o.requires_grad
                ]
                found = torch.autograd.grad(
                    [o for o, _ in pairs], list(named.values()), [u for _, u in pairs], allow_unused=True
                )
        finally:
            torch.set_default_dtype(torch.float32)
        return dict(zip(named, found, strict=True))
