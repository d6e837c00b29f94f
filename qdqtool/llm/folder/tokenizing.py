"""Text to tokens and back, with the tokenizer.json beside the graphs; the one module that imports `tokenizers`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from qdq_passes.errors import ModelError, SetupError, UsageError

from qdqtool.io.files.read import read_text

TOKENIZER = "tokenizer.json"
#: Tokens before a new one that its text may depend on: by the space between words, by the bytes of a character.
CONTEXT = 8
#: What a decoder writes for bytes that are no character (yet).
REPLACEMENT = "\ufffd"


def is_installed() -> bool:
    """Whether the library is there."""
    return importlib.util.find_spec("tokenizers") is not None


class Tokenizer:
    """A tokenizer of the `tokenizers` library.

    Args:
        path: a tokenizer.json, or a folder with one.

    Raises:
        SetupError: the library is not installed.
        UsageError: the folder has no tokenizer.
        ModelError: the file is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        where = os.path.join(path, TOKENIZER) if os.path.isdir(path) else os.fspath(path)
        if os.path.isdir(path) and not os.path.exists(where):
            raise UsageError(
                f"has no {TOKENIZER}", where=os.fspath(path), hint="give tokens instead of text (--prompt-ids 1,2,3)"
            )
        try:
            import tokenizers
        except ImportError as error:
            raise SetupError(
                f"text needs the package tokenizers ({error})",
                hint='pip install "qdqtool[llm]", or give tokens (--prompt-ids)',
            ) from error
        text = read_text(where)
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise ModelError(f"is no tokenizer ({' '.join(str(error).split())[:200]})", where=where) from error

    @property
    def size(self) -> int:
        """How many tokens it knows, the added ones too."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of ``text``; ``special`` adds those that the tokenizer puts around a text, such as its beginning."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class TextStream:
    """The text of tokens as they come. A character whose bytes are not all there yet waits.

    Args:
        tokenizer: what decodes.
        before: tokens before the first, whose text was shown already: some tokenizers write a space between words only.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before)
        self._shown = tokenizer.decode(self._ids)

    def push(self, token: int) -> str:
        """What the token adds to the text; often nothing until the next."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        whole = text.rstrip(REPLACEMENT)
        new = whole[len(self._shown) :]
        self._shown += new
        if whole == text:  # decoding all tokens for each would take long
            self._ids = self._ids[-CONTEXT:]
            self._shown = self._tokenizer.decode(self._ids)
        return new

    def end(self) -> str:
        """What has waited, as it is."""
        return self._tokenizer.decode(self._ids)[len(self._shown) :]
