"""Saving: nothing is added, data files are never overwritten, what fails leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, QdqError, UnsupportedError, UsageError
from qdq_passes.graph import annotate
from qdq_passes.numerics.encoding import Encoding

from qdqtool.io.models.load import load, model_of
from qdqtool.io.models.provenance import PROVENANCE, Provenance
from qdqtool.io.models.save import save, serialize
from tests.cases.io_helpers import listing, weighted
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

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
from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
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
    with refusal(UnsupportedError):
        save(m, tmp_path / "m.onnxtxt")
    assert listing(tmp_path) == []


# --- refusals and failures --------------------------------------------------------------------------------------------


def test_refusals_write_nothing(tmp_path: Path) -> None:
    m = weighted(a=1)
    (_, data) = save(m, tmp_path / "m.onnx", external="always")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    loaded = load(tmp_path / "m.onnx")
    for path, overwrite in (
        (tmp_path / "m.onnx", False),
        (tmp_path, True),
        (Path(data), True),
        (tmp_path / "m.onnx" / "below.onnx", True),
        (tmp_path / ("x" * 300), True),
    ):
        with refusal(UsageError):
            save(loaded, path, overwrite=overwrite)
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
        with refusal(ModelError):
            save(loaded, target)
    assert listing(tmp_path) == ["m.onnx"]


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    m = weighted(a=1, b=2)
    m.graph.initializers["b"].const_value = _Broken(np.zeros(1024, np.float32), name="b")
    with pytest.raises(OSError, match="tape torn"):
        m.graph.initializers["b"].const_value.tobytes()
    with refusal(QdqError):
        save(m, tmp_path / "sub" / "m.onnx", external="always")
    assert listing(tmp_path) == []
    monkeypatch.setattr("qdqtool.io.models.save.whole_file", _fail)
    with refusal(UsageError):
        save(weighted(a=1), tmp_path / "m.onnx", external="always")
    assert listing(tmp_path) == []


class _Broken(ir.Tensor[npt.NDArray[np.float32]]):
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


def test_what_has_an_entry_is_ours_and_says_whose_it_was(tmp_path: Path) -> None:
    """The producer is kept by a plain save, and named in the first entry by one that notes what was done."""
    model = weighted(a=1)
    model.producer_name, model.producer_version = "pytorch", "2.9.0"
    save(model, tmp_path / "plain.onnx")
    save(model, tmp_path / "once.onnx", provenance=Provenance(pipeline="sort"))
    save(load(tmp_path / "once.onnx"), tmp_path / "twice.onnx", provenance=Provenance(pipeline="give-names"))
    named = {path.stem: load(path) for path in tmp_path.glob("*.onnx")}
    producers = {name: (each.producer_name, each.producer_version) for name, each in named.items()}
    assert producers["plain"] == (model.producer_name, model.producer_version) == ("pytorch", "2.9.0")
    assert producers["once"] == producers["twice"] == ("qdqtool", version("qdqtool"))
    assert json.loads(named["twice"].metadata_props[PROVENANCE]) == [
        {"inputs": {}, "pipeline": "sort", "producer": "pytorch 2.9.0"},
        {"inputs": {}, "pipeline": "give-names"},
    ]


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
