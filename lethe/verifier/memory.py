"""What the reference itself does to memory: inputs it writes, what its outputs share, state it keeps."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from lethe.verifier.structure import flatten, map_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from lethe.verifier.problem import Instance


def observe(instance: Instance, inputs: Any) -> tuple[set[int], dict[int, set[str]]]:
    """Run the reference once on copies of `inputs`.

    Returns the positions of the input tensors that it writes (fairness rule 17), and for each
    output tensor the names of what it shares storage with (fairness rule 18): ``"input:0"``,
    ``"out[1]"``, ``"param:weight"``.
    """
    import torch

    module = copy.deepcopy(instance.module)
    given = map_tensors(inputs, lambda t: t.clone())
    before, _ = flatten(map_tensors(given, lambda t: t.clone()))
    with torch.no_grad():
        outs, _ = flatten(module(*given))
    after, _ = flatten(given)
    written = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if not _same(a, b)}
    owners: dict[int, str] = {_storage(t): f"input:{i}" for i, t in enumerate(after)}
    owners |= {_storage(p): f"param:{n}" for n, p in module.state_dict().items()}
    shared: dict[int, set[str]] = {}
    for i, t in enumerate(outs):
        names = {f"out[{j}]" for j, u in enumerate(outs) if j != i and _storage(u) == _storage(t)}
        if _storage(t) in owners:
            names.add(owners[_storage(t)])
        shared[i] = names
    return written, shared


def keeps_state(instance: Instance, inputs: Any) -> bool:
    """Fairness rule 34: a second call of the same reference answers otherwise or is refused, or its state
    moved."""
    import torch

    from lethe.verifier.fairness import has_hidden_state
    from lethe.verifier.oracle import MEMORY_ENDS

    module = copy.deepcopy(instance.module)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    with torch.no_grad():
        first, _ = flatten(module(*map_tensors(inputs, lambda t: t.clone())))
        try:
            second, _ = flatten(module(*map_tensors(inputs, lambda t: t.clone())))
        except MEMORY_ENDS:
            raise
        except Exception:
            return True
    return has_hidden_state(first, second, before, module.state_dict())


def _storage(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _same(a: Tensor, b: Tensor) -> bool:
    import torch

    return (
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) if a.is_floating_point() else torch.equal(a, b)
    )
