"""Looking for a word in a file that is read in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.io.files import read


@pytest.mark.parametrize("at", [0, 1, 5, 12, 13, 15, 16, 17, 24, 29, 32, 40])
def test_a_word_is_found_wherever_it_lies(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PIECE", 16)
    (tmp_path / "f").write_bytes(b"\0" * at + b"word" + b"\0" * (50 - at))
    assert read.holds(tmp_path / "f", b"word")


@pytest.mark.parametrize("data", [b"", b"wor", b"wo" + b"\0" * 14 + b"rd", b"wor" * 30])
def test_parts_of_a_word_are_not_the_word(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PIECE", 16)
    (tmp_path / "f").write_bytes(data)
    assert not read.holds(tmp_path / "f", b"word")
