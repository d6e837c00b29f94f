"""The texts of refusals: of tests that there are, and compared as a whole."""

from __future__ import annotations

import ast

import pytest
from qdq_passes.errors import ModelError, UsageError

from tests.golden_messages.refusal import FOLDER, ROOT, golden, refusal


def test_every_text_is_of_a_test() -> None:
    known: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text(encoding="utf-8")
        if "golden_messages.refusal import" in text:
            functions = (node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
            known |= {
                f"{'-'.join(file.parent.relative_to(ROOT / 'tests').parts)}/{file.name}::{name}" for name in functions
            }
    told = {f"{file.stem}/{name.partition('[')[0]}" for file in FOLDER.glob("*.txt") for name in golden(file)}
    assert told - known == set(), "MESSAGES=write does not take out what is gone"
    assert len(told) > 100


def test_a_known_text() -> None:
    with refusal(UsageError) as caught:
        raise UsageError("is wrong", where="here", hint="mend it")
    assert caught.value.where == "here"


@pytest.mark.parametrize("error", [UsageError("is wrong"), ModelError("is wrong", where="here", hint="mend it")])
def test_another_text_or_kind(error: UsageError | ModelError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.golden_messages.refusal.IS_WRITING", False)
    with pytest.raises(AssertionError if type(error) is UsageError else ModelError), refusal(UsageError):
        raise error
