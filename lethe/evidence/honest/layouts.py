"""Rewritings by memory and order: other layouts, other cuts of the batch, other orders of the terms."""

from __future__ import annotations

from lethe.evidence.honest.traits import Axis, Traits
from lethe.evidence.honest.transform import EACH, JOINED, Transform, always, assembled, with_rows

CONTIGUOUS = '''
class ModelNew(Model):
    """Inputs copied into fresh, dense memory first."""

    def forward(self, *inputs):
        return super().forward(*[t.clone(memory_format=torch.contiguous_format) for t in inputs])
'''

COLUMN_MAJOR = '''
def _column_major(t):
    """The same values with the first dimension fastest in memory."""
    back = tuple(reversed(range(t.dim())))
    return t.permute(back).contiguous().permute(back)


class ModelNew(Model):
    """Computed on column-major inputs; the result is made dense again."""

    def forward(self, *inputs):
        result = super().forward(*[_column_major(t) for t in inputs])
        return _each(result, torch.Tensor.contiguous)
'''

CHANNELS_LAST = '''
class ModelNew(Model):
    """Images in channels-last memory; the result is made dense again."""

    def forward(self, *inputs):
        last = torch.channels_last
        given = [t.contiguous(memory_format=last) if i in IMAGES else t for i, t in enumerate(inputs)]
        return _each(super().forward(*given), torch.Tensor.contiguous)
'''

COPIED_OUT = '''
class ModelNew(Model):
    """The result is written into memory that was allocated for it, as a kernel does."""

    def forward(self, *inputs):
        return _each(super().forward(*inputs), lambda t: torch.empty_like(t).copy_(t))
'''

PART = """
    def _part(self, inputs, first, last):
        given = [t[first:last] if i in ROWS else t for i, t in enumerate(inputs)]
        return super().forward(*given)
"""

CUT = '''
class ModelNew(Model):
    """The batch cut after one part in %(parts)d, one piece after the other."""
%(part)s
    def forward(self, *inputs):
        n = inputs[FIRST].shape[0]
        cuts = [0, n // %(parts)d, n]
        return _joined([self._part(inputs, a, b) for a, b in zip(cuts, cuts[1:]) if a < b])
'''
HALVES = CUT % {"parts": 2, "part": PART}
THIRDS = CUT % {"parts": 3, "part": PART}

SINGLES = f'''
class ModelNew(Model):
    """One sample at a time."""
{PART}
    def forward(self, *inputs):
        return _joined([self._part(inputs, i, i + 1) for i in range(inputs[FIRST].shape[0])])
'''

VMAPPED = '''
class ModelNew(Model):
    """Written for one sample, mapped over the batch."""

    def forward(self, *inputs):
        operator = super().forward

        def one(*sample):
            given = [t.unsqueeze(0) if i in ROWS else t for i, t in enumerate(sample)]
            return _each(operator(*given), lambda t: t.select(0, 0))

        dims = tuple(0 if i in ROWS else None for i in range(len(inputs)))
        result = torch.func.vmap(one, in_dims=dims)(*inputs)
        return _each(result, torch.Tensor.contiguous)
'''

DOUBLED = '''
class ModelNew(Model):
    """The batch twice over; the second copy of the result is thrown away."""

    def forward(self, *inputs):
        n = inputs[FIRST].shape[0]
        given = [torch.cat([t, t]) if i in ROWS else t for i, t in enumerate(inputs)]
        return _each(super().forward(*given), lambda t: t[:n].clone())
'''

PADDED = '''
class ModelNew(Model):
    """The batch padded with samples of zeros to the next multiple of 16, which are cut off again."""

    def forward(self, *inputs):
        n = inputs[FIRST].shape[0]

        def padded(t):
            return torch.cat([t, t.new_zeros(-n % 16, *t.shape[1:])])

        given = [padded(t) if i in ROWS else t for i, t in enumerate(inputs)]
        return _each(super().forward(*given), lambda t: t[:n].clone())
'''

BACKWARDS = '''
class ModelNew(Model):
    """The batch from last to first; the result is turned back."""

    def forward(self, *inputs):
        given = [t.flip(0) if i in ROWS else t for i, t in enumerate(inputs)]
        return _each(super().forward(*given), lambda t: t.flip(0))
'''

REVERSED = '''
class ModelNew(Model):
    """The axis AXIS from last to first, in whatever carries it."""

    def forward(self, *inputs):
        given = [t.flip(INPUTS.get(i, ())) for i, t in enumerate(inputs)]
        result = super().forward(*given)
        if isinstance(result, torch.Tensor):
            return result.flip(OUTPUTS.get(0, ()))
        return type(result)(t.flip(OUTPUTS.get(i, ())) for i, t in enumerate(result))
'''

SPLIT_TERMS = '''
class ModelNew(Model):
    """The terms of every sum along AXIS in two parts, added in the end."""

    def forward(self, *inputs):
        where = INPUTS
        first = next(iter(where))
        n = inputs[first].shape[where[first]]

        def part(start, stop):
            count = stop - start
            return [t.narrow(where[i], start, count) if i in where else t for i, t in enumerate(inputs)]

        result = super().forward(*part(n // 2, n))
        return super().forward(*part(0, n // 2)) + result if n > 1 else result
'''


def _images(traits: Traits) -> dict[str, str]:
    body = CHANNELS_LAST.replace("IMAGES", repr(traits.images))
    return {"": assembled(body, (EACH,))} if traits.images else {}


def _reversed(traits: Traits) -> dict[str, str]:
    return {name: assembled(_on_axis(REVERSED, name, axis), ()) for name, axis in traits.axes.items()}


def _split_terms(traits: Traits) -> dict[str, str]:
    found = {}
    for name, axis in traits.axes.items():
        if axis.adds:
            body = SPLIT_TERMS.replace("AXIS", name).replace("INPUTS", repr(dict(axis.inputs)))
            found[name] = assembled(body, ())
    return found


def _on_axis(body: str, name: str, axis: Axis) -> str:
    def dims(places: tuple[tuple[int, int], ...]) -> str:
        return repr({i: tuple(d for j, d in places if j == i) for i, _ in places})

    return (
        body.replace("AXIS", name).replace("INPUTS", dims(axis.inputs)).replace("OUTPUTS", dims(axis.outputs))
    )


TRANSFORMS = (
    Transform("contiguous", "inputs copied into dense memory", always(CONTIGUOUS)),
    Transform("column_major", "inputs in column-major memory", always(COLUMN_MAJOR, EACH)),
    Transform("channels_last", "images in channels-last memory", _images),
    Transform("copied_out", "the result copied into memory made for it", always(COPIED_OUT, EACH)),
    Transform("halves", "the batch in two halves", with_rows(HALVES, JOINED)),
    Transform("thirds", "a third of the batch, then the rest", with_rows(THIRDS, JOINED)),
    Transform("singles", "one sample at a time", with_rows(SINGLES, JOINED)),
    Transform("vmapped", "vmap over the batch", with_rows(VMAPPED, EACH)),
    Transform("doubled", "the batch twice over", with_rows(DOUBLED, EACH)),
    Transform("padded", "the batch padded to a multiple of 16", with_rows(PADDED, EACH)),
    Transform("backwards", "the batch from last to first", with_rows(BACKWARDS, EACH)),
    Transform("reversed", "one axis from last to first", _reversed),
    Transform("split_terms", "sums in two parts", _split_terms),
)
