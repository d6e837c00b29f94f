"""Nodes that are not as their operators have them, and shapes that the graph contradicts: refused at `load`, or they give way."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError
from qdq_passes.graph.shapes.inference import infer_shapes

from qdqtool.io.models.load import load
from qdqtool.verbs.check import check
from tests.cases.io_helpers import parsed
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal
from tests.suites import contributed

HEADER = '<ir_version: 10, opset_import: ["" : 21, "f" : 1, "mine" : 1, "com.microsoft" : 1]>'
WEIGHTS = """float[2] v = {1, 2}, float[3] u = {1, 2, 3}, float[2,1,1] k = {1, 2}, int64[1] i = {0}, bool c = {1},
    int64[2] p = {-5, -4}, int64[1] b = {0}, int64[1] e = {5}"""
#: A size below zero: onnx and onnxruntime end the process on it.
NEGATIVE = "h = Pad (x, p)  [n] y = Slice (h, b, e)"
FUNCTIONS = f"""<domain: "f", opset_import: ["" : 21]> F <dtype, group> (a) => (b) {{ b = Relu (a) }}
    <domain: "f", opset_import: ["" : 21]> G (x, p, b, e) => (y) {{ {NEGATIVE} }}"""


@pytest.mark.parametrize("text", [
    "[n] y = ReduceMean <axes = 1> (x)", "[n] y = com.microsoft.QuickGelu <alpha = 1> (x)", "[n] y = Cast (x)", '[n] y = Max (x, "", x)',
    "[n] y = RandomNormalLike <scale = 0.0> (x)", "[n] y = RandomUniformLike <low = 2.0> (x)", "[n] y = Cast <to = 99> (x)", "[n] y = MatMul (x)", "[n] y, z = Relu (x)", "[n] y = GatherND <batch_dims = -1> (x, i)",
    "[n] y = MaxPool <kernel_shape = [2], strides = [0]> (x)", "[n] y = Transpose <perm = [0, 0]> (x)", "[n] y = Gemm (x, v)",
    "[n] y = BatchNormalization (x, v, v, v, u)", "[n] y = Conv (x, k, u)", "[n] y = Conv <kernel_shape = [3]> (x, k)",
    "[n] y = Conv <pads = [1]> (x, k)", "[n] y = SimplifiedLayerNormalization <axis = 1.5> (x, v)", "[n] y = f.F (x, x)",
    "[n] y, z, w = Split <num_outputs = 2> (x)", NEGATIVE, "y = f.G (x, p, b, e)",
    f"y = If (c) <then_branch = t () => (y) {{ {NEGATIVE} }}, else_branch = f () => (v) {{ v = Neg (x) }}>",
])  # fmt: skip
def test_no_such_node(text: str) -> None:
    with refusal(ModelError):
        model(f"{HEADER} g (float[2] x) => (float[N] y) <{WEIGHTS}> {{ {text} }} {FUNCTIONS}")


@pytest.mark.parametrize("text", [
    "y = f.F (x)", "y = f.F <dtype = -1, group = 0> (x)", "y = mine.Op <axis = 1.5, to = -1, strides = [0]> (x)",
    'y = Clip (x, "", "")', "y, i2 = Unique (x)",
])  # fmt: skip
def test_what_may_be_so(text: str) -> None:
    """Parameters of functions may be left out and mean what they like, as attributes of operators that nobody knows."""
    model(f"{HEADER} g (float[2] x) => (float[N] y) {{ {text} }} {FUNCTIONS}")


@pytest.mark.parametrize("text", [
    "h = mine.Op (x)  [n] y = Split <num_outputs = 1> (h)", "h = mine.Op (x)  [n] y = Slice (h, i, h)",
    "h = com.microsoft.QLinearConcat <axis = 0> (r, t, x, r, t)  [n] y = Split <num_outputs = 1> (h)",
])  # fmt: skip
def test_behind_an_operator_that_onnx_does_not_know_nothing_is_found(text: str, tmp_path: Path) -> None:
    """Nor does a function behind a guard end the inference of the model."""
    said = f"{HEADER} g (uint8[2] x, float r, uint8 t, int64[1] i) => (uint8[N] y, float z) {{ {text}  s = Abs (r)  z = Neg (s) }}"
    given = model(said)
    infer_shapes(given)
    assert given.graph.node(-1).inputs[0].shape == ir.Shape([])
    (tmp_path / "m.onnx").write_bytes(parsed(said).SerializeToString())
    assert "onnx-checker" not in {found["rule"] for found in check(tmp_path / "m.onnx", runtime=False).findings}


def test_old_operators() -> None:
    """Parameters of a batch norm of opset 7 may be those of a sample."""
    weights = ", ".join(f"float[1,2] {name} = {{1, 2}}" for name in "sbmv")
    body = "y = BatchNormalization <spatial = 0> (x, s, b, m, v)"
    model(f'<ir_version: 3, opset_import: ["" : 7]> g (float[1,2] x) => (float[1,2] y) <{weights}> {{ {body} }}')


@pytest.mark.newest
def test_signatures_of_onnxruntime_are_those_of_the_newest() -> None:
    assert contributed.FILE.read_text(encoding="utf-8") == contributed.text(), "python -m tests.suites.contributed"


def test_what_gives_way(tmp_path: Path) -> None:
    """A declared size below zero, a shape that the graph contradicts, comments and metadata that are no UTF-8."""
    head = HEADER.replace(">", ', producer_name: "?1", metadata_props: ["note": "?2"]>')
    proto = parsed(f"{head} g (float[2] x) => (float[2] y) <float[2,3,4] h> {{ h = Neg (x)  y = Abs (h) }}")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString().replace(b"?", b"\xff"))
    given = load(tmp_path / "m.onnx")
    assert (given.producer_name, given.metadata_props) == ("\ufffd1", {"note": "\ufffd2"})
    declared, hidden = (str(value.shape) for value in (given.graph.inputs[0], given.graph.node(0).outputs[0]))
    assert declared == "[None]"
    assert "," not in hidden, "of rank 1, as onnx infers it"
