"""The cache that bounds a judge's memory."""

from __future__ import annotations

import torch

from lethe.verifier.cache import TensorCache, nbytes


def test_bytes_of_nested_values():
    assert (
        nbytes([torch.zeros(3), (torch.zeros(2, dtype=torch.float64), 7), {"a": torch.zeros(1)}, None]) == 32
    )


def test_the_least_recently_used_go_first():
    cache: TensorCache[str, str] = TensorCache(100)
    for name in "ab":
        cache.put(name, name.upper(), torch.zeros(10))
    assert cache["a"] == "A"
    cache.put("c", "C", torch.zeros(10))
    assert "a" in cache and "b" not in cache and "c" in cache


def test_the_newest_stays_whatever_its_size_and_replacing_does_not_count_twice():
    cache: TensorCache[str, int] = TensorCache(100)
    cache.put("small", 1, torch.zeros(10))
    cache.put("huge", 2, torch.zeros(1000))
    assert len(cache) == 1 and cache["huge"] == 2
    for k in range(5):
        cache.put("same", k, torch.zeros(20))
    cache.put("other", 0, torch.zeros(5))
    assert cache["same"] == 4 and "other" in cache
