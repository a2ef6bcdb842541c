"""``--rules N``: only so many fairness rules, spread evenly over all, for a quick build of the book."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rules", type=int, metavar="N", help="test only so many fairness rules, spread evenly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--rules", default=None)
    rules = [item for item in items if getattr(item, "originalname", "") == "test_rule"]
    if wanted is None or wanted >= len(rules):
        return
    kept = {rules[i * len(rules) // wanted] for i in range(wanted)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
