"""Work in several processes whose results are wanted as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def results(work: Callable[[T], R], parts: Iterable[T], workers: int) -> Iterator[R]:
    """``work(part)`` for each part, in the order in which they end; each process runs torch on one thread.

    An interruption drops the parts that have not begun, instead of waiting for all of them. `work` must be a
    function of an importable module.
    """
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        try:
            for task in as_completed([pool.submit(work, part) for part in parts]):
                yield task.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
