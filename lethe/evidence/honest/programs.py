"""Rewritings by torch's own transformations of programs: traced, scripted, decomposed, compiled."""

from __future__ import annotations

from lethe.evidence.honest.traits import Traits
from lethe.evidence.honest.transform import EACH, REFERENCE, Transform, always, assembled

RENAMED = '''
class ModelNew(Model):
    """The reference under another name."""
'''

FUNCTIONAL = '''
class ModelNew(Model):
    """The reference as a pure function of copies of its weights."""

    def forward(self, *inputs):
        weights = {name: t.clone() for name, t in _weights(self).items()}
        return _call(self, weights, *inputs)
'''

WIDENED = '''
class ModelNew(Model):
    """Computed in float64 throughout and rounded once, to the dtype of the inputs."""

    def forward(self, *inputs):
        def wide(t):
            return t.double() if t.is_floating_point() else t

        narrow = next(t.dtype for t in inputs if t.is_floating_point())
        weights = {name: wide(t) for name, t in _weights(self).items()}
        result = _call(self, weights, *[wide(t) for t in inputs])
        return _each(result, lambda t: t.to(narrow) if t.is_floating_point() else t)
'''

CHECKPOINTED = '''
from torch.utils.checkpoint import checkpoint


class ModelNew(Model):
    """Nothing is kept for the backward pass; it computes the forward pass again."""

    def forward(self, *inputs):
        return checkpoint(super().forward, *inputs, use_reentrant=False)
'''

DUAL = '''
class ModelNew(Model):
    """Evaluated on dual numbers (forward-mode differentiation) whose tangents are zero."""

    def forward(self, *inputs):
        moving = [i for i, t in enumerate(inputs) if t.is_floating_point()]
        weights = _weights(self)

        def along(*floats):
            given = list(inputs)
            for i, t in zip(moving, floats):
                given[i] = t
            return _call(self, weights, *given)

        floats = tuple(inputs[i] for i in moving)
        result, _ = torch.func.jvp(along, floats, tuple(torch.zeros_like(t) for t in floats))
        return result
'''

TRACED = '''
class ModelNew(Model):
    """A TorchScript trace of the reference for each signature of the inputs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__["_programs"] = {}

    def forward(self, *inputs):
        programs, key = self.__dict__["_programs"], _signature(inputs)
        if key not in programs:
            example = tuple(t.detach() for t in inputs)
            programs[key] = torch.jit.trace(_reference(self), example, check_trace=False)
        with torch.jit.optimized_execution(False):
            return programs[key](*inputs)
'''

SCRIPTED = '''
class ModelNew(Model):
    """The reference compiled by TorchScript from its source."""

    def forward(self, *inputs):
        if "_program" not in self.__dict__:
            self.__dict__["_program"] = torch.jit.script(_reference(self))
        with torch.jit.optimized_execution(False):
            return self.__dict__["_program"](*inputs)
'''

DECOMPOSED = '''
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx


class ModelNew(Model):
    """Composite operators broken into the core set of ATen, recorded once for each signature."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._programs = {}

    def forward(self, *inputs):
        weights, key = _weights(self), _signature(inputs)

        def program(weights, *given):
            return _call(self, weights, *given)

        if key not in self._programs:
            constants = {name: t.detach() for name, t in weights.items()}
            with torch.no_grad():
                record = make_fx(program, decomposition_table=core_aten_decompositions())
                self._programs[key] = record(constants, *[t.detach() for t in inputs])
        return self._programs[key](weights, *inputs)
'''

COMPILED = '''
import torch._dynamo

torch._dynamo.config.recompile_limit = 64  # each size, layout and mode may need a program of its own


class ModelNew(Model):
    """What torch.compile makes of the reference, by way of: OPTIONS."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__["_compiled"] = torch.compile(super().forward, OPTIONS)

    def forward(self, *inputs):
        return self.__dict__["_compiled"](*inputs)
'''

IN_PROCESS = """
import torch._inductor.config

torch._inductor.config.compile_threads = 1  # no pool of compiler processes
torch._inductor.config.cpp_cache_precompile_headers = False  # larger than a file may be here
"""

WRAPPED = '''
class ModelNew(nn.Module):
    """The reference held as a part, so that every weight has another name."""

    def __init__(self, *args, **kwargs):
        super().__init__()
        self.inner = Model(*args, **kwargs)

    def forward(self, *inputs):
        return self.inner(*inputs)
'''

FUNCTION = '''
def operator(*inputs):
    """The reference as a plain function."""
    return Model()(*inputs)
'''


def _wrapped(traits: Traits) -> dict[str, str]:
    return {"": assembled(WRAPPED, ())} if traits.state else {}


def _function(traits: Traits) -> dict[str, str]:
    return {"": assembled(FUNCTION, ())} if not traits.state and not traits.init else {}


def _compiled(options: str, *helpers: str) -> str:
    return assembled(COMPILED.replace("OPTIONS", options), helpers)


TRANSFORMS = (
    Transform("renamed", "the reference under another name", always(RENAMED), universal=True),
    Transform("functional", "a pure function of copied weights", always(FUNCTIONAL, REFERENCE)),
    Transform("widened", "float64 inside, rounded once", always(WIDENED, EACH, REFERENCE)),
    Transform("checkpointed", "recomputed in the backward pass", always(CHECKPOINTED), universal=True),
    Transform("dual", "forward-mode differentiation", always(DUAL, REFERENCE)),
    Transform("traced", "TorchScript trace", always(TRACED, REFERENCE)),
    Transform("scripted", "TorchScript from source", always(SCRIPTED, REFERENCE)),
    Transform("decomposed", "core ATen decompositions", always(DECOMPOSED, REFERENCE)),
    Transform("wrapped", "weights under other names", _wrapped),
    Transform("function", "a plain function", _function, entry="operator", kind="function"),
    Transform(
        "captured",
        "torch.compile: graph capture alone",
        always(_compiled('backend="eager"')),
        measured=False,
        universal=True,
    ),
    Transform(
        "partitioned",
        "torch.compile: decomposed and partitioned graphs, forward and backward",
        always(_compiled('backend="aot_eager_decomp_partition"')),
        measured=False,
        universal=True,
    ),
    Transform(
        "inductor",
        "torch.compile: Inductor, a program for each size until sizes prove to vary",
        always(_compiled('backend="inductor"', IN_PROCESS)),
        language="inductor",
        measured=False,
        universal=True,
    ),
    Transform(
        "inductor_dynamic",
        "torch.compile: Inductor, one program for all sizes",
        always(_compiled('backend="inductor", dynamic=True', IN_PROCESS)),
        language="inductor",
        measured=False,
        universal=True,
    ),
)
