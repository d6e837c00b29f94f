"""A file written in pieces has the bytes that protobuf makes of the whole model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from qdq_passes.errors import UnsupportedError

from qdqtool.io.models import pieces
from qdqtool.io.models import save as saving
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save

#: Elements of the weights: small ones between those that make their tensor's length longer by one and by two bytes.
SIZES = (pieces.LARGE // 4, 3, 1 << 16, 1 << 19, 1, 1 << 16)


def _model(path: Path, sizes: tuple[int, ...] = SIZES) -> bytes:
    """A file with a weight of each of ``sizes``, the small ones with a description; its bytes."""
    weights = [numpy_helper.from_array(np.arange(size, dtype=np.float32) % 7, f"w{k}") for k, size in enumerate(sizes)]
    for weight, size in zip(weights, sizes, strict=True):
        if size < 4:
            weight.doc_string = "behind the bytes"
    nodes = [helper.make_node("Identity", [f"w{k}"], [f"y{k}"], name=f"n{k}") for k in range(len(sizes))]
    outputs = [helper.make_tensor_value_info(f"y{k}", onnx.TensorProto.FLOAT, [size]) for k, size in enumerate(sizes)]
    graph = helper.make_graph(nodes, "g", [], outputs, weights, doc_string="d" * 100)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    data: bytes = model.SerializeToString(deterministic=True)
    path.write_bytes(data)
    return data


def test_pieces_are_what_protobuf_writes(tmp_path: Path) -> None:
    """Saved and hashed alike, and large weights are pieces of their own."""
    data = _model(tmp_path / "a.onnx")
    model = load(tmp_path / "a.onnx")
    assert saving.to_bytes(saving.serialize(model)) == data
    seen: list[pieces.Piece] = []
    save(model, tmp_path / "b.onnx", hasher=seen.append)
    assert (tmp_path / "b.onnx").read_bytes() == data == b"".join(seen)
    large = [4 * size for size in SIZES if 4 * size >= pieces.LARGE]
    assert [len(piece) for piece in seen if len(piece) >= pieces.LARGE] == large


def test_large_weights_are_not_copied(tmp_path: Path) -> None:
    """Their pieces are the memory of the arrays."""
    _model(tmp_path / "a.onnx", (1 << 18,))
    model = load(tmp_path / "a.onnx")
    tensor = model.graph.initializers["w0"].const_value
    assert tensor is not None
    (standing,) = pieces.stand_ins(model.graph.initializers.values()).values()
    assert len(standing.tobytes()) < 100
    seen: list[pieces.Piece] = []
    save(model, tmp_path / "b.onnx", hasher=seen.append)
    weight = next(piece for piece in seen if len(piece) == 1 << 20)
    assert np.shares_memory(np.frombuffer(weight, np.uint8), tensor.numpy())


def test_a_file_of_pieces_has_the_limit_of_protobuf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What protobuf could not read again is not written."""
    data = _model(tmp_path / "a.onnx")
    model = load(tmp_path / "a.onnx")
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", len(data) - 1)
    with pytest.raises(UnsupportedError, match="over 2 GiB"):
        save(model, tmp_path / "b.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx"]


def test_text_has_the_weights(tmp_path: Path) -> None:
    """Nothing stands for them where protobuf is not what is written."""
    data = _model(tmp_path / "a.onnx")
    save(load(tmp_path / "a.onnx"), tmp_path / "b.json")
    save(load(tmp_path / "b.json"), tmp_path / "c.onnx")
    assert (tmp_path / "c.onnx").read_bytes() == data
