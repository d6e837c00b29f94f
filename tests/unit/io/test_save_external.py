"""Saving external data: which file a tensor goes to, and what is never written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, UnsupportedError

from qdqtool.io.models.load import load
from qdqtool.io.models.save import model_bytes, save, serialize
from tests.cases.io_helpers import BIG, listing, weighted
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal


def values(m: ir.Model) -> dict[str, float]:
    """First element of each initializer."""
    found = {}
    for name, value in m.graph.initializers.items():
        assert value.const_value is not None
        found[name] = float(value.const_value.numpy().flat[0])
    return found


def put(m: ir.Model, name: str, number: float) -> None:
    m.graph.initializers[name].const_value = ir.tensor(np.full(1024, number, np.float32), name=name)


def test_small_models_stay_in_one_file(tmp_path: Path) -> None:
    assert save(weighted(a=1), tmp_path / "deep" / "er" / "m.onnx") == (str(tmp_path / "deep" / "er" / "m.onnx"),)
    assert listing(tmp_path / "deep" / "er") == ["m.onnx"]


def test_data_file_is_named_by_its_content(tmp_path: Path) -> None:
    written = save(weighted(a=1, b=2), tmp_path / "m.onnx", external="always")
    (data,) = [path for path in tmp_path.iterdir() if path.suffix == ".data"]
    assert data.name == f"m.{hashlib.sha256(data.read_bytes()).hexdigest()[:8]}.data"
    assert written == (str(tmp_path / "m.onnx"), str(data))
    assert data.stat().st_size == 2 * BIG
    assert values(load(tmp_path / "m.onnx")) == {"a": 1, "b": 2}
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)


def test_large_tensors_start_on_a_page_and_small_ones_stay_inside(tmp_path: Path) -> None:
    m = weighted(a=1, b=2, c=3)
    for name, count in (("a", 300), ("c", 2)):
        m.graph.initializers[name].const_value = ir.tensor(np.zeros(count, np.float32), name=name)
    save(m, tmp_path / "m.onnx", external="always")
    tensors = {t.name: t for t in onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer}
    offsets = {n: {e.key: e.value for e in t.external_data}.get("offset") for n, t in tensors.items()}
    assert offsets == {"a": "0", "b": "4096", "c": None}


def test_same_folder_references_the_same_file(tmp_path: Path) -> None:
    save(weighted(a=1, b=2), tmp_path / "m.onnx", external="always")
    before = listing(tmp_path)
    assert save(load(tmp_path / "m.onnx"), tmp_path / "n.onnx") == (str(tmp_path / "n.onnx"),)
    assert listing(tmp_path) == sorted([*before, "n.onnx"])
    assert values(load(tmp_path / "n.onnx")) == {"a": 1, "b": 2}


def test_another_folder_gets_a_copy(tmp_path: Path) -> None:
    save(weighted(a=1, b=2), tmp_path / "m.onnx", external="always")
    save(load(tmp_path / "m.onnx"), tmp_path / "out" / "m.onnx")
    assert listing(tmp_path / "out") == [name for name in listing(tmp_path) if name.startswith("m.")]
    (tmp_path / "m.onnx").unlink()
    assert values(load(tmp_path / "out" / "m.onnx")) == {"a": 1, "b": 2}


def test_a_changed_tensor_goes_into_a_new_file_the_others_stay(tmp_path: Path) -> None:
    (_, first) = save(weighted(a=1, b=2), tmp_path / "m.onnx", external="always")
    old = Path(first).read_bytes()
    m = load(tmp_path / "m.onnx")
    put(m, "b", 7)
    (_, second) = save(m, tmp_path / "m.onnx")
    assert second != first
    assert Path(first).read_bytes() == old
    assert Path(second).stat().st_size == BIG
    assert values(load(tmp_path / "m.onnx")) == {"a": 1, "b": 7}


def test_equal_data_is_written_once(tmp_path: Path) -> None:
    m = weighted(a=1, b=2)
    m.graph.initializers["b"].const_value = m.graph.initializers["a"].const_value
    (_, first) = save(m, tmp_path / "m.onnx", external="always")
    assert Path(first).stat().st_size == BIG
    save(load(tmp_path / "m.onnx"), tmp_path / "out" / "m.onnx")
    assert (tmp_path / "out" / Path(first).name).stat().st_size == BIG
    assert save(m, tmp_path / "m.onnx", external="always") == (str(tmp_path / "m.onnx"),)
    assert values(load(tmp_path / "m.onnx")) == {"a": 1, "b": 1}


def test_a_data_file_of_that_name_is_never_overwritten(tmp_path: Path) -> None:
    (_, first) = save(weighted(a=1), tmp_path / "m.onnx", external="always")
    Path(first).write_bytes(b"other")
    (_, second) = save(weighted(a=1), tmp_path / "m.onnx", external="always")
    assert Path(first).read_bytes() == b"other"
    assert len(Path(second).name) == len(Path(first).name) + 8
    assert values(load(tmp_path / "m.onnx")) == {"a": 1}


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """CVE-2025-51480 and its kin: a planted link under the name of the data file, or of the model, is not followed."""
    (_, first) = save(weighted(a=1), tmp_path / "m.onnx", external="always")
    victim = tmp_path / "victim"
    victim.write_bytes(Path(first).read_bytes())
    Path(first).unlink()
    Path(first).symlink_to(victim)
    (tmp_path / "m.onnx").unlink()
    (tmp_path / "m.onnx").symlink_to(victim)
    (model_path, second) = save(weighted(a=1), tmp_path / "m.onnx", external="always")
    assert second != first
    assert not Path(model_path).is_symlink()
    assert len(victim.read_bytes()) == BIG
    assert values(load(tmp_path / "m.onnx")) == {"a": 1}


def test_a_data_name_that_leaves_the_folder_cannot_be_made(tmp_path: Path) -> None:
    """A location in memory that points elsewhere is read through the same door as one in a file."""
    m = weighted(a=1)
    (tmp_path / "secret").write_bytes(bytes(BIG))
    (tmp_path / "in").mkdir()
    m.graph.initializers["a"].const_value = ir.ExternalTensor(
        "../secret", 0, BIG, ir.DataType.FLOAT, shape=ir.Shape([1024]), name="a", base_dir=tmp_path / "in"
    )
    with refusal(ModelError):
        save(m, tmp_path / "out" / "m.onnx")
    assert listing(tmp_path) == ["in", "secret"]


def test_never_and_back(tmp_path: Path) -> None:
    save(weighted(a=1), tmp_path / "m.onnx", external="always")
    save(load(tmp_path / "m.onnx"), tmp_path / "n.onnx", external="never")
    (tensor,) = onnx.load(tmp_path / "n.onnx", load_external_data=False).graph.initializer
    assert len(tensor.raw_data) == BIG
    assert tensor.data_location == onnx.TensorProto.DEFAULT


def test_four_bit_empty_and_string_tensors(tmp_path: Path) -> None:
    m = model(
        """g (float[3] x) => (float[3] y) <int4[3] q = {1, -2, 3}, float s = {1}, float[0] none = {}, string[1] t = {"text"}> {
            d = DequantizeLinear (q, s)  y = Add (x, d) }"""
    )
    save(m, tmp_path / "m.onnx", external="always", threshold=0)
    save(load(tmp_path / "m.onnx"), tmp_path / "out" / "m.onnx")
    tensors = {n: v.const_value for n, v in load(tmp_path / "out" / "m.onnx").graph.initializers.items()}
    assert [n for n, t in tensors.items() if isinstance(t, ir.ExternalTensor)] == ["q", "s", "none"]
    assert tensors["q"] is not None
    assert tensors["q"].numpy().astype(int).tolist() == [1, -2, 3]
    assert serialize(load(tmp_path / "out" / "m.onnx")).graph.initializer[3].string_data == [b"text"]


def test_constants_in_files_are_copied_too(tmp_path: Path) -> None:
    m = weighted(a=1)
    (_, data) = save(m, tmp_path / "m.onnx", external="always")
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["k"]))
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("value", proto.graph.initializer[0]))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    save(load(tmp_path / "m.onnx"), tmp_path / "out" / "m.onnx")
    Path(data).unlink()
    constant = load(tmp_path / "out" / "m.onnx").graph[0].attributes["value"].as_tensor()
    assert constant.numpy()[0] == 1


def test_over_the_limit_everything_large_moves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.io.models.save.INLINE_LIMIT", BIG)
    assert len(save(weighted(a=1), tmp_path / "small.onnx")) == 1
    assert len(save(weighted(a=1, b=2), tmp_path / "large.onnx")) == 2


def test_over_two_gigabytes_inside_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.io.models.save.PROTOBUF_LIMIT", BIG)
    with refusal(UnsupportedError):
        save(weighted(a=1, b=2), tmp_path / "m.onnx", external="never")
    assert listing(tmp_path) == []


def test_bytes_for_a_session_from_two_folders(tmp_path: Path) -> None:
    save(weighted(a=1), tmp_path / "one" / "m.onnx", external="always")
    save(weighted(b=2), tmp_path / "two" / "m.onnx", external="always")
    m = load(tmp_path / "one" / "m.onnx")
    assert model_bytes(m).folder == str(tmp_path / "one")
    first = m.graph.initializers["a"].const_value
    m.graph.initializers["a"].const_value = load(tmp_path / "two" / "m.onnx").graph.initializers["b"].const_value
    m.graph.register_initializer(ir.Value(name="c", const_value=first))
    made = model_bytes(m)
    assert made.folder == str(tmp_path)
    locations = [t.external_data[0].value.split("/")[0] for t in onnx.load_from_string(made.data).graph.initializer]
    assert locations == ["two", "one"]
