"""A folder of static decoder graphs is calibrated on ids: given ones, drawn ones; each text by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import UsageError

from qdqtool import api
from qdqtool.io.models.load import load
from qdqtool.llm.folder.manifest import read_manifest, verify_folder
from qdqtool.llm.folder.tokenizing import Tokenizer
from qdqtool.llm.run.calibration import Texts, Windows
from qdqtool.verbs.work.token_ids import texts_of
from tests.cases.tiny_decoder import VOCABULARY
from tests.golden_messages.refusal import refusal
from tests.unit.llm.test_quantized_folder import ONE, TWO, quantized, source

#: Three texts of eight tokens.
IDS = np.arange(2, 26).reshape(3, 8)
NO_IDS: dict[str, dict[str, Any]] = {
    "other names": {"a": IDS, "b": IDS},
    "fractions": {"ids": IDS / 2},
    "three axes": {"ids": IDS[None]},
    "nothing": {"ids": IDS[:0]},
    "beyond the vocabulary": {"ids": IDS + VOCABULARY},
    "below 0": {"ids": IDS - 3},
    "mask of another shape": {"ids": IDS, "attention_mask": IDS[:1]},
    "mask that leaves nothing": {"ids": IDS, "attention_mask": IDS == 3},
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source(tmp_path_factory.mktemp("ids") / "float")


@pytest.mark.parametrize("arrays", NO_IDS.values(), ids=list(NO_IDS))
def test_what_is_no_ids(arrays: dict[str, Any], given: Path) -> None:
    with refusal(UsageError):
        texts_of(arrays, read_manifest(given), _loaded(given), "nowhere")


def test_ids_stand_for_a_text(tmp_path: Path) -> None:
    """A file of the ids of the text gives the same folder; names, masks and single arrays are read; no tokenizer is needed."""
    given, out, _ = quantized(tmp_path, shapes=ONE, samples=8)
    ids = np.array(Tokenizer(given).encode((tmp_path / "text.txt").read_text()))
    np.savez(tmp_path / "one.npz", input_ids=ids)
    api.quantize(given, tmp_path / "one", preset="a16w8", data=tmp_path / "one.npz", samples=8)
    for path in out.iterdir():
        assert (tmp_path / "one" / path.name).read_bytes() == path.read_bytes(), path.name
    rows = {"anything": np.stack([ids[k : k + 40] for k in range(0, 160, 40)])}
    found = texts_of(rows, read_manifest(given), _loaded(given), "nowhere")
    assert (len(found.ids), found.samples, list(found.ids[1])) == (4, 4, list(ids[40:80]))
    assert len(texts_of(rows, read_manifest(given), _loaded(given), "nowhere", samples=3).ids) == 3
    padded = {"input_ids": np.pad(ids[:10], (0, 5))[None], "attention_mask": np.arange(15)[None] < 10}
    assert texts_of(padded, read_manifest(given), _loaded(given), "nowhere").ids == (tuple(ids[:10]),)
    (given / "tokenizer.json").unlink()
    again = texts_of("random:3:5", read_manifest(given), _loaded(given), given)
    assert again == texts_of("random:3", read_manifest(given), _loaded(given), given, seed=5)
    assert {len(text) for text in again.ids} == {40}
    assert 0 <= min(map(min, again.ids)) <= max(map(max, again.ids)) < VOCABULARY


def test_drawn_ids_are_said_to_mean_nothing(tmp_path: Path) -> None:
    given = source(tmp_path / "float", shapes=TWO)
    told: list[str] = []
    api.quantize(given, tmp_path / "out", preset="a16w8", data="random:4", warn=told.append)
    assert any("random data" in text for text in told)
    assert verify_folder(tmp_path / "out") == []


def _loaded(folder: Path) -> dict[str, ir.Model]:
    return {part.file: load(folder / part.file) for each in read_manifest(folder).models for part in each.parts}


def test_windows_are_spread_over_texts(tmp_path: Path) -> None:
    """Every text has its windows, in all schedules together; none runs from one text into the next."""
    given = source(tmp_path / "float")
    texts = [[2 + row] * (20 + row) for row in range(6)]
    windows = Windows(given, Texts(tuple(texts), 6))
    assert windows.warning == "6 of 6 texts have 20 tokens or more, less than a window of 40: they are repeated"
    seen: list[set[int]] = []
    for task in windows.tasks:
        seen.append(set())
        windows.run(task, lambda each, part, inputs: seen[-1].update(np.ravel(inputs[each.decoder.ids]).tolist()))
    assert seen == [{2 + row} for row in range(6)]
