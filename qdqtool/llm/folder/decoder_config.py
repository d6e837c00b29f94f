"""Read what lies beside a decoder: the tokenizer's files, special tokens, and widths that a configuration tells."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.io.files.artifacts import read_document

#: Files of a tokenizer and of the model's configuration as exporters write them, the one that is needed to run first.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model", "vocab.json",
    "merges.txt", "chat_template.jinja", "config.json", "generation_config.json",
)  # fmt: skip
#: Where ids of special tokens stand, the most telling first: file, key of the object that holds them ("" for the whole).
_PLACES = (("generation_config.json", ""), ("genai_config.json", "model"), ("config.json", ""))


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Files that go along with a decoder.

    Args:
        files: paths of the tokenizer's files.
        eos_token_ids: tokens that end a text.
        bos_token_id: token that begins one.
        pad_token_id: token that fills up.
        hidden_size: width of the activations between layers, where a configuration tells.
        attention_heads: heads of queries, where a configuration tells.
    """

    files: tuple[str, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    hidden_size: int | None = None
    attention_heads: int | None = None


def decoder_config_of(
    model: str | os.PathLike[str] | None, tokenizer: str | os.PathLike[str] | None = None
) -> DecoderConfig:
    """What belongs to the decoder at ``model``.

    Args:
        model: its path; None for a model in memory.
        tokenizer: folder of the tokenizer's files, or its tokenizer.json; by default the folder of ``model``.

    Raises:
        UsageError: ``tokenizer`` is not there, or a folder without a tokenizer.
        ModelError: a file of it cannot be read, or is not JSON where it should be.
    """
    if tokenizer is not None:
        path = os.fspath(tokenizer)
        if not os.path.exists(path):
            raise UsageError("no such file", where=path, hint="give a folder with tokenizer.json, or the file")
        folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
        if os.path.isdir(path) and not any(os.path.isfile(os.path.join(path, name)) for name in TOKENIZER_FILES):
            raise UsageError("holds no tokenizer", where=path, hint=f"it should have {TOKENIZER_FILES[0]}")
        first = () if os.path.isdir(path) else (path,)
    elif model is not None:
        folder, first = os.path.dirname(os.path.abspath(os.fspath(model))), ()
    else:
        return DecoderConfig()
    beside = [os.path.join(folder, name) for name in TOKENIZER_FILES if os.path.isfile(os.path.join(folder, name))]
    if first and os.path.basename(first[0]) != TOKENIZER_FILES[0]:
        beside = [path for path in beside if os.path.basename(path) != TOKENIZER_FILES[0]]
    files = tuple(dict.fromkeys((*first, *beside)))
    special: dict[str, Any] = {}
    for table in _tables(folder):
        for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
            if table.get(key) is not None:
                special.setdefault(key, table[key])
    ends = special.get("eos_token_id", _named_token(folder, "eos_token"))
    widths = list(_widths(folder))
    return DecoderConfig(
        files=files,
        eos_token_ids=tuple(_ids(ends)),
        bos_token_id=next(iter(_ids(special.get("bos_token_id"))), None),
        pad_token_id=next(iter(_ids(special.get("pad_token_id"))), None),
        hidden_size=_first(widths, ("hidden_size", "n_embd")),
        attention_heads=_first(widths, ("num_attention_heads", "n_head")),
    )


def _widths(folder: str) -> Iterator[dict[str, Any]]:
    """The tables that may tell widths: the configuration, the part of it for text, the decoder of onnxruntime-genai's."""
    for table in _tables(folder):
        yield table
        yield from (inner for key in ("text_config", "decoder") if isinstance(inner := table.get(key), dict))


def _first(tables: Iterable[dict[str, Any]], keys: Iterable[str]) -> int | None:
    """The first whole number that one of ``tables`` has under one of ``keys``."""
    return next((found for table in tables for key in keys for found in _ids(table.get(key))), None)


def _tables(folder: str) -> Iterator[dict[str, Any]]:
    for name, key in _PLACES:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            data = _json(path)
            table = data.get(key, {}) if key else data
            if isinstance(table, dict):
                yield table


def _json(path: str) -> dict[str, Any]:
    data = read_document(path)
    return data if isinstance(data, dict) else {}


def _ids(found: object) -> list[int]:
    values = found if isinstance(found, list | tuple) else [found]
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool)]


def _named_token(folder: str, name: str) -> int | None:
    """The id of the token that tokenizer_config.json names so, looked up among the added tokens of tokenizer.json."""
    paths = [os.path.join(folder, file) for file in ("tokenizer_config.json", "tokenizer.json")]
    if not all(os.path.isfile(path) for path in paths):
        return None
    config, tokenizer = map(_json, paths)
    token = config.get(name)
    text = token.get("content") if isinstance(token, dict) else token
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and entry.get("content") == text:
            return next(iter(_ids(entry.get("id"))), None)
    return None
