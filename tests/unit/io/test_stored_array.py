"""Arrays that stay in their file: the same feeds as from memory, in little memory, and one clear line when the file is broken."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from qdq_passes.errors import ModelError

from qdqtool.io.feeds import stored_array
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import Dims, InputSpec
from qdqtool.io.feeds.stored_array import StoredArray, arrays_in
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]
Write = Callable[[Path, Array], Path]


def as_npz(folder: Path, array: Array) -> Path:
    np.savez(folder / "d.npz", x=array)
    return folder / "d.npz"


def compressed(folder: Path, array: Array) -> Path:
    np.savez_compressed(folder / "d.npz", x=array)
    return folder / "d.npz"


def as_npy(folder: Path, array: Array) -> Path:
    np.save(folder / "d.npy", array)
    return folder / "d.npy"


@pytest.fixture(autouse=True)
def nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_array, "HELD", 0)


def spec(shape: Dims | None, dtype: Any = np.float32) -> InputSpec:
    return InputSpec("x", np.dtype(dtype), shape)


@pytest.mark.parametrize("write", [as_npz, compressed, as_npy])
@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        (("N", 3), (5, 3)),
        ((2, 3), (7, 3)),
        ((2, 3), (4, 2, 3)),
        (("N", 3), (3,)),
        ((1, 2, 3), (2, 3)),
        ((), (4,)),
        (None, (4, 2)),
    ],
)
def test_feeds_are_those_of_the_array_in_memory(
    write: Write, wanted: Dims | None, given: tuple[int, ...], tmp_path: Path
) -> None:
    array = np.random.default_rng(0).normal(size=given).astype(np.float32)
    path = write(tmp_path, array)
    assert all(isinstance(a, StoredArray) for a in arrays_in(path).values())
    here, there = open_feeds(path, [spec(wanted)]), open_feeds({"x": array}, [spec(wanted)])
    assert here.count == there.count
    for _ in range(2):  # feeds can be read again
        for a, b in zip(here, there, strict=True):
            assert a["x"].dtype == b["x"].dtype
            assert np.array_equal(a["x"], b["x"])
    assert [w for w in here.warnings if "taken as" not in w] == there.warnings


def test_two_readings_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    feeds = open_feeds(as_npz(tmp_path, np.arange(12, dtype=np.float32).reshape(4, 3)), [spec((1, 3))])
    assert [(a["x"][0, 0], b["x"][0, 0]) for a, b in zip(feeds, feeds, strict=True)] == [(i, i) for i in (0, 3, 6, 9)]


@pytest.mark.parametrize("dtype", [">f4", "<f8", "u1", "?"])
def test_other_types_are_converted_as_in_memory(dtype: str, tmp_path: Path) -> None:
    array = np.array([[0, 1], [1, 0], [0, 1]]).astype(dtype)
    feeds = open_feeds(as_npz(tmp_path, array), [spec((1, 2))])
    assert [feed["x"].tolist() for feed in feeds] == [[[0.0, 1.0]], [[1.0, 0.0]], [[0.0, 1.0]]]


def test_what_does_not_lie_in_rows_is_read_at_once(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    for odd in (np.asfortranarray(array), np.float32(3), np.array(["a", "b"])):
        found = arrays_in(as_npz(tmp_path, np.asarray(odd)))["x"]
        assert np.array_equal(np.asarray(found), odd)
    assert isinstance(arrays_in(as_npz(tmp_path, np.asfortranarray(array)))["x"], np.ndarray)


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    samples, size = 200, 1 << 14
    feeds = open_feeds(as_npz(tmp_path, np.ones((samples, size), np.float32)), [spec((1, size))])
    tracemalloc.start()
    assert sum(float(feed["x"].sum()) for feed in feeds) == samples * size
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 4 * size  # bytes of ten samples of the 200


def test_a_file_that_breaks_off_names_itself(tmp_path: Path) -> None:
    path = as_npy(tmp_path, np.ones((4, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-5])
    with refusal(ModelError):
        list(open_feeds(path, [spec((1, 3))]))


@pytest.mark.parametrize("write", [as_npz, compressed])
def test_a_damaged_archive_names_itself(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path, np.random.default_rng(0).normal(size=(64, 30)).astype(np.float32))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"d\.npz: cannot be read as \.npz: "):
        list(open_feeds(path, [spec((1, 30))]))


def test_a_file_that_is_gone_when_it_is_read_names_itself(tmp_path: Path) -> None:
    feeds = open_feeds(as_npz(tmp_path, np.ones((4, 3), np.float32)), [spec((1, 3))])
    (tmp_path / "d.npz").unlink()
    with pytest.raises(ModelError, match=r"d\.npz: cannot be read as \.npz: .*No such file"):
        list(feeds)


def test_other_files_in_the_archive_do_no_harm(tmp_path: Path) -> None:
    path = as_npz(tmp_path, np.ones((4, 3), np.float32))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "four ones")
    feeds = open_feeds(path, [spec((1, 3))])
    assert len(list(feeds)) == 4
    assert feeds.warnings == ["array 'readme.txt' is no input of the model: not used"]
