"""What a folder of language-model graphs is calibrated on: tokens of a text, ids that are given, or drawn ones.

Each text is a sequence of ids of its own: no window runs from one into the next."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.numerics.arrays import Array

from qdqtool.io.feeds.feeds import RANDOM, RANDOM_WARNING, FeedSpec
from qdqtool.io.feeds.stored_array import arrays_in
from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.io.files.read import read_text
from qdqtool.llm.folder.manifest import Manifest
from qdqtool.llm.folder.tokenizing import Tokenizer
from qdqtool.llm.run.calibration import Texts, schedules
from qdqtool.verbs.work.texts import is_text

_FORMS = (
    "give a file of text (.txt), ids in an .npz (input_ids [samples, length]), or random:N: the runner makes positions, masks "
    "and caches of them"
)
#: Arrays of ids, and which of them count (1) or only fill a row (0), as tokenizers call them.
_IDS, _MASK = "input_ids", "attention_mask"


def texts_of(
    data: FeedSpec | None,
    manifest: Manifest,
    graphs: Mapping[str, ir.Model],
    tokenizer: str | os.PathLike[str],
    *,
    samples: int | None = None,
    seed: int = 0,
    warn: Warn | None = None,
) -> Texts:
    """The texts that ``data`` holds, as ids.

    Args:
        data: a text file; an ``.npz``, ``.npy`` or arrays by name with ids [samples, length] or [length]; or ``random:N[:SEED]``.
        manifest: of the folder.
        graphs: its graphs, by file.
        tokenizer: a tokenizer.json, or a folder with one, for a text file.
        samples: windows of one text; of ids of several, the first so many rows, which are a window each.
        seed: for ``random:N`` without a seed of its own.
        warn: told that drawn ids say nothing.

    Raises:
        UsageError: no data, or data of another form; ids that are no token of the model.
        ModelError: a file is broken.
        SetupError: a text file without the package tokenizers.
    """
    if data is None:
        raise UsageError("no data to calibrate on", hint=f"{_FORMS}, or --ranges from an earlier run")
    vocabulary, wanted = _vocabulary(manifest, graphs), manifest.models[0].decoder.ids
    if isinstance(data, Mapping):
        return _rows(
            {str(name): np.asarray(array) for name, array in data.items()}, wanted, vocabulary, "data", samples
        )
    text = os.fspath(data) if isinstance(data, str | os.PathLike) else ""
    if is_text(text):
        return Texts((tuple(Tokenizer(tokenizer).encode(read_text(text))),), samples)
    if drawn := RANDOM.fullmatch(text):
        pass_on([RANDOM_WARNING], warn)
        count, length = int(drawn["count"]), max(each.tokens for each in schedules(manifest))
        ids = np.random.default_rng(int(drawn["seed"] or seed)).integers(0, vocabulary, (count, length))
        return _rows({_IDS: ids}, wanted, vocabulary, f"--data {text}", samples)
    if Path(text).suffix.lower() in (".npz", ".npy") and os.path.isfile(text):
        arrays = {name: np.asarray(array) for name, array in arrays_in(Path(text)).items()}
        return _rows(arrays, wanted, vocabulary, text, samples)
    raise UsageError(
        "a folder of graphs is calibrated on a text or on ids", where=f"--data {text}" if text else "data", hint=_FORMS
    )


def _vocabulary(manifest: Manifest, graphs: Mapping[str, ir.Model]) -> int:
    """How many tokens there are: the last axis of the logits."""
    model = manifest.models[0]
    outputs = [value for part in model.parts for value in graphs[part.file].graph.outputs]
    sizes = next(static_sizes(value) for value in outputs if value.name == model.decoder.logits)
    assert sizes  # a static graph
    return sizes[-1]


def _rows(arrays: Mapping[str, Array], wanted: str, vocabulary: int, where: str, samples: int | None) -> Texts:
    """The first ``samples`` rows of the ids among ``arrays``, each without what only fills it."""
    candidates = [each for each in arrays if each != _MASK]
    name = next((each for each in (wanted, _IDS) if each in arrays), next(iter(candidates), ""))
    if name not in (wanted, _IDS) and len(candidates) > 1:
        raise UsageError(f"no array is called {wanted}", where=where, hint=f"it has {', '.join(candidates)}")
    if not name or arrays[name].dtype.kind not in "iu" or arrays[name].ndim not in (1, 2) or not arrays[name].size:
        found = f"{name} is {arrays[name].dtype} {list(arrays[name].shape)}" if name else "it holds nothing"
        raise UsageError(f"no token ids: {found}", where=where, hint="give integers [samples, length]")
    ids = np.atleast_2d(arrays[name])
    if np.any((ids < 0) | (ids >= vocabulary)):
        row, column = np.argwhere((ids < 0) | (ids >= vocabulary))[0]
        raise UsageError(
            f"{name}[{row}, {column}] is {ids[row, column]}, and the model has {vocabulary} tokens", where=where,
            hint=f"ids are 0 to {vocabulary - 1}; rows are filled up with any of them, and an {_MASK} of 0 there",
        )  # fmt: skip
    counts = np.ones(ids.shape, bool)
    if _MASK in arrays:
        counts = np.atleast_2d(arrays[_MASK]) != 0
        if counts.shape != ids.shape:
            raise UsageError(f"{_MASK} is {list(counts.shape)}, {name} {list(ids.shape)}", where=where)
    rows = [_checked(row[kept], number, where) for number, (row, kept) in enumerate(zip(ids, counts, strict=True))]
    if len(rows) == 1:
        return Texts((rows[0],), samples)
    taken = tuple(rows if samples is None else rows[: max(samples, 0)])
    return Texts(taken, len(taken))


def _checked(row: Array, number: int, where: str) -> Sequence[int]:
    if len(row) < 2:
        raise UsageError(f"row {number} has {len(row)} tokens", where=where, hint="a text has 2 or more")
    return tuple(int(token) for token in row)
