"""Saving: nothing is added, data files are never overwritten, what fails leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from qdq_passes.core import annotate
from qdq_passes.errors import ModelError, QdqError, UnsupportedError, UsageError
from qdq_passes.numerics.encoding import Encoding

from qdqtool.io.load import load, model_of
from qdqtool.io.provenance import PROVENANCE, Provenance
from qdqtool.io.save import save
from qdqtool.io.serialize import model_bytes, serialize
from tests.unit.small_models import model

#: Bytes of each weight below: over the threshold of external data, a whole page.
BIG = 4096


def weighted(**weights: int) -> ir.Model:
    """y0 + a + b…, for each name a weight of `BIG` bytes, full of the given number."""
    tensors = ", ".join(f"float[1024] {name} = {{{', '.join([str(value)] * 1024)}}}" for name, value in weights.items())
    nodes = " ".join(f"y{i + 1} = Add (y{i}, {name})" for i, name in enumerate(weights))
    return model(f"g (float[1024] y0) => (float[1024] y{len(weights)}) <{tensors}> {{ {nodes} }}")


def values(m: ir.Model) -> dict[str, float]:
    """First element of each initializer."""
    found = {}
    for name, value in m.graph.initializers.items():
        assert value.const_value is not None
        found[name] = float(value.const_value.numpy().flat[0])
    return found


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def put(m: ir.Model, name: str, number: float) -> None:
    m.graph.initializers[name].const_value = ir.tensor(np.full(1024, number, np.float32), name=name)


# --- nothing is added -------------------------------------------------------------------------------------------------


def rich_proto() -> onnx.ModelProto:
    """Something of everything that onnx_ir's own serializer adds to, doubles or reorders."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["com.acme" : 1, "" : 21, "f" : 1], metadata_props: ["z" : "1", "a" : "2"]>
        g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] declared = {3, 4}> {
          a = Add (x, w)  [named] b = f.F (a)  k = Constant <value = float[2] {5, 6}> ()
          d = If (c) <then_branch = t () => (float[2] u) <float[2] i = {1, 1}> { u = Add (b, i) },
                      else_branch = e () => (float[2] v) { v = Abs (b) }>
          e = Add (d, declared)  y = Add (e, k) }
        <domain: "f", opset_import: ["" : 21]> F (p) => (q) { q = Relu (p) }"""
    )
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("declared", 1, [2]))
    constant = next(n for n in proto.graph.node if n.op_type == "Constant").attribute[0].t
    for holder in (proto.graph, proto.graph.initializer[0], proto.graph.node[0], constant, proto.functions[0]):
        for key in ("z", "m", "a"):
            holder.metadata_props.add(key=key, value=key * 2)
    note = proto.graph.quantization_annotation.add(tensor_name="x")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    return proto


def test_plain_round_trip_adds_nothing(tmp_path: Path) -> None:
    source = rich_proto()
    (tmp_path / "a.onnx").write_bytes(source.SerializeToString())
    for before, after in (("a", "b"), ("b", "c"), ("c", "d")):
        save(load(tmp_path / f"{before}.onnx"), tmp_path / f"{after}.onnx")
    result = onnx.load(tmp_path / "d.onnx")
    assert (tmp_path / "b.onnx").read_bytes() == (tmp_path / "d.onnx").read_bytes()
    for empty in (source, result):
        for node in [*empty.graph.node, *empty.functions[0].node]:
            for field in ("domain", "overload"):
                if not getattr(node, field):
                    node.ClearField(field)
        for node in [n for a in empty.graph.node[3].attribute for n in a.g.node]:
            node.ClearField("domain")
            node.ClearField("overload")
    source.functions[0].ClearField("overload")
    assert result == source


def test_names_of_nameless_nodes_stay_out_of_the_file_until_they_are_given(tmp_path: Path) -> None:
    m = model("g (float[2] x) => (float[2] y) { a = Neg (x)  y = Relu (a) }")
    m.graph[1].name = "mine"
    save(m, tmp_path / "m.onnx")
    assert [node.name for node in onnx.load(tmp_path / "m.onnx").graph.node] == ["", "mine"]
    assert m.graph[0].name == "Neg_0"


def test_the_model_in_memory_stays_as_it_is(tmp_path: Path) -> None:
    m = weighted(a=1, b=2)
    tensors = [value.const_value for value in m.graph.initializers.values()]
    save(m, tmp_path / "m.onnx", external="always", provenance=Provenance(pipeline="sort"), annotations=True)
    assert all(v.const_value is t for v, t in zip(m.graph.initializers.values(), tensors, strict=True))
    assert not m.metadata_props
    assert not m.graph[0].metadata_props


def test_same_model_same_bytes_in_every_process(tmp_path: Path) -> None:
    save(model_of(rich_proto()), tmp_path / "source.onnx")
    program = """
import sys
from qdqtool.io.load import load
from qdqtool.io.save import save
save(load(sys.argv[1]), sys.argv[2], external="always", threshold=0)
"""
    files = []
    for seed in "12":
        out = tmp_path / seed / "m.onnx"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program, str(tmp_path / "source.onnx"), str(out)]
        subprocess.run(command, check=True, env=environment)
        files.append({path.name: path.read_bytes() for path in out.parent.iterdir()})
    assert files[0] == files[1]
    assert len(files[0]) == 2


@pytest.mark.parametrize("extension", [".onnxtxt", ".json", ".textproto"])
def test_text_formats(tmp_path: Path, extension: str) -> None:
    m = model("g (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1.5, 2}> { [n] a = Add (x, w)  y = Relu (a) }")
    save(m, tmp_path / f"m{extension}")
    again = load(tmp_path / f"m{extension}")
    assert (tmp_path / f"m{extension}").read_text()
    assert serialize(again).graph.initializer[0].float_data == [1.5, 2]
    assert [node.name for node in again.graph] == ["n", "Relu_1"]


def test_text_that_cannot_hold_the_model(tmp_path: Path) -> None:
    m = model("g (float[2] x) => (float[2] y) { [n] y = Relu (x) }")
    m.graph[0].op_type = "two words"
    with pytest.raises(UnsupportedError, match="onnxtxt cannot hold this model"):
        save(m, tmp_path / "m.onnxtxt")
    assert listing(tmp_path) == []


# --- external data ----------------------------------------------------------------------------------------------------


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
    with pytest.raises(ModelError, match="leaves the model's folder"):
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
    monkeypatch.setattr("qdqtool.io.save.INLINE_LIMIT", BIG)
    assert len(save(weighted(a=1), tmp_path / "small.onnx")) == 1
    assert len(save(weighted(a=1, b=2), tmp_path / "large.onnx")) == 2


def test_over_two_gigabytes_inside_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.io.serialize.PROTOBUF_LIMIT", BIG)
    with pytest.raises(UnsupportedError, match="over 2 GiB"):
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


# --- refusals and failures --------------------------------------------------------------------------------------------


def test_refusals_write_nothing(tmp_path: Path) -> None:
    m = weighted(a=1)
    (_, data) = save(m, tmp_path / "m.onnx", external="always")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    loaded = load(tmp_path / "m.onnx")
    for path, overwrite, words in (
        (tmp_path / "m.onnx", False, "m.onnx: exists; pass --overwrite"),
        (tmp_path, True, "is a folder"),
        (Path(data), True, "is the data file of the model"),
        (tmp_path / "m.onnx" / "below.onnx", True, "a file, not a folder"),
        (tmp_path / ("x" * 300), True, "cannot be written"),
    ):
        with pytest.raises(UsageError) as caught:
            save(loaded, path, overwrite=overwrite)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(UsageError, match="permission denied"):
        save(weighted(a=1), tmp_path / "m.onnx")


def test_data_that_is_gone(tmp_path: Path) -> None:
    (_, data) = save(weighted(a=1), tmp_path / "m.onnx", external="always")
    loaded = load(tmp_path / "m.onnx")
    Path(data).unlink()
    for target in (tmp_path / "n.onnx", tmp_path / "new" / "n.onnx"):
        with pytest.raises(ModelError, match="is missing"):
            save(loaded, target)
    assert listing(tmp_path) == ["m.onnx"]


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    m = weighted(a=1, b=2)
    m.graph.initializers["b"].const_value = _Broken(np.zeros(1024, np.float32), name="b")
    with pytest.raises(OSError, match="tape torn"):
        m.graph.initializers["b"].const_value.tobytes()
    with pytest.raises(QdqError, match="tape torn"):
        save(m, tmp_path / "sub" / "m.onnx", external="always")
    assert listing(tmp_path) == []
    monkeypatch.setattr("qdqtool.io.save.write_whole", _fail)
    with pytest.raises(UsageError, match="disk on fire"):
        save(weighted(a=1), tmp_path / "m.onnx", external="always")
    assert listing(tmp_path) == []


class _Broken(ir.Tensor):
    def tobytes(self) -> bytes:
        raise OSError(5, "tape torn")


def _fail(*_: object, **__: object) -> None:
    raise OSError(5, "disk on fire")


def test_text_that_is_no_text_is_refused(tmp_path: Path) -> None:
    m = weighted(a=1)
    m.graph[0].doc_string = "\ud800"
    with pytest.raises(ModelError, match="cannot be written"):
        save(m, tmp_path / "m.onnx")
    assert listing(tmp_path) == []


# --- what is written on request ---------------------------------------------------------------------------------------


def test_provenance_grows_by_one_entry(tmp_path: Path) -> None:
    entry = Provenance(pipeline="sort,give-names", inputs=(("ranges", "ab"), ("model", "cd")))
    save(weighted(a=1), tmp_path / "m.onnx", provenance=entry)
    save(load(tmp_path / "m.onnx"), tmp_path / "n.onnx", provenance=Provenance(pipeline="sort", tool="t 1"))
    text = load(tmp_path / "n.onnx").metadata_props[PROVENANCE]
    assert json.loads(text) == [
        {"inputs": {"model": "cd", "ranges": "ab"}, "pipeline": "sort,give-names"},
        {"inputs": {}, "pipeline": "sort", "tool": "t 1"},
    ]
    assert " " not in text.replace("t 1", "")


def test_annotations_only_on_request_or_when_they_were_there(tmp_path: Path) -> None:
    m = weighted(a=1)
    annotate.ENCODING.set(m.graph[0].outputs[0], Encoding.per_tensor(ir.DataType.INT8, 0.5))
    save(m, tmp_path / "without.onnx")
    save(m, tmp_path / "with.onnx", annotations=True)
    save(load(tmp_path / "with.onnx"), tmp_path / "again.onnx")
    save(load(tmp_path / "with.onnx"), tmp_path / "stripped.onnx", annotations=False)
    with_it, again = (tmp_path / "with.onnx").read_bytes(), (tmp_path / "again.onnx").read_bytes()
    assert b"qdqtool.encoding" in with_it
    assert again == with_it
    assert (tmp_path / "stripped.onnx").read_bytes() == (tmp_path / "without.onnx").read_bytes()
    assert b"qdqtool" not in (tmp_path / "without.onnx").read_bytes()
