"""What data hold beside the inputs of a model, for metrics: labels and boxes go along with their samples."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from qdq_passes.errors import UsageError

from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import InputSpec
from qdqtool.io.files.toml_write import toml_text
from tests.golden_messages.refusal import refusal

X = InputSpec("x", np.dtype(np.float32), ("N", 2))
PAIRS = InputSpec("x", np.dtype(np.float32), (2, 2))
DATA = {"x": np.arange(8, dtype=np.float32).reshape(4, 2), "labels": np.arange(4), "anchors": np.ones(3)}


def test_extras_are_cut_with_the_samples() -> None:
    feeds = open_feeds(DATA, [X], extras=True)
    assert [feed["labels"].tolist() for feed in feeds] == [[0], [1], [2], [3]]
    assert [feed["labels"].tolist() for feed in open_feeds(DATA, [PAIRS], extras=True)] == [[0, 1], [2, 3]]
    assert all(feed["anchors"].shape == (3,) for feed in feeds), "as long as no input: the same in every feed"
    assert feeds.warnings == []


def test_extras_of_batches_that_are_cut_already() -> None:
    data = {"x": np.zeros((3, 2, 2), np.float32), "labels": np.arange(6).reshape(3, 2)}
    assert [feed["labels"].tolist() for feed in open_feeds(data, [PAIRS], extras=True)] == [[0, 1], [2, 3], [4, 5]]


def test_samples_that_fill_no_batch_take_their_extras_with_them() -> None:
    data = {"x": np.zeros((5, 2), np.float32), "labels": np.arange(5)}
    assert [feed["labels"].tolist() for feed in open_feeds(data, [PAIRS], extras=True)] == [[0, 1], [2, 3]]


def test_without_being_asked_for_they_are_left_out() -> None:
    feeds = open_feeds(DATA, [X])
    assert [set(feed) for feed in feeds] == [{"x"}] * 4
    assert any("labels" in text for text in feeds.warnings)


def test_folders_functions_and_single_samples(tmp_path: Path) -> None:
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", x=np.zeros((1, 2), np.float32), labels=np.array([number]))
    assert [int(feed["labels"][0]) for feed in open_feeds(tmp_path, [X], extras=True)] == [0, 1]
    listed = [{"x": np.zeros((1, 2), np.float32), "labels": 7}]
    assert [feed["labels"].tolist() for feed in open_feeds(listed, [X], extras=True)] == [7]
    one = {"x": np.zeros(2, np.float32), "labels": np.array([4, 5])}
    assert [feed["labels"].tolist() for feed in open_feeds(one, [X], extras=True)] == [[4, 5]]


def test_they_count_in_the_fingerprint() -> None:
    other = {**DATA, "labels": np.zeros(4, np.int64)}
    with_labels = [open_feeds(data, [X], extras=True).sha256() for data in (DATA, other)]
    assert with_labels[0] != with_labels[1]
    assert open_feeds(DATA, [X]).sha256() == open_feeds(other, [X]).sha256()


def test_toml_is_read_back() -> None:
    document = {
        "a": 'quote " backslash \\ newline \n',
        "b": [1, 2.5, True, {"k v": [-1]}],
        "long": [f"/model/layer.{i}/conv" for i in range(9)],
        "table": {"x.y": 1e-300, "empty": []},
        "none": {},
    }
    assert tomllib.loads(toml_text(document)) == {k: v for k, v in document.items() if k != "none"}


@pytest.mark.parametrize("value", [None, float("nan"), object()])
def test_toml_refuses_what_it_cannot_say(value: object) -> None:
    with refusal(UsageError):
        toml_text({"a": value})
