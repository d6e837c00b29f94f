"""Text files as ``--data``: language models meet the verbs that take samples."""

from __future__ import annotations

import os

import onnx_ir as ir

from qdqtool.io.feeds.feeds import TEXT_SUFFIXES, FeedSpec
from qdqtool.io.models.working import ModelOrPath


def is_text(data: FeedSpec | None) -> bool:
    """Whether ``data`` names a text file."""
    if not isinstance(data, str | os.PathLike):
        return False
    return os.path.splitext(os.fspath(data))[1].lower() in TEXT_SUFFIXES and os.path.isfile(data)


def is_folder(model: ModelOrPath) -> bool:
    """Whether ``model`` is a folder, as `split` writes one."""
    return not isinstance(model, ir.Model) and os.path.isdir(model)


def with_texts(
    data: FeedSpec,
    model: ir.Model,
    source: ModelOrPath,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    samples: int | None = None,
) -> FeedSpec:
    """``data``, or the feeds that it gives the decoder ``model`` where it is a text file.

    Args:
        data: samples in any form of ``--data``.
        model: the model.
        source: where it came from: the tokenizer lies beside a file.
        tokenizer: a tokenizer.json, or a folder with one, instead.
        samples: feeds of a text.

    Raises:
        QdqError: a text for a model that is no decoder; no tokenizer; see `TextFeeds`.
    """
    if not is_text(data):
        return data
    from qdqtool.llm.run.decoder_feeds import TextFeeds

    assert isinstance(data, str | os.PathLike)
    beside = "." if isinstance(source, ir.Model) else os.path.dirname(os.fspath(source)) or "."
    return TextFeeds(model, data, beside if tokenizer is None else tokenizer, samples=samples)
