"""A cache bounded by the bytes of its tensors, so that a judge's memory does not grow with its work."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TensorCache(Generic[K, V]):
    """Least-recently-used entries go first once the tensors take more than `max_bytes`.

    The newest entry stays whatever its size: it is in use.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, key: K) -> V:
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: K, value: V, tensors: Any) -> V:
        """Keep `value`, which holds `tensors` (nested lists, tuples and dicts of them); returns it."""
        if key in self._entries:
            self._bytes -= self._entries.pop(key)[1]
        size = nbytes(tensors)
        self._entries[key] = value, size
        self._bytes += size
        while self._bytes > self.max_bytes and len(self._entries) > 1:
            self._bytes -= self._entries.popitem(last=False)[1][1]
        return value


def nbytes(value: Any) -> int:
    """Bytes of the tensors in a nested value; what else it holds counts nothing."""
    if isinstance(value, (list, tuple)):
        return sum(map(nbytes, value))
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    return _bytes(value) if hasattr(value, "element_size") else 0


def _bytes(t: Tensor) -> int:
    return t.numel() * t.element_size()
