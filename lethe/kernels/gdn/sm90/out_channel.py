"""One gate a channel: g and dg as fragments, and which way the products between rows go."""

from collections.abc import Callable

import cutlass
from cutlass import cute

from lethe.kernels.gdn.sm90 import out_memory as at
from lethe.kernels.gdn.sm90.out_decay import ChannelDecay, run_alone
from lethe.kernels.gdn.sm90.out_fragments import Float32, load_rows_if, store_rows_if
from lethe.kernels.gdn.sm90.out_intra import Sums, as_columns, as_rows
from lethe.kernels.gdn.sm90.out_pairs import Adjoints
from lethe.kernels.gdn.sm90.out_place import Place
from lethe.kernels.gdn.sm90.out_spec import DK, Spec
from lethe.kernels.gdn.sm90.out_steep import Steep, steep_columns, steep_rows
from lethe.kernels.gdn.sm90.out_values import erased


class Wide:
    """Fragments of a float32 tensor [B, L, H, d_k]: 32 bytes a token and quad of lanes."""

    def __init__(self, place: Place, start, valid, head):
        self.row, self.valid, self.start, self.head = place.column * 2, valid, start, head
        self.channel = place.warp * 16 + place.row

    def _rows(self, tensor: cute.Tensor):
        """(index of the first half, token, address) of every pair of channels of a thread."""
        heads = tensor.shape[2]
        element = cutlass.Int64((self.start + self.row) * heads + self.head) * DK + self.channel
        first = (tensor.iterator + element).toint()
        for t in range(8):
            for e in range(2):
                yield 4 * t + e, self.row + (8 * t + e), first + cutlass.Int64(heads) * (4 * DK * (8 * t + e))

    def store(self, tensor: cute.Tensor, values: list) -> None:
        """Store a fragment but what lies past the end."""
        for i, token, address in self._rows(tensor):
            store_rows_if(token, self.valid, address, [values[i], values[i + 2]])

    def load(self, tensor: cute.Tensor) -> list:
        """A fragment, zero past the end."""
        values = [Float32(0.0)] * 32
        for i, token, address in self._rows(tensor):
            values[i], values[i + 2] = load_rows_if(token, self.valid, address)
        return values


def between_rows(place: Place, spec: Spec, decay: ChannelDecay, found: Adjoints, rates: Callable) -> tuple:
    """`out_head.between_tokens` for one gate a channel; ``rates`` reads g again."""
    given = [found.dq, found.dk, found.dp][: 3 if spec.erases else 2]
    made = [cute.make_rmem_tensor((len(x),), cutlass.Float32) for x in (*(s.values for s in given), [0, 0])]

    def fast() -> None:
        _go(as_rows, as_columns, decay)

    def steep() -> None:
        _go(steep_rows, steep_columns, Steep(ChannelDecay(place, rates(), run_alone), place))

    def _go(rows, columns, factors) -> None:
        keys = lambda b: place.keys.values(at.K, b, spec.dtype)  # noqa: E731
        queries = lambda b: place.keys.values(at.Q, b, spec.dtype)  # noqa: E731
        faded = lambda b: [x * y for x, y in zip(keys(b), erased(place, spec, b), strict=True)]  # noqa: E731
        sums = [Sums(list(s.values), s.unit) for s in given]
        outputs, pairs = [(sums[0], found.causal)], [(queries, found.causal)]
        if spec.erases:
            outputs.append((sums[2], found.erasing))
            pairs.append((faded, found.erasing))
        ended = rows(outputs, keys, factors, sums[1], place)
        columns(sums[1], pairs, factors, place)
        for target, values in zip(made, (*(s.values for s in sums), ended), strict=True):
            for i, x in enumerate(values):
                target[i] = x

    either(decay.steep, steep, fast)
    dq, dk, *dp, ended = ([x[i] for i in range(cute.size(x))] for x in made)
    return dq, dp[0] if dp else [], dk, ended


@cute.jit
def either(condition: cutlass.Boolean, yes: cutlass.Constexpr, no: cutlass.Constexpr):
    """Trace both ways behind a branch."""
    if condition:
        yes()
    else:
        no()
