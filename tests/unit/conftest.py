"""What holds for every unit test."""

from __future__ import annotations

import pytest
from qdq_passes.core import registry


@pytest.fixture(autouse=True)
def folders_of_this_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of ``--path`` are kept for the whole process: a test must not find those of another."""
    monkeypatch.setattr(registry, "_added", [])
