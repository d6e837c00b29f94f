"""Commands that are killed or interrupted at random moments lose nothing; ``python -m tests.fuzz kills`` does many."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.dial import sized
from tests.fuzz.kills import Kind, run


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 on this system")
@pytest.mark.parametrize("kind", ["kill", "interrupt"])
def test_nothing_is_lost(kind: Kind, tmp_path: Path) -> None:
    assert run(sized(12, 4), 0, kind, tmp_path / "work") == []
