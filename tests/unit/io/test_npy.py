"""Headers of a stranger's arrays: read by a grammar, checked before memory is taken, by every reader of samples and dumps."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy
from qdq_passes.errors import ModelError

from qdqtool.io.feeds.array_store import ArrayFile
from qdqtool.io.feeds.stored_array import arrays_in
from qdqtool.io.files.dumps import dumps_in
from qdqtool.io.files.npy import read_array, read_header

GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"


def stored(header: str, version: bytes = b"\1\0", data: bytes = b"") -> bytes:
    text = header.encode("latin-1")
    return npy.MAGIC_PREFIX + version + len(text).to_bytes(2 if version == b"\1\0" else 4, "little") + text + data


@pytest.mark.parametrize("version", [b"\1\0", b"\2\0", b"\3\0"])
@pytest.mark.parametrize(
    "header", [GOOD, "{'shape': (3L, 4L), 'fortran_order': False, 'descr': '<f4'}\n", GOOD.replace("'", '"')]
)
def test_headers_as_others_write_them(header: str, version: bytes) -> None:
    found = read_header(io.BytesIO(stored(header, version)))
    assert (found.shape, found.by_columns, found.dtype, found.size) == ((3, 4), False, np.float32, 48)


@pytest.mark.parametrize("array", [np.float32(2), np.zeros((0, 3), np.int8), np.arange(3.0), np.array(["ab", "c"]),
                                   np.asfortranarray(np.arange(6).reshape(2, 3)), np.array([True, False])])  # fmt: skip
def test_arrays_are_those_of_numpy(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    with open(tmp_path / "a.npy", "rb") as file:
        found = read_array(tmp_path / "a.npy", file)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


WRONG = {
    "deep": GOOD.replace("(3, 4)", "(" + "-" * 9000 + "3,)"), "nested": GOOD.replace("(3, 4)", "(" * 5000 + ")" * 5000),
    "negative": GOOD.replace("(3", "(-3"), "float": GOOD.replace("(3", "(3.5"), "digits": GOOD.replace("3", "9" * 5000),
    "object": GOOD.replace("<f4", "|O"), "fields": GOOD.replace("'<f4'", "[('a', '<f4')]"), "call": GOOD.replace("False", "f()"),
    "missing": "{'descr': '<f4', 'shape': (3, 4)}", "twice": GOOD.replace("'descr'", "'shape': (3, 4), 'descr'", 1)[:-1] + "0}",
    "long": GOOD + " " * 20_000, "empty": "", "nothing": GOOD.replace("<f4", "|S0"), "rows": GOOD.replace("3, 4", "99999999, 0"),
    "type": GOOD.replace("<f4", "<f999"), "huge": GOOD.replace("3, 4", "999999999999999999, 999999999999999999"),
    "large": GOOD.replace("3, 4", "4000000000,"), "short": GOOD,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WRONG))
def test_every_reader_refuses_a_wrong_header(name: str, tmp_path: Path) -> None:
    data = stored(WRONG[name], b"\2\0")
    dumps = tmp_path / "0"
    dumps.mkdir()
    (dumps / "x.npy").write_bytes(data)
    for file in (tmp_path / "a.npz", dumps / "a.npz"):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("about.npy", data)
    readers = (
        lambda: [np.asarray(array) for array in arrays_in(tmp_path / "a.npz").values()],
        lambda: [np.asarray(array) for array in arrays_in(dumps / "x.npy").values()],
        lambda: [dump.read() for dump in dumps_in(tmp_path)[0] if dump.key],
        lambda: [dump.read() for dump in dumps_in(tmp_path)[0] if not dump.key],
        lambda: ArrayFile(tmp_path / "a.npz", kind="statistics", max_version=1),
    )
    for read in readers:
        with pytest.raises(ModelError):
            read()


def test_many_small_members_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_MAX_BYTES", "100000")
    np.savez_compressed(tmp_path / "a.npz", **{f"x{at}": np.zeros(9000, np.float32) for at in range(3)})
    with pytest.raises(ModelError, match="more than the"):
        arrays_in(tmp_path / "a.npz")
    assert len(arrays_in_two(tmp_path)) == 2


def arrays_in_two(folder: Path) -> dict[str, object]:
    np.savez_compressed(folder / "b.npz", **{f"x{at}": np.zeros(9000, np.float32) for at in range(2)})
    return dict(arrays_in(folder / "b.npz"))
