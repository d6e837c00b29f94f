"""Several models, one data file: what is equal is stored once; all of it appears or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.decoder.look.record import DECODER, Decoder
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.graph.edit import copy_model

import qdqtool
from qdqtool.io.models.load import model_of
from qdqtool.io.models.shared_weights import save_shared
from tests.cases.io_helpers import listing
from tests.golden_messages.refusal import refusal

LARGE = 4096 * 3


def source(folder: Path, name: str = "source.onnx") -> ir.Model:
    """y = x + w + b, both in a data file, b smaller than the threshold; c lies inside."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "w": np.arange(LARGE, dtype=np.float32),
        "b": np.full(4, 2, np.float32),
        "c": np.full(2000, 3, np.float32),
    }
    nodes = [
        helper.make_node("Add", ["x", "w"], ["t"], name="add"),
        helper.make_node("ReduceMax", ["b"], ["m"], name="most"),
        helper.make_node("ReduceMax", ["c"], ["n"], name="more"),
        helper.make_node("Add", ["t", "m"], ["u"], name="add_b"),
        helper.make_node("Add", ["u", "n"], ["y"], name="add_c"),
    ]
    tensors = []
    data = b""
    for key, array in arrays.items():
        if key == "c":
            tensors.append(numpy_helper.from_array(array, key))
            continue
        tensor = TensorProto(
            name=key, data_type=TensorProto.FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL
        )
        for entry, value in (("location", "source.data"), ("offset", len(data)), ("length", array.nbytes)):
            tensor.external_data.add(key=entry, value=str(value))
        tensors.append(tensor)
        data += array.tobytes()
    (folder / "source.data").write_bytes(data)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [LARGE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / name)
    return qdqtool.load(folder / name)


def extents(path: Path) -> dict[str, tuple[str, int, int]]:
    """Initializer → (file, offset, length) where it lies outside."""
    found = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            found[tensor.name] = (entries["location"], int(entries["offset"]), int(entries["length"]))
    return found


def total(path: Path) -> float:
    """What the model in ``path`` computes of zeros, summed."""
    model = qdqtool.load(path)
    arrays = {
        name: value.const_value.numpy()
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }
    return float(arrays["w"].sum() + LARGE * (arrays["b"].max() + arrays["c"].max()))


def test_weights_are_stored_once(tmp_path: Path) -> None:
    first = source(tmp_path / "in")
    second = copy_model(first)
    second.graph.initializers["c"].const_value = ir.tensor(
        np.full(2000, 3, np.float32), name="c"
    )  # equal, another object
    DECODER.set(
        second.graph, Decoder(layout="slide", phase="decode", batch_size=1, seq_len=1, ctx_len=4, ids="x", logits="y")
    )
    written = list(save_shared({"a.onnx": first, "b.onnx": second}, tmp_path / "out"))
    data = Path(written[0]).name
    assert [Path(path).name for path in written[1:]] == ["a.onnx", "b.onnx"]
    assert data.startswith("weights.")
    assert listing(tmp_path / "out") == sorted(["a.onnx", "b.onnx", data])
    found = extents(tmp_path / "out" / "a.onnx")
    assert found == extents(tmp_path / "out" / "b.onnx") == {"w": (data, 0, 4 * LARGE), "c": (data, 4 * LARGE, 8000)}
    assert all(offset % 4096 == 0 for _, offset, _ in found.values())
    assert (tmp_path / "out" / data).stat().st_size == 4 * LARGE + 8000
    assert (
        total(tmp_path / "out" / "a.onnx")
        == total(tmp_path / "out" / "b.onnx")
        == total(tmp_path / "in" / "source.onnx")
    )
    assert DECODER.get(qdqtool.load(tmp_path / "out" / "b.onnx").graph) == DECODER.get(second.graph)
    assert isinstance(first.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert first.graph.initializers["w"].const_value.location == "source.data"  # the models in memory stay as they are


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    written = save_shared({"a.onnx": source(tmp_path / "in")}, tmp_path / "out")
    before = {path: Path(path).read_bytes() for path in written}
    assert save_shared({"a.onnx": source(tmp_path / "in")}, tmp_path / "out") == written
    assert {path: Path(path).read_bytes() for path in written} == before
    assert len(listing(tmp_path / "out")) == 2


def test_no_data_file_without_large_weights(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = model_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    assert save_shared({"a.onnx": model}, tmp_path / "out").keys() == {str(tmp_path / "out" / "a.onnx")}
    assert listing(tmp_path / "out") == ["a.onnx"]


def test_what_fails_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second model cannot be written: neither is there, nor the data; an older folder stays whole."""
    first, broken = source(tmp_path / "in"), source(tmp_path / "other")
    broken.graph.doc_string = "\ud800"  # no text of any encoding
    with pytest.raises(ModelError, match="cannot be written"):
        save_shared({"a.onnx": first, "b.onnx": broken}, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    save_shared({"a.onnx": first}, tmp_path / "old")
    before = {name: (tmp_path / "old" / name).read_bytes() for name in listing(tmp_path / "old")}
    (tmp_path / "other" / "source.data").unlink()
    with refusal(ModelError):
        save_shared({"a.onnx": source(tmp_path / "in"), "b.onnx": broken}, tmp_path / "old")
    assert {name: (tmp_path / "old" / name).read_bytes() for name in listing(tmp_path / "old")} == before
    changed = copy_model(first)
    changed.graph.initializers["c"].const_value = ir.tensor(np.zeros(2000, np.float32), name="c")
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(Exception, match="no room left"):
        save_shared({"a.onnx": changed}, tmp_path / "old")
    monkeypatch.undo()
    assert {name: (tmp_path / "old" / name).read_bytes() for name in listing(tmp_path / "old")} == before


def _full(handle: int) -> None:
    raise OSError(28, "No space left on device")


def test_existing_files(tmp_path: Path) -> None:
    model = source(tmp_path / "in")
    save_shared({"a.onnx": model}, tmp_path / "out")
    with refusal(UsageError):
        save_shared({"a.onnx": model}, tmp_path / "out", overwrite=False)
    with refusal(UsageError):
        save_shared({"source.data": model}, tmp_path / "in")
