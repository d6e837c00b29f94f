"""Whether a model refers to data files is found without a look at its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.io.models.load import data_files, load
from qdqtool.io.models.references import KEY, may_refer, spans
from qdqtool.io.models.save import save

WEIGHTS = 1 << 20


def model_of(array: np.ndarray, *nodes: onnx.NodeProto) -> onnx.ModelProto:
    """y = x + w, ``w`` an initializer of 1 MiB and more."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name in "xy"]
    nodes = (helper.make_node("Add", ["x", "w"], ["y"]), *nodes)
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(array, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A model with its weights inside, whose bytes happen to hold the key."""
    array = np.zeros(WEIGHTS, np.uint8)
    array[1000:][: len(KEY)] = np.frombuffer(KEY, np.uint8)
    path = tmp_path / "plain.onnx"
    onnx.save(model_of(array.view(np.float32)), path)
    return path


def test_weights_are_not_searched(plain: Path) -> None:
    data = plain.read_bytes()
    assert KEY in data
    assert sum(last - first for first, last in spans(data)) < 1000
    assert not may_refer(plain)
    assert data_files(str(plain)) == {}


def test_references_are_found(plain: Path, tmp_path: Path) -> None:
    model = load(plain)
    (_, written) = save(model, tmp_path / "out.onnx", external="always")
    assert may_refer(tmp_path / "out.onnx")
    assert list(data_files(str(tmp_path / "out.onnx"))) == [written]


def test_a_reference_in_an_attribute_is_found(tmp_path: Path) -> None:
    """Only what is stepped over is known to hold none."""
    tensor = numpy_helper.from_array(np.zeros(4, np.float32))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="c.data")
    model = model_of(np.zeros(WEIGHTS // 4, np.float32), helper.make_node("Constant", [], ["c"], value=tensor))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert may_refer(tmp_path / "m.onnx")


@pytest.mark.parametrize("cut", [0, 1, 10, 40, 1 << 19])
def test_all_of_a_damaged_file_is_searched(cut: int, plain: Path, tmp_path: Path) -> None:
    data = plain.read_bytes()[:cut] + KEY
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(data)
    assert may_refer(damaged)


@pytest.mark.parametrize("form", ["onnxtxt", "json", "textproto"])
def test_all_of_a_text_is_searched(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"m.{form}"
    save(ir.from_proto(model_of(np.zeros(4, np.float32))), path)
    data = path.read_bytes()
    assert spans(data) == [(0, len(data))]


def test_an_empty_file_refers_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    assert not may_refer(tmp_path / "empty.onnx")
