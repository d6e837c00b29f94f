"""Whatever a file holds: exit 2 or 3 with one clear line, no traceback, nothing written."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.errors import QdqError
from qdq_passes.verification.rules import verify

from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from tests.cases.io_helpers import GRAPH, HEADER, parsed, refused, write

Edit = Callable[[onnx.ModelProto], None]


# --- files that are no model ------------------------------------------------------------------------------------------

_TENSOR = numpy_helper.from_array(np.arange(4), "w")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("m.onnx", b"", "is empty"),
        ("m.onnx", bytes(random.Random(1).randrange(256) for _ in range(3000)), "not an ONNX model"),
        ("m.onnx", b"\0" * 1000, "not an ONNX model"),
        ("m.onnx", b"hello world, this is a readme", "not an ONNX model"),
        ("m.onnx", _TENSOR.SerializeToString(), "not an ONNX model"),
        ("m.onnx", parsed().graph.SerializeToString(), "not an ONNX model"),
        ("m.onnx", parsed().graph.node[0].SerializeToString(), "not an ONNX model"),
        # a TensorFlow SavedModel: field 1 a number, field 2 a message
        ("m.pb", b"\x08\x01\x12\x20" + b"\n\x05\x12\x03abc" + b"\x12\x15" + b"x" * 21, "not an ONNX model"),
        ("m.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("m.onnx", b"PK\x03\x04" + bytes(50), "zip archive"),
        ("m.onnx", b"<!DOCTYPE html><html></html>", "is text"),
        ("m.onnx", f"{HEADER} {GRAPH}".encode(), ".onnxtxt"),
        ("m.onnx", b"\x1f\x8b" + bytes(50), "gunzip"),
        ("m.onnx", b"\x10\0\0\0ORTM" + bytes(50), "ORT-format"),
        ("m.onnxtxt", b"<ir_version: 10> g (x) => (y) { y = }", "is not ONNX onnxtxt"),
        ("m.onnxtxt", b"\xff\xfe\0", "is not ONNX onnxtxt"),
        ("m.onnxtxt", b"<ir_version: 10> g " + b"(" * 100_000, "nests 100000 deep"),
        ("m.onnxtxt", b"y = If (x) <b = t () => (z) { " * 1000, "nests 1000 deep"),
        ("m.json", b'{"irVersion": ', "is not ONNX json"),
        ("m.json", b"[1, 2]", "is not ONNX json"),
        ("m.json", b'{"format": "something else"}', "is not ONNX json"),
        ("m.json", b"[" * 5000, "nests 5000 deep"),
        ("m.textproto", b"graph { node { op_type: ", "is not ONNX textproto"),
        ("m.textproto", b"graph { " * 1000, "nests 1000 deep"),
    ],
)
def test_not_a_model(tmp_path: Path, name: str, content: bytes, word: str) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, word)


def test_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(parsed().SerializeToString())
    refused(tmp_path / "modle.onnx", "no such file", "did you mean model.onnx?")
    refused(tmp_path, "is a folder", "it holds model.onnx")
    refused(tmp_path / "no" / "m.onnx", "there is no folder")
    os.mkfifo(tmp_path / "pipe.onnx")
    refused(tmp_path / "pipe.onnx", "no regular file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission(tmp_path: Path) -> None:
    write(tmp_path, parsed()).chmod(0)
    refused(tmp_path / "m.onnx", "permission denied")


def attempt(path: Path) -> QdqError | None:
    """Load, verify and save what lies at ``path``; what refused it, if anything did. Everything else is a crash."""
    try:
        model = load(path)
        verify(model)
        save(model, path.parent / "out" / "m.onnx")
    except QdqError as error:
        return error
    return None


#: A bit of everything: a body, a function, a Q and DQ.
WHOLE = f"""{HEADER} g (bool c, float[2] x) => (float[2] y) <float[2] w = {{1, 2}}, int8 z = {{0}}, float s = {{1}}> {{
    q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  a = f.F (d)
    y = If (c) <then_branch = t () => (float[2] u) {{ u = Add (a, w) }},
                else_branch = e () => (float[2] v) {{ v = Neg (a) }}> }}
    <domain: "f", opset_import: ["" : 21]> F (a) => (b) {{ b = Relu (a) }}"""


def test_cut_off_anywhere(tmp_path: Path) -> None:
    """A prefix of a file is refused, unless it ends between two fields of the model and is a model of its own."""
    whole = parsed(WHOLE).SerializeToString()
    path = tmp_path / "m.onnx"
    refusals = []
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        refusals.append(attempt(path))
    assert refusals.count(None) == 2  # after the first opset import, and after the second
    assert all(error is None or (error.exit_code == 2 and "\n" not in str(error)) for error in refusals)


# --- models that cannot be represented --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("g (float[2] x) => (float[2] y) { [p] a = Add (x, b)  [q] b = Neg (a)  y = Relu (a) }", ["cycle through 2", "'p'"]),
        ("g (float[2] x) => (float[2] y) { [p] y = Add (x, y) }", ["cycle through 1"]),
        (
            """g (bool c, float[2] x) => (float[2] y) { [i] a = If (c) <then_branch = t () => (float[2] u) { u = Neg (b) },
                else_branch = e () => (float[2] v) { v = Abs (x) }>  b = Neg (a)  y = Relu (a) }""",
            ["cycle", "'i'"],
        ),
        ("g (float[2] x) => (float[2] y) { y = Neg (x)  y = Relu (x) }", ["'y' is defined twice"]),
        ("g (float[2] x) => (float[2] y) { x = Neg (x)  y = Relu (x) }", ["'x' is defined twice"]),
        ("g (float[2] x, float[2] x) => (float[2] y) { y = Relu (x) }", ["input 'x' is defined twice"]),
        (
            "g (float[2] x) => (float[2] y) <float w = {1}, float w = {2}> { y = Add (x, w) }",
            ["initializer 'w' is defined twice"],
        ),
        ("g (float[2] x) => (float[2] y) <float w = {1}> { w = Neg (x)  y = Add (x, w) }", ["'w' is defined twice"]),
        (
            """g (bool c, float[2] x) => (float[2] y) { y = If (c) <
                then_branch = t () => (float[2] u) { u = Neg (x)  u = Abs (x) },
                else_branch = e () => (float[2] v) { v = Abs (x) }> }""",
            ["'u' is defined twice", "graph 't'"],
        ),
        ("g (float[2] x) => (float[2] y) { [n] y = Add (x, w) }", ["Add 'n'", "reads 'w', which nothing defines"]),
        (
            """g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] u) { u = Neg (ghost) },
                else_branch = e () => (float[2] v) { v = Abs (x) }> }""",
            ["reads 'ghost'"],
        ),
        (
            """g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] u) { u = Neg (v) },
                else_branch = e () => (float[2] v) { v = Abs (x) }> }""",
            ["reads 'v'"],
        ),
        ("g (float[2] x) => (float[2] z) { y = Neg (x) }", ["output 'z' is computed by no node"]),
        (
            """g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] x) { u = Neg (x) },
                else_branch = e () => (float[2] v) { v = Abs (x) }> }""",
            ["output 'x' is computed by no node", "graph 't'"],
        ),
        (
            'g (float[2] x) => (float[2] y) { y = f.F (x) } <domain: "f", opset_import: ["" : 21]> F (a) => (b) { b = f.F (a) }',
            ["call each other in a circle", "f::F"],
        ),
        (
            'g (float[2] x) => (float[2] y) { y = f.F (x) } <domain: "f", opset_import: ["" : 21]> F (a) => (b) { b = Neg (a) }'
            ' <domain: "f", opset_import: ["" : 21]> F (a) => (b) { b = Abs (a) }',
            ["f::F", "defined twice"],
        ),
        (
            'g (float[2] x) => (float[2] y) { y = f.F (x) } <domain: "f", opset_import: ["" : 21]> F (a) => (b) { c = Neg (a) }',
            ["output 'b' is computed by no node"],
        ),
        ("g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5, alpha = 0.25> (x) }", ["'alpha' is given twice"]),
        ("<ir_version: 10> g (float[2] x) => (float[2] y) { y = Relu (x) }", ["imports no operator set"]),
        (
            '<ir_version: 10, opset_import: ["" : 21, "ai.onnx" : 20]> g (float[2] x) => (float[2] y) { y = Relu (x) }',
            ["imports versions 21 and 20"],
        ),
        ('<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha: float = @a> (x) }',
         ["attribute 'alpha' is the parameter 'a' of a function, and stands in none"]),
        ('g (float[2] x) => (float[2] y) { y = f.F <k = [1, 2]> (x) } <domain: "f", opset_import: ["" : 21]>'
         " F <k> (a) => (b) { b = LeakyRelu <alpha: float = @k> (a) }", ["'k' is integers, where F takes a number"]),
        ('<ir_version: 10, opset_import: ["" : 0]> g (float[2] x) => (float[2] y) { y = Relu (x) }', ["imports version 0"]),
        ('<ir_version: 10, opset_import: ["" : 9000000000]> g () => (float y) { y = Relu (y) }', ["imports version 9000000000"]),
    ],
)  # fmt: skip
def test_broken_graphs(tmp_path: Path, text: str, words: list[str]) -> None:
    refused(write(tmp_path, parsed(text)), *words)


def _tensor(**changes: object) -> Edit:
    """Set fields of the first initializer; a list replaces a repeated field, None clears."""

    def edit(proto: onnx.ModelProto) -> None:
        tensor = proto.graph.initializer[0]
        for field, value in changes.items():
            tensor.ClearField(field)
            if isinstance(value, list):
                getattr(tensor, field).extend(value)
            elif value is not None:
                setattr(tensor, field, value)

    return edit


def _attribute(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute.add(name="broken")


def _nameless(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].name = ""


def _elem_type(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = 99


def _no_ir_version(proto: onnx.ModelProto) -> None:
    proto.ClearField("ir_version")


def _constant_without_type(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("Constant", [], ["k"]))
    proto.graph.node[1].attribute.add(name="value", type=onnx.AttributeProto.TENSOR)


@pytest.mark.parametrize(("edit", "word"), [
    (_tensor(data_type=99), "unknown data type 99"), (_tensor(data_type=0), "no data type"), (_tensor(name=""), "has no name"),
    (_tensor(dims=[-1]), "has the shape [-1]"), (_tensor(dims=[1] * 65), "has the shape [1, 1, 1, 1, 1, 1, 1, 1]"),
    (_tensor(dims=[0, 2**62]), "has the shape [0, 4611686018427387904]"), (_tensor(float_data=[]), "has 0 entries"),
    (_tensor(dims=[2**62, 4]), "has the shape [4611686018427387904, 4]"), (_attribute, "has no type"), (_elem_type, "99"),
    (_tensor(dims=[3]), "has 2 entries of data where float[3] needs 3"), (_nameless, "input has no name"),
    (_tensor(raw_data=b"12345678"), "raw data and float_data"), (_no_ir_version, "no IR version"),
    (_tensor(float_data=[], raw_data=b"1234567"), "has 7 bytes of data where float[2] needs 8"),
    (_tensor(float_data=[], int64_data=[1, 2]), "int64_data where its type needs float_data"),
    (_tensor(float_data=[], data_type=8, raw_data=b"ab"), "strings cannot be raw data"), (_constant_without_type, "no data type"),
])  # fmt: skip
def test_broken_parts(tmp_path: Path, edit: Edit, word: str) -> None:
    proto = parsed()
    edit(proto)
    refused(write(tmp_path, proto), word)


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(
        parsed(GRAPH.replace("[n]", "[nodename]")).SerializeToString().replace(b"nodename", b"\xff\xfe\xfdename")
    )
    refused(path, "not UTF-8")


def test_long_names_do_not_make_long_lines(tmp_path: Path) -> None:
    """CVE-2024-27319 read out of bounds when a message grew long."""
    refused(write(tmp_path, parsed(f"g (float[2] x) => (float[2] y) {{ [n] y = Add (x, {'w' * 5000}) }}")), "…")


def _sparse_initializer(proto: onnx.ModelProto) -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    del proto.graph.initializer[:]


def _sparse_value(proto: onnx.ModelProto) -> None:
    _sparse_initializer(proto)
    sparse = onnx.SparseTensorProto.FromString(proto.graph.sparse_initializer[0].SerializeToString())
    del proto.graph.sparse_initializer[:]
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))


def _map(proto: onnx.ModelProto) -> None:
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    proto.graph.output[0].type.CopyFrom(helper.make_map_type_proto(TensorProto.INT64, value))


def _training(proto: onnx.ModelProto) -> None:
    proto.training_info.add()


def _segment(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].segment.begin = 0


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (_sparse_initializer, "sparse"),
        (_sparse_value, "sparse"),
        (_map, "zipmap=False"),
        (_training, "training"),
        (_segment, "segments"),
    ],
)
def test_unsupported(tmp_path: Path, edit: Edit, word: str) -> None:
    proto = parsed()
    edit(proto)
    refused(write(tmp_path, proto), word, unsupported=True)
