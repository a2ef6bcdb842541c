"""A rewriting: from the text of a reference to the text of an honest candidate.

The candidate is the reference's own file with a class ``ModelNew`` behind it, so that it needs nothing but
torch and is the same text wherever it is made. What the rewriting may assume of the reference was measured
(`traits`), never guessed from its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lethe.evidence.honest.traits import Traits

Body = Callable[[Traits], dict[str, str]]
"""Traits of the reference -> text of the candidate's part, by variant (``""`` where there is only one)."""

EACH = '''
def _each(value, change):
    """`change` applied to every tensor of a result."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return type(value)(_each(v, change) for v in value)
'''

JOINED = '''
def _joined(parts):
    """The results of consecutive parts of the batch as one."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    return type(parts[0])(_joined(p) for p in zip(*parts))
'''

REFERENCE = '''
def _reference(module):
    """`module` with the reference's own forward; both hold the same weights."""
    plain = object.__new__(Model)
    plain.__dict__ = module.__dict__
    return plain


def _weights(module):
    """Parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _call(module, weights, *inputs):
    """The reference as a function of its weights and inputs."""
    return torch.func.functional_call(_reference(module), weights, inputs)


def _signature(inputs):
    """What a program recorded from one call may depend on."""
    return tuple((t.shape, t.stride(), t.dtype, t.device) for t in inputs)
'''


@dataclass(frozen=True)
class Transform:
    """One way of writing every reference anew."""

    name: str
    what: str
    """In a sentence, for the table."""
    body: Body
    language: str = "torch"
    """What executes the operator in the end: torch's own kernels, or code that Inductor generates."""
    measured: bool = True
    """Whether the generator runs it before it admits it; else it is honest by its compiler's promise."""
    universal: bool = False
    """Whether it asks nothing of the reference, so that it fits one that was never measured."""
    entry: str = "ModelNew"
    kind: str = "module"

    def texts(self, source: str, traits: Traits) -> dict[str, str]:
        """Candidates by variant; empty where the rewriting does not apply to a reference of these traits."""
        bodies = self.body(traits)
        return {variant: source.rstrip() + "\n\n" + body for variant, body in bodies.items()}


def always(body: str, *helpers: str) -> Body:
    """The same text for every reference."""
    return lambda traits: {"": assembled(body, helpers)}


def with_rows(body: str, *helpers: str) -> Body:
    """For references whose first dimension holds independent samples; ``ROWS`` in `body` are the arguments
    that carry it."""
    return lambda traits: {"": assembled(_rows(body, traits), helpers)} if traits.rows else {}


def _rows(body: str, traits: Traits) -> str:
    return body.replace("ROWS", repr(traits.rows)).replace("FIRST", str(traits.rows[0]))


def assembled(body: str, helpers: Iterable[str]) -> str:
    """Helpers, then the class, two blank lines apart."""
    return "\n\n".join(part.strip("\n") + "\n" for part in (*helpers, body))
