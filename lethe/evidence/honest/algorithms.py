"""Other algorithms for the same operator: what a kernel's author would write, in torch.

Unlike the general rewritings these change the arithmetic: other formulas, other orders of summation, blocks
with a carry, transforms. Each keeps the reference's meaning at every input, non-finite ones included, by the
rules of IEEE 754 up to 0 times infinity (fairness rule 30).

What does not is no honest twin and is left out, although people write it:

* forms whose result is all cancellation somewhere: one-pass variance, differences of prefix sums, the sigmoid
  as (1 + tanh(x/2))/2, which is 0 from x = -18 on where the reference has small numbers (CMP-01 says so);
* cumulative sums by a triangular matrix, which mint NaN before an infinity;
* ``x - logsumexp(x)``, which is -inf where the reference has NaN;
* torch's fused attention, which takes a row of scores that are all -inf for a row without keys and returns 0,
  where the softmax of the reference is NaN (EXC-01 says so).
"""

from __future__ import annotations

from lethe.evidence.honest import forms_products, forms_reductions
from lethe.evidence.honest.form import Forms
from lethe.evidence.honest.traits import Traits
from lethe.evidence.honest.transform import Transform

FORMS: Forms = {**forms_products.FORMS, **forms_reductions.FORMS}

PRELUDE = '''
import torch.nn.functional as F


def _window(pool):
    """Size and stride of a one-dimensional pooling."""
    (size,), (stride,) = (v if isinstance(v, tuple) else (v,) for v in (pool.kernel_size, pool.stride))
    return size, stride
'''


def _forms(traits: Traits) -> dict[str, str]:
    return {name: _text(name, *form) for name, form in FORMS.get(traits.problem, {}).items()}


def _text(name: str, arguments: str, body: str) -> str:
    indent = "" if body.startswith("\n") else "        "
    return (
        f'{PRELUDE.strip()}\n\n\nclass ModelNew(Model):\n    """Another algorithm: {name}."""\n\n'
        f"    def forward(self, {arguments}):\n{indent}{body.strip(chr(10))}\n"
    )


TRANSFORMS = (Transform("algorithm", "another algorithm for the same operator", _forms),)
