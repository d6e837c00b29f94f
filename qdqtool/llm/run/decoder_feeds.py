"""A text as feeds of a decoder of dynamic length: what it reads for a prompt, and for the token behind it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from qdq_passes.decoder.edit.slots import canonical_positions
from qdq_passes.decoder.look.host_region import Host
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.positions import shortest_table
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.errors import UnsupportedError, UsageError

from qdqtool.io.files.read import read_text
from qdqtool.llm.folder.tokenizing import Tokenizer
from qdqtool.llm.run.dynamic import DynamicDecoder

#: Tokens of a prompt.
WINDOW = 128
#: Feeds where nothing is said.
SAMPLES = 32


class TextFeeds:
    """Feeds of windows that are spread evenly over a text: for each its first tokens with an empty past, then one token with the
    past that these left. So both phases are seen, the ids of the text, its positions, masks and caches. Can be read again.

    Args:
        model: the decoder, as it is; a copy runs.
        text: a text file, UTF-8.
        tokenizer: a tokenizer.json, or a folder with one.
        samples: feeds in all; None for `SAMPLES`.
        window: tokens of a prompt, fewer where the model has a table of fewer positions; a shorter text makes one window.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.

    Raises:
        UnsupportedError: the model is no decoder with a cache, has an input of unknown meaning, or is one graph of a folder.
        UsageError: the text has less than two tokens, or no sample is asked for.
        SetupError: the package tokenizers is not installed.
    """

    def __init__(
        self,
        model: ir.Model,
        text: str | os.PathLike[str],
        tokenizer: str | os.PathLike[str],
        *,
        samples: int | None = None,
        window: int = WINDOW,
        threads: int = 1,
    ) -> None:
        if DECODER.get(model.graph) is not None:
            raise UnsupportedError(
                "is one graph of a folder that `split` wrote", where=model.graph.name,
                hint="give the folder, or arrays of its inputs",
            )  # fmt: skip
        self._count = SAMPLES if samples is None else samples
        if self._count < 1:
            raise UsageError(f"{samples} samples", hint="--samples takes a number from 1")
        self._ids = Tokenizer(tokenizer).encode(read_text(text))
        if len(self._ids) < 2:
            raise UsageError(f"has {len(self._ids)} tokens", where=os.fspath(text), hint="give a longer text")
        self._decoder = DynamicDecoder(model, threads=threads)
        self._window = min(window, len(self._ids) - 1, _positions(model) - 1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray[Any, Any]]]:
        windows = -(-self._count // 2)
        room = len(self._ids) - self._window - 1
        for number in range(windows):
            begin = room * number // max(windows - 1, 1)
            ids = self._ids[begin : begin + self._window + 1]
            self._decoder.reset()
            yield self._decoder.inputs(ids[:-1])
            if 2 * number + 1 < self._count:
                self._decoder.prefill(ids[:-1])
                yield self._decoder.inputs(ids[-1:])


def _positions(model: ir.Model) -> int:
    """How many positions there are, by the shortest table that the model chooses them from; without tables any number."""
    io = decoder_io(model)
    positions = canonical_positions(io)
    table = shortest_table(Host(model, io), positions) if positions is not None else None
    return table.positions if table is not None else sys.maxsize
