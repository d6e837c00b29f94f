"""A plugin of pytest: of what the dial left, only the tests in the file that ``ONLY`` names, one a line, in its order. A name without
brackets stands for all cases of a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "ONLY"


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    yield
    names = Path(os.environ[VARIABLE]).read_text(encoding="utf-8").splitlines()
    order = {name: at for at, name in enumerate(names)}
    ranked = [(order.get(item.nodeid, order.get(item.nodeid.partition("[")[0])), item) for item in items]
    items[:] = [
        item for _, item in sorted(((at, item) for at, item in ranked if at is not None), key=lambda pair: pair[0])
    ]
