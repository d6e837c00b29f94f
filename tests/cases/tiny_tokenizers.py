"""Tokenizers for the tiny decoder: one of words, one of bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.tiny_decoder import VOCABULARY

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")


def words(path: Path) -> Path:
    """A tokenizer whose words are ``w0`` … ``w49``; 0 is special."""
    model = tokenizers.models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w1")
    found = tokenizers.Tokenizer(model)
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    found.add_special_tokens(["w0"])
    found.save(str(path / "tokenizer.json"))
    return path / "tokenizer.json"


def characters(path: Path) -> Path:
    """A tokenizer of bytes: no merges, so that a character may be four tokens."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    found = tokenizers.Tokenizer(tokenizers.models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    found.save(str(path / "tokenizer.json"))
    return path / "tokenizer.json"
