"""The help of every command, as a person reads it."""

from __future__ import annotations

import pytest

from tests.golden_help.help_texts import FOLDER, help_texts

TEXTS = help_texts()


def test_every_command_has_a_golden() -> None:
    assert sorted(TEXTS) == sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_help(name: str) -> None:
    assert TEXTS[name] == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
