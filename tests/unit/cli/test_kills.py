"""Commands that are killed or interrupted at random moments lose nothing; ``python -m tests.fuzz kills`` does many."""

from __future__ import annotations

import signal

import pytest

from tests.dial import sized
from tests.fuzz.kills import Kind, Prepared, prepared, run


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Prepared]:
    return prepared(tmp_path_factory.mktemp("kills"))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 on this system")
@pytest.mark.parametrize("kind", ["kill", "interrupt"])
def test_nothing_is_lost(kind: Kind, cases: list[Prepared]) -> None:
    assert run(sized(12, 2), 0, kind, cases) == []
