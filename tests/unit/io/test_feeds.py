"""Every form of ``--data`` but images (test_images.py): what fits, what is cut, and what is refused with which words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, QdqError, UnsupportedError, UsageError

from qdqtool.io.feeds.feeds import Feeds, open_feeds
from qdqtool.io.feeds.spec import Dims, InputSpec, input_specs
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

Array = npt.NDArray[Any]


def spec(shape: Dims | None = ("N", 3), dtype: Any = np.float32, name: str = "x") -> InputSpec:
    return InputSpec(name, np.dtype(dtype), shape)


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def shapes(feeds: Feeds) -> list[tuple[int, ...]]:
    return [feed["x"].shape for feed in feeds]


def test_input_specs_leave_initializers_out() -> None:
    text = "g (float[N,3] x, int64[2] s, float[1] w, string t) => (float y) <float[1] w = {1}> { y = Mul(x, w) }"
    assert input_specs(model(text)) == [
        spec(),
        spec((2,), np.int64, "s"),
        spec((), np.object_, "t"),
    ]
    with refusal(ModelError):
        input_specs(ir.Model(ir.Graph([ir.val("x", ir.DataType.UNDEFINED)], [], nodes=[]), ir_version=10))


@pytest.mark.parametrize(
    ("wanted", "given", "pieces"),
    [
        (("N", 3), (5, 3), [(1, 3)] * 5),
        ((1, 3), (5, 3), [(1, 3)] * 5),
        ((2, 3), (6, 3), [(2, 3)] * 3),
        ((2, 3), (4, 2, 3), [(2, 3)] * 4),
        (("N", 3), (4, 7, 3), [(7, 3)] * 4),
        ((1, 3), (3,), [(1, 3)]),
        ((1, 2, 3), (2, 3), [(1, 2, 3)]),
        (("N", "T", 3), (4, 9, 3), [(1, 9, 3)] * 4),
        ((), (4,), [()] * 4),
        ((), (), [()]),
        (None, (4, 2), [(1, 2)] * 4),
    ],
)
def test_arrays_are_cut_along_the_sample_axis(wanted: Dims | None, given: tuple[int, ...], pieces: Any) -> None:
    feeds = open_feeds({"x": numbers(*given)}, [spec(wanted)])
    assert shapes(feeds) == pieces
    assert feeds.count == len(pieces)
    joined = np.concatenate([feed["x"].ravel() for feed in feeds])
    assert np.array_equal(joined, numbers(*given).ravel())


def test_an_incomplete_batch_is_dropped_with_a_warning() -> None:
    feeds = open_feeds({"x": numbers(7, 3)}, [spec((2, 3))])
    assert feeds.count == 3
    assert feeds.warnings == ["input 'x': the last 1 of 7 samples do not fill a batch of 2: dropped"]


@pytest.mark.parametrize(
    ("wanted", "given"),
    [((4, 3), (3, 3)), (("N", 3), (5, 4)), (("N", 3, 8), (5,)), (("N", 3), (0, 3)), ((0, 3), (4, 3))],
    ids=["batch", "shape", "no sample axis", "no sample", "size 0"],
)
def test_arrays_that_cannot_be_cut(wanted: Dims, given: tuple[int, ...]) -> None:
    with refusal(UsageError):
        open_feeds({"x": numbers(*given)}, [spec(wanted)])


def test_an_array_with_one_piece_is_the_same_in_all_feeds() -> None:
    inputs = [spec(), spec((1, 4), np.int64, "positions")]
    feeds = open_feeds({"x": numbers(3, 3), "positions": numbers(1, 4, dtype=np.int64)}, inputs)
    assert [feed["positions"].tolist() for feed in feeds] == [[[0, 1, 2, 3]]] * 3
    assert feeds.warnings == ["input 'positions' has one piece: the same in all 3 feeds"]
    with refusal(UsageError):
        open_feeds({"x": numbers(3, 3), "positions": numbers(2, 4, dtype=np.int64)}, inputs)


def test_npz_extra_and_missing_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=numbers(2, 3), labels=np.arange(2))
    feeds = open_feeds(tmp_path / "d.npz", [spec()])
    assert shapes(feeds) == [(1, 3)] * 2 == shapes(feeds)  # twice: re-iterable
    assert feeds.warnings == ["array 'labels' is no input of the model: not used"]
    with refusal(UsageError):
        open_feeds(tmp_path / "d.npz", [spec(), spec(name="mask")])


def test_one_array_for_one_input_is_taken_whatever_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", images=numbers(2, 3))
    np.save(tmp_path / "d.npy", numbers(2, 3))
    for name, array in (("d.npz", "images"), ("d.npy", "data")):
        feeds = open_feeds(str(tmp_path / name), [spec()])
        assert shapes(feeds) == [(1, 3)] * 2
        assert feeds.warnings == [f"array {array!r} is taken as the model's only input 'x'"]


def test_a_folder_of_npz_in_the_order_of_names(tmp_path: Path) -> None:
    for name, value in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((1, 3), value, np.float32))
    feeds = open_feeds(tmp_path, [spec()], samples=2)
    assert [feed["x"][0, 0] for feed in feeds] == [1.0, 2.0]
    assert feeds.count == 2
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 4), np.float32))
    with refusal(UsageError):
        list(feeds)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("text.txt", b"hello", UnsupportedError),
        ("data.csv", b"1,2", UnsupportedError),
        ("data.bin", b"1,2", UsageError),
    ],
    ids=["text", "csv", "unknown"],
)
def test_files_that_are_no_data(tmp_path: Path, name: str, content: bytes, kind: type[QdqError]) -> None:
    (tmp_path / name).write_bytes(content)
    with refusal(kind):
        open_feeds(tmp_path / name, [spec()])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("broken.npz", b"no zip"),
        ("pickle.npy", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117)
         + b"\n"),
    ],
    ids=["no zip", "pickle"],
)  # fmt: skip
def test_files_that_numpy_does_not_read(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot be read as \.npz") as caught:
        open_feeds(tmp_path / name, [spec()])
    assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    for text in (str(tmp_path / "none.npz"), "nothing"):
        with refusal(UsageError):
            open_feeds(text, [spec()])
    with refusal(UsageError):
        open_feeds(tmp_path, [spec()])
    with refusal(UsageError):
        open_feeds("random:3", [spec()], samples=0)


def test_random_feeds() -> None:
    inputs = [spec(), spec((2,), np.int64, "i"), spec(("a", 2), np.uint8, "u"), spec((1,), np.bool_, "b"),
              spec((2,), ml_dtypes.bfloat16, "h")]  # fmt: skip
    assert (
        "the data hold 1,000,000 samples: take the first with --samples N"
        in open_feeds("random:1000000", inputs).warnings
    )
    assert not any("--samples" in text for text in open_feeds("random:1000000", inputs, samples=3).warnings)
    with pytest.raises(UsageError, match="no such file or folder"):
        open_feeds(f"random:{'9' * 5000}", inputs)
    feeds = open_feeds("random:3:7", inputs)
    first, again, other = list(feeds), list(feeds), list(open_feeds("random:3", inputs, seed=8))
    assert len(first) == feeds.count == 3
    assert {k: (v.shape, v.dtype) for k, v in first[0].items()} == {
        "x": ((1, 3), np.float32), "i": ((2,), np.int64), "u": ((1, 2), np.uint8), "b": ((1,), np.bool_),
        "h": ((2,), ml_dtypes.bfloat16)}  # fmt: skip
    assert all(np.array_equal(a[n], b[n]) for a, b in zip(first, again, strict=True) for n in a)
    assert not np.array_equal(first[0]["x"], other[0]["x"])
    assert "say nothing about accuracy" in feeds.warnings[0]
    assert open_feeds("random:3", inputs, seed=7).sha256() == feeds.sha256() != open_feeds("random:3", inputs).sha256()


MODULE = """
import numpy as np

def two():
    for value in (1, 2):
        yield {"x": np.full((1, 3), value, np.float32)}

class Reader:
    def __init__(self):
        self.left = 2
    def get_next(self):
        self.left -= 1
        return {"x": np.full((1, 3), 2 - self.left, np.float32)} if self.left >= 0 else None

def reader():
    return Reader()

def arrays():
    return [np.ones((1, 3), np.float32)]

def broken():
    yield {"x": np.ones((1, 3), np.float32)}
    raise ValueError("disk is gone")

def wrong():
    return 3

def needs(more):
    return []

constant = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_feeds_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield "my_feeds_module"
    sys.modules.pop("my_feeds_module", None)
    assert sys.path == path


@pytest.mark.parametrize("name", ["two", "reader", "Reader"])
def test_python_functions_and_readers(module: str, name: str) -> None:
    for text in (f"{module}:{name}", f"{module}.py:{name}"):
        feeds = open_feeds(text, [spec()])
        assert [feed["x"][0, 0] for feed in feeds] == [1.0, 2.0] == [feed["x"][0, 0] for feed in feeds]
        assert feeds.count is None


def test_arrays_serve_a_model_with_one_input(module: str) -> None:
    assert shapes(open_feeds(f"{module}:arrays", [spec()])) == [(1, 3)]
    with refusal(UsageError):
        list(open_feeds(f"{module}:arrays", [spec(), spec(name="b")]))


@pytest.mark.parametrize("name", ["broken", "wrong", "needs", "constant", "nothing"])
def test_python_that_fails_is_named(module: str, name: str) -> None:
    with refusal(UsageError):
        list(open_feeds(f"{module}:{name}", [spec()]))


def test_a_missing_module_is_named() -> None:
    with refusal(UsageError):
        open_feeds("no_such_module_at_all:feeds", [spec()])


class RewindingReader:
    """As onnxruntime's CalibrationDataReader: iterable over itself, its length not implemented."""

    def __init__(self) -> None:
        self.at = 0

    def get_next(self) -> dict[str, Array] | None:
        self.at += 1
        return {"x": numbers(1, 3)} if self.at < 4 else None

    def rewind(self) -> None:
        self.at = 0

    def __iter__(self) -> RewindingReader:
        return self

    def __len__(self) -> int:
        raise NotImplementedError


def test_python_objects() -> None:
    reader = open_feeds(RewindingReader(), [spec()])
    assert len(list(reader)) == 3 == len(list(reader))
    rows = open_feeds([{"x": numbers(1, 3)}] * 2, [spec()])
    assert len(list(rows)) == 2 == rows.count
    assert open_feeds(rows, [spec()]) is rows
    assert len(list(open_feeds(rows, [spec()], samples=1))) == 1
    assert len(list(open_feeds(lambda: iter([{"x": numbers(1, 3)}]), [spec()]))) == 1
    once = open_feeds(({"x": numbers(1, 3)} for _ in range(2)), [spec()])
    assert len(list(once)) == 2
    with refusal(UsageError):
        list(once)


def test_samples_takes_the_first() -> None:
    feeds = open_feeds({"x": numbers(5, 3)}, [spec()], samples=2)
    assert feeds.count == 2
    assert [feed["x"][0, 0] for feed in feeds] == [0.0, 3.0]
    assert open_feeds({"x": numbers(5, 3)}, [spec()], samples=9).count == 5


def test_no_sample_and_missing_inputs() -> None:
    with refusal(UsageError):
        list(open_feeds([], [spec()]))
    with refusal(UsageError):
        list(open_feeds([{"y": numbers(1, 3)}], [spec()]))


@pytest.mark.parametrize(("bad", "index"), [(np.nan, 0), (np.inf, 2)])
def test_nan_and_inf_name_input_and_sample(bad: float, index: int) -> None:
    data = numbers(3, 3)
    data[index, 1] = bad
    with refusal(ModelError):
        list(open_feeds({"x": data}, [spec()]))


@pytest.mark.parametrize(
    ("have", "want", "warns"),
    [
        (np.float64, np.float32, ""),
        (np.float16, np.float32, ""),
        (np.float32, np.float16, "float32 data rounded to float16"),
        (np.float32, ml_dtypes.bfloat16, "float32 data rounded to bfloat16"),
        (np.int32, np.int64, ""),
        (np.int64, np.int32, ""),
        (np.uint8, np.float32, "uint8 data for a float32 input, taken as 0..255 without scaling"),
        (np.int64, np.float32, ""),
        (np.bool_, np.int64, ""),
        (">f4", np.float32, ""),
    ],
)
def test_casts_that_keep_the_values(have: Any, want: Any, warns: str) -> None:
    feeds = open_feeds({"x": np.array([[1, 0, 1]]).astype(have)}, [spec(dtype=want)])
    (feed,) = feeds
    assert feed["x"].dtype == want
    assert feed["x"].astype(np.float32).tolist() == [[1, 0, 1]]
    assert [w.removeprefix("input 'x': ") for w in feeds.warnings] == ([warns] if warns else [])


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(np.array([[1.0, 2, 3]]), np.int64, id="floats"),
        pytest.param(np.array([[1, 2, 300]]), np.uint8, id="too large"),
        pytest.param(np.array([[1, 2, -1]]), np.uint64, id="negative"),
        pytest.param(np.array([[1, 2, 2**63 - 1]]), np.float32, id="largest"),
        pytest.param(np.array([[1, 2, 2**60 + 1]]), np.float32, id="too many bits"),
        pytest.param(np.array([[1, 2, 1e300]]), np.float32, id="too large a float"),
        pytest.param(np.array([[1, 2, 3]]), np.bool_, id="no bools"),
        pytest.param(np.array([["a", "b", "c"]]), np.float32, id="texts"),
        pytest.param(np.array([[1 + 1j, 2, 3]]), np.float32, id="complex"),
    ],
)
def test_casts_that_would_lose_are_refused(data: Array, want: Any) -> None:
    with refusal(UsageError):
        list(open_feeds({"x": data}, [spec(dtype=want)]))


def test_text_inputs_take_strings() -> None:
    (feed,) = open_feeds({"x": np.array([["a", "bc", "d"]])}, [spec(dtype=np.object_)])
    assert feed["x"].dtype == np.object_
    assert feed["x"].tolist() == [["a", "bc", "d"]]
