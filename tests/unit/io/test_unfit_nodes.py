"""Nodes that are not as their operators have them, and shapes that the graph contradicts: refused at `load`, or they give way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from qdq_passes.core.base import Change, Pass
from qdq_passes.errors import ModelError, QdqError, VerifyError
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.pipeline.pipeline import PassError, Pipeline

from qdqtool.io.models.load import load
from tests.cases.io_helpers import HEADER, parsed, refused, write
from tests.suites import contributed


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[n] y = Flatten <axis = 1.5> (x)", "its attribute 'axis' is a number, where Flatten takes an integer"),
        ("[n] y = ReduceMean <axes = 1> (x)", "its attribute 'axes' is an integer, where ReduceMean takes integers"),
        ("[n] y = com.microsoft.QuickGelu <alpha = 1> (x)", "its attribute 'alpha' is an integer"),
        ("[n] y = Cast (x)", "it has no attribute 'to'"),
        ("[n] y = Cast <to = 99> (x)", "its attribute 'to' is 99, which is no data type"),
        ("[n] y = MatMul (x)", "it has 1 input, where MatMul has 2"),
        ("[n] y, z = Relu (x)", "it has 2 outputs, where Relu has 1"),
        (
            "[n] y = MaxPool <kernel_shape = [2], strides = [0]> (x)",
            "its attribute 'strides' is [0], and must be positive",
        ),
        ("[n] y = GatherND <batch_dims = -1> (x, i)", "its attribute 'batch_dims' is -1"),
        ("[n] y = Transpose <perm = [0, 0]> (x)", "its perm is [0, 0]"),
        ("[n] y = Gemm (x, v)", "must be a matrix"),
        ("[n] y = BatchNormalization (x, v, v, v, u)", "its parameters have the shapes [[2], [2], [2], [3]], not one"),
        ("[n] y = Conv (x, k, u)", "its bias has the shape [3], where its weight has 2 channels"),
        ("[n] y = Conv <kernel_shape = [3]> (x, k)", "its kernel_shape is [3], where its weight has [1]"),
        ("[n] y = Conv <pads = [1]> (x, k)", "its attribute 'pads' is [1], for 1 axes"),
        ("[n] y = f.F (x, x)", "it has 2 inputs, where F has 0 to 1"),
    ],
)
def test_no_such_node(tmp_path: Path, text: str, word: str) -> None:
    weights = "float[2] v = {1, 2}, float[3] u = {1, 2, 3}, float[2,1,1] k = {1, 2}, int64[1] i = {0}"
    model = f"""{HEADER} g (float[2] x) => (float[2] y) <{weights}> {{ {text} }}
        <domain: "f", opset_import: ["" : 21]> F (a) => (b) {{ b = Relu (a) }}"""
    refused(write(tmp_path, parsed(model.replace('["" : 21', '["com.microsoft" : 1, "f" : 1, "" : 21', 1))), word)


@pytest.mark.parametrize(
    "text",
    [
        'g (float[2] x) => (float[2] y) { y = f.F (x) } <domain: "f", opset_import: ["" : 21]> F <dtype, group> (a) => (b) { b = Relu (a) }',
        "g (float[2] x) => (float[2] y) { y = f.F <dtype = -1, group = 0> (x) }"
        ' <domain: "f", opset_import: ["" : 21]> F <dtype, group> (a) => (b) { b = Relu (a) }',
        "g (float[2] x) => (float[2] y) { y = mine.Op <axis = 1.5, to = -1, strides = [0]> (x) }",
        'g (float[2] x) => (float[2] y) { y = Clip (x, "", "") }',
        "g (float[2] x) => (float[N] y) { y, i = Unique (x) }",
    ],
)
def test_what_may_be_so(tmp_path: Path, text: str) -> None:
    """Parameters of functions may be left out and mean what they like, as attributes of operators that nobody knows."""
    load(write(tmp_path, parsed(f'<ir_version: 10, opset_import: ["" : 21, "f" : 1, "mine" : 1]> {text}')))


def test_old_operators(tmp_path: Path) -> None:
    """Parameters of a batch norm of opset 7 may be those of a sample."""
    weights = ", ".join(f"float[1,2] {name} = {{1, 2}}" for name in "sbmv")
    text = (
        f"""g (float[1,2] x) => (float[1,2] y) <{weights}> {{ y = BatchNormalization <spatial = 0> (x, s, b, m, v) }}"""
    )
    load(write(tmp_path, parsed(f'<ir_version: 3, opset_import: ["" : 7]> {text}')))


@pytest.mark.newest
def test_signatures_of_onnxruntime_are_those_of_the_newest() -> None:
    assert contributed.FILE.read_text(encoding="utf-8") == contributed.text(), "python -m tests.suites.contributed"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("h = Pad (x, p)  [n] y = Slice (h, b, e)", "node Slice (n): reads a tensor"),
        ("y = Identity (x)  [i] z = If (c) <then_branch = t () => (u) { h = Pad (x, p)  [n] u = Slice (h, b, e) },"
         " else_branch = f () => (v) { v = Neg (x) }>", "node Slice (n): reads a tensor"),
        ("y = f.F (x, p, b, e)", "node Slice (n): reads a tensor"),
    ],
)  # fmt: skip
def test_a_size_below_zero(tmp_path: Path, text: str, word: str) -> None:
    """onnx and onnxruntime end the process on them."""
    weights = "int64[2] p = {-5, -4}, int64[1] b = {0}, int64[1] e = {5}, bool c = {1}"
    refused(
        write(
            tmp_path,
            parsed(f"""g (float[2] x) => (float[N] y) <{weights}> {{ {text} }}
        <domain: "f", opset_import: ["" : 21]> F (x, p, b, e) => (y) {{ h = Pad (x, p)  [n] y = Slice (h, b, e) }}"""),
        ),
        word,
    )


def test_what_gives_way(tmp_path: Path) -> None:
    """A declared size below zero, a shape that the graph contradicts, comments and metadata that are no UTF-8."""
    proto = parsed("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { h = Neg (x)  [n] y = Add (h, w) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [2, 3, 4]))
    proto.producer_name = "producername"
    proto.metadata_props.add(key="note", value="metavalue")
    data = proto.SerializeToString().replace(b"producername", b"\xffroducername").replace(b"metavalue", b"\xffetavalue")
    (tmp_path / "m.onnx").write_bytes(data)
    model = load(tmp_path / "m.onnx")
    assert model.graph.inputs[0].shape == ir.Shape([None])
    hidden = model.graph.node(0).outputs[0]
    assert hidden.shape is not None
    assert len(hidden.shape) == 1
    assert (model.producer_name, model.metadata_props["note"]) == ("\ufffdroducername", "\ufffdetavalue")


FINE = "g (float[2] x) => (float[2] y) { y = Neg (x) }"
#: What onnx finds: float and int64 are added. What the verifier finds: the nodes are out of order.
UNFIT = "g (float[2] x) => (float[2] y) <int64[2] w = {1, 2}> { y = Add (x, w) }"
UNSORTED = "g (float[2] x) => (float[2] y) { y = Neg (h)  h = Abs (x) }"


@dataclass(frozen=True)
class Failing(Pass):
    """Fail."""

    def run(self, model: ir.Model) -> Iterator[Change]:
        yield Change("never", str(1 // 0))


@dataclass(frozen=True)
class Doubling(Pass):
    """Give two nodes one name."""

    def run(self, model: ir.Model) -> Iterator[Change]:
        for node in model.graph:
            node.name = "twice"
        model.graph.append(ir.node("Neg", [model.graph.inputs[0]], name="twice"))
        yield Change("rename", "twice")


@pytest.mark.parametrize(
    ("pass_", "text", "kind"),
    [
        (Failing(), FINE, PassError),
        (Failing(), UNFIT, ModelError),
        (Doubling(), FINE, VerifyError),
        (Doubling(), UNFIT, ModelError),
        (Doubling(), UNSORTED, ModelError),
    ],
)
def test_whose_fault_it_is(tmp_path: Path, pass_: Pass, text: str, kind: type[QdqError]) -> None:
    """A pass that fails, or leaves an error, is to blame; not where the model had errors, or onnx finds that it does not fit."""
    model = load(write(tmp_path, parsed(text)))
    with pytest.raises(kind) as caught:
        Pipeline((pass_,)).run(model, hooks=[VerifyEach()])
    assert type(caught.value) is kind
