"""Run the kernels' CPU tests under Triton's interpreter without turning this process into an interpreter.

``@triton.jit`` decides when it decorates, and other tests need it to compile. So one worker is forked
after collection: it inherits the tests, becomes an interpreter with the verifier's repairs (Triton's
own multiplies the bit patterns of bfloat16 in ``tl.dot``), and runs each test by its id. Tests
marked ``gpu`` or ``compiles``, and those in `NO_TRITON`, run in this process as usual. A test may use
parameters but no fixtures, and imports `lethe.kernels` inside its body: what other tests had imported of it
before the fork, decorated to be compiled, the worker forgets.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

NO_TRITON = Path(__file__).parent / "gdn"
"""Tests of kernels that are not Triton's."""

_items: dict[str, pytest.Function] = {}
_worker: list[Any] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    here = str(Path(__file__).parent)
    mine = [i for i in session.items if isinstance(i, pytest.Function) and str(i.path).startswith(here)]
    _items.update({item.nodeid: item for item in mine if not _in_this_process(item)})
    if _items and not session.config.option.collectonly:
        _start()


def _patch_once() -> None:
    """Let the interpreter prepare a device function's globals once, not again at every call of it."""
    from triton.runtime import interpreter

    patch, seen = interpreter._patch_lang, set()
    run = interpreter.GridExecutor.__call__

    def once(fn: Any) -> Any:
        if fn not in seen:
            seen.add(fn)
            return patch(fn)
        return None

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.clear()
        return run(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = once, launch


def _serve(pipe: Any) -> None:
    from lethe.verifier.executors import builder, library

    torch.set_num_threads(1)
    library.use_interpreter()
    builder.install()
    for name in [name for name in sys.modules if name.startswith("lethe.kernels")]:
        del sys.modules[name]
    while True:
        item = _items[pipe.recv()]
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        try:
            item.obj(**parameters)
            answer = ("passed", "")
        except pytest.skip.Exception as reason:
            answer = ("skipped", str(reason))
        except BaseException:
            answer = ("failed", traceback.format_exc())
        pipe.send(answer)


def _in_this_process(item: pytest.Function) -> bool:
    marked = item.get_closest_marker("gpu") or item.get_closest_marker("compiles")
    return bool(marked) or item.path.is_relative_to(NO_TRITON)


def _start() -> None:
    ours, theirs = Pipe()
    if os.fork() == 0:
        ours.close()
        try:
            _serve(theirs)
        except EOFError:
            pass
        finally:
            os._exit(0)
    theirs.close()
    _worker.append(ours)


def _answer(nodeid: str) -> tuple[str, str]:
    if not _worker:
        return "failed", "the interpreting worker died before"
    _worker[0].send(nodeid)
    try:
        return _worker[0].recv()
    except (EOFError, pickle.UnpicklingError):
        _worker.clear()
        return "failed", "the interpreting worker died"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if _in_this_process(pyfuncitem):
        return None
    outcome, text = _answer(pyfuncitem.nodeid)
    if outcome == "skipped":
        pytest.skip(text)
    if outcome == "failed":
        pytest.fail(text, pytrace=False)
    return True
