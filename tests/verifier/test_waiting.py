"""A process that waits for the device gives up its core, where there is a driver to ask."""

import ctypes
from types import SimpleNamespace

import pytest

from lethe.verifier import waiting


def driver(status: int, asked: list[tuple[int, int]]) -> SimpleNamespace:
    def flags(device: int, value: int) -> int:
        asked.append((device, value))
        return status

    return SimpleNamespace(cuInit=lambda _: 0, cuDevicePrimaryCtxSetFlags_v2=flags)


def test_the_driver_is_asked_for_blocking_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(0, asked))
    assert waiting.sleep_while_waiting(1)
    assert asked == [(1, 4)]


def test_a_driver_that_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(1, []))
    assert not waiting.sleep_while_waiting()


def test_without_a_driver_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not waiting.sleep_while_waiting()
