"""Files are hashed while they are written: nothing that a command wrote is read again for its SHA-256, no byte is hashed twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtool import quantize
from qdqtool.io.files.edit_script import read_script
from qdqtool.io.files.read import sha256_of_file
from qdqtool.io.models.data_file import DataFile
from qdqtool.io.models.working import opened
from qdqtool.llm.folder.manifest import read_manifest, verify_folder
from qdqtool.verbs.qdq.remove import Remove
from qdqtool.verbs.split import split
from tests.cases.quantized_files import QUARK, quantized_file

DECODER = Path(__file__).parents[2] / "data" / "decoders" / "llama_dynamo_anon" / "model.onnx"


@dataclass
class Counts:
    """Bytes that SHA-256 saw, and files that were opened to be read, as often as they were."""

    hashed: int = 0
    opened: list[str] = field(default_factory=list)


Counting = contextlib.AbstractContextManager[Counts]
_counting: list[Counts] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _counting or event != "open":
        return
    path, _, flags = arguments
    if isinstance(path, str) and isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR):
        _counting[-1].opened.append(path)


sys.addaudithook(_hook)  # one for the life of the process: Python takes none away


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Counts what happens in its body."""
    real = hashlib.sha256

    class Counted:
        def __init__(self, data: bytes = b"") -> None:
            self._real = real()
            self.update(data)

        def update(self, data: bytes) -> None:
            if _counting:
                _counting[-1].hashed += memoryview(data).nbytes
            self._real.update(data)

        def digest(self) -> bytes:
            return self._real.digest()

        def hexdigest(self) -> str:
            return self._real.hexdigest()

    @contextlib.contextmanager
    def counting() -> Iterator[Counts]:
        monkeypatch.setattr(hashlib, "sha256", Counted)
        _counting.append(Counts())
        try:
            yield _counting[-1]
        finally:
            _counting.pop()
            monkeypatch.setattr(hashlib, "sha256", real)

    return counting()


def read_again(folder: Path, found: Counts) -> list[str]:
    """The files that the manifest of ``folder`` lists and that were opened to be read."""
    return [name for name in read_manifest(folder).files if str(folder / name) in found.opened]


def sizes(folder: Path) -> int:
    """Bytes of all files that the manifest of ``folder`` lists."""
    return sum((folder / name).stat().st_size for name in read_manifest(folder).files)


def test_split_hashes_what_it_reads_and_what_it_writes_once(tmp_path: Path, counts: Counting) -> None:
    """The weights lie in a file, and go through memory once."""
    folder = tmp_path / "split"
    with counts as found:
        split(DECODER, folder, prefill=(4, 8), context=(16,))
    assert found.hashed == DECODER.stat().st_size + sizes(folder)
    assert read_again(folder, found) == []
    assert found.opened.count(str(DECODER)) == 1
    assert verify_folder(folder) == []


def test_split_of_weights_inside_of_the_model(tmp_path: Path, counts: Counting) -> None:
    """The same where weights lie in memory, and all graphs have them."""
    source, folder = onnx.load(DECODER), tmp_path / "split"
    onnx.save(source, tmp_path / "model.onnx")
    with counts as found:
        split(tmp_path / "model.onnx", folder, prefill=(4, 8), context=(16,))
    assert found.hashed == (tmp_path / "model.onnx").stat().st_size + sizes(folder)
    assert verify_folder(folder) == []


def test_quantize_of_a_folder(tmp_path: Path, counts: Counting) -> None:
    """What is read is verified by its hash; what is written is not read again, equal integers of all graphs are hashed once."""
    source, folder = tmp_path / "split", tmp_path / "quantized"
    split(DECODER, source, prefill=(4, 8), context=(16,))
    with counts as found:
        quantize(source, folder, preset="w4-g32")
    assert read_again(folder, found) == []
    assert found.hashed - sizes(source) - sizes(folder) < 30_000  # of the preset, of empty ranges
    assert verify_folder(folder) == []


def test_a_recorded_edit(tmp_path: Path, counts: Counting) -> None:
    source, output = quantized_file(QUARK), tmp_path / "out.onnx"
    with counts as found:
        Remove(str(source), str(output), everything=True, record=str(tmp_path / "edits.toml")).run()
    assert found.hashed == source.stat().st_size + output.stat().st_size
    assert str(output) not in found.opened
    assert read_script(tmp_path / "edits.toml").result_sha256 == sha256_of_file(output)


def test_a_model_is_read_once_to_be_loaded_and_hashed(counts: Counting) -> None:
    with counts as found:
        _, digest = opened(DECODER)
    assert found.opened.count(str(DECODER)) == 1
    assert digest == sha256_of_file(DECODER)


def test_equal_contents_are_compared_with_the_file(tmp_path: Path) -> None:
    """Tensors of one length, one hash of Python's and other bytes are kept apart; equal ones of any type are not."""
    data = DataFile(str(tmp_path), "weights")
    zeros, ones = (ir.tensor(np.full(3 << 20, value, np.int8)) for value in (0, 1))
    first = data.add_once(zeros)
    assert data.add_once(ir.tensor(np.zeros(3 << 20, np.uint8))) == first == (0, 3 << 20)
    data._contents[len(ones.tobytes()), hash(ones.tobytes())] = [0]  # as if both had one hash
    assert data.add_once(ones) == (3 << 20, 3 << 20)
    assert data.add_once(ones) == (3 << 20, 3 << 20)
    name = data.finish()
    assert (tmp_path / name).read_bytes() == zeros.tobytes() + ones.tobytes()
    assert data.sha256 == sha256_of_file(tmp_path / name)
