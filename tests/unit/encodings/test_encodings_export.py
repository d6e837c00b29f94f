"""Export: models whose pairs no encodings file can tell, and what is said of them."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, QdqError, UnsupportedError
from qdq_passes.numerics.encoding import Encoding

import qdqtool
from qdqtool.encodings import exporting
from qdqtool.encodings.formats import FORMATS
from tests.cases.encodings_helpers import back, facts, there
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

PAIR = "[q] a = QuantizeLinear({0}, s, z) [d] b = DequantizeLinear(a, s, z)"
PARAMETERS = "float s = {0.1}, uint8 z = {7}, float t = {0.2}, uint16 k = {9}, float r = {0.3}"

#: (model, exit code).
REFUSED: dict[str, tuple[str, int]] = {
    "two encodings": (
        f"""g (float[2] x) => (float[2] y) <{PARAMETERS}> {{ [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z)
        [p] c = QuantizeLinear(x, t, z) [e] f = DequantizeLinear(c, t, z) [n] y = Add(b, f) }}""",
        3,
    ),
    "two second encodings": (
        f"""g (float[2] x) => (float[2] y) <{PARAMETERS}> {{ [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z)
        [p] c = QuantizeLinear(b, t, k) [e] f = DequantizeLinear(c, t, k) [o] h = QuantizeLinear(b, r, k) [g] i = DequantizeLinear(h, r, k) [n] y = Add(f, i) }}""",
        3,
    ),
    "three in a row": (
        f"""g (float[2] x) => (float[2] y) <{PARAMETERS}> {{ [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z)
        [p] c = QuantizeLinear(b, t, k) [e] f = DequantizeLinear(c, t, k) [o] h = QuantizeLinear(f, s, z) [g] i = DequantizeLinear(h, s, z) [n] y = Neg(i) }}""",
        3,
    ),
    "a scale from an input": (
        "g (float[2] x, float s) => (float[2] y) <uint8 z = {7}> { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [n] y = Neg(b) }",
        2,
    ),
    "an integer input with a scale from an input": (
        "g (int8[2] x, float s) => (float[2] y) { [d] b = DequantizeLinear(x, s) [n] y = Neg(b) }",
        2,
    ),
    "Q and DQ differ": (
        f"g (float[2] x) => (float[2] y) <{PARAMETERS}> {{ [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, t, z) [n] y = Neg(b) }}",
        2,
    ),
    "one name in two bodies": (
        f"""g (bool c, float[2] x) => (float[2] y) <{PARAMETERS}> {{ [i] y = If(c) <then_branch = p () => (float[2] u) {{ [e] w = Exp(x) {PAIR.format("w")} [r] u = Relu(b) }},
        else_branch = o () => (float[2] v) {{ [n] w = Neg(x) [m] v = Abs(w) }}> }}""",
        3,
    ),
    "in a local function": (
        f"""<ir_version: 10, opset_import: ["": 21, "local": 1]> g (float[2] x) => (float[2] y) {{ [f] y = local.F(x) }}
        <domain: "local", opset_import: ["": 21]> F (p) => (v) {{ [h] s = Constant<value: tensor = float {{0.3}}>() [c] z = Constant<value: tensor = uint8 {{0}}>()
        {PAIR.format("p")} [n] v = Neg(b) }}""",
        3,
    ),
    "no pair": ("g (float[2] x) => (float[2] y) { [n] y = Neg(x) }", 3),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    text, code = REFUSED[what]
    with refusal(QdqError) as caught:
        there(model(text), "ort")
    assert caught.value.exit_code == code


UINT8, INT8 = ir.DataType.UINT8, ir.DataType.INT8


@pytest.mark.parametrize(
    ("read", "format_name", "cause"),
    [
        pytest.param(Encoding.per_tensor(UINT8, 0.5), "qnn", None, id="another type, qnn"),
        pytest.param(Encoding.per_tensor(UINT8, 0.5), "aimet-2.0.0", None, id="another type, aimet-2.0.0"),
        pytest.param(Encoding(dtype=UINT8, scale=(0.25,), zero_point=(300,)), "qnn", ModelError, id="none at all, qnn"),
    ],
)
def test_an_encoding_that_would_come_back_as_another_is_refused(
    read: Encoding, format_name: str, cause: type[QdqError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No format is known to do that; the check is for the next one, and it names why."""
    monkeypatch.setattr(exporting, "encoding_for", lambda *_: read)
    graph = model(
        f"g (float[2] x) => (float[2] y) <float s = {{0.25}}, int8 z = {{3}}> {{ {PAIR.format('x')} [n] y = Neg(b) }}"
    )
    with refusal(UnsupportedError) as caught:
        there(graph, format_name)
    assert type(caught.value.__cause__) is (cause or type(None))


def test_the_callers_model_stays_as_it_is() -> None:
    before = model(f"g (float[2] x) => (float[2] y) <{PARAMETERS}> {{ {PAIR.format('x')} [n] y = Neg(b) }}")
    known = facts(before)
    done = qdqtool.export_encodings(before, format="qnn")
    assert facts(before) == known
    assert [node.op_type for node in done.model.graph] == ["Neg"]
    qdqtool.import_encodings(done.model, done.encodings)
    assert [node.op_type for node in done.model.graph] == ["Neg"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_encodings_that_export_gives_need_no_file(format_name: str) -> None:
    before = model(f"g (float[2] x) => (float[2] y) <{PARAMETERS}> {{ {PAIR.format('x')} [n] y = Neg(b) }}")
    done = qdqtool.export_encodings(before, format=format_name)
    assert facts(qdqtool.import_encodings(done.model, done.encodings).model) == facts(before)


def test_a_fix_neuron_comes_back_as_a_pair() -> None:
    """Q and DQ in one node: int8 at position 4 is scale 2^-4."""
    text = """<ir_version: 10, opset_import: ["": 21, "com.vai.quantize": 1]> g (float[2] x) => (float[2] y)
      { [f] a = com.vai.quantize.FixNeuron<bit_width: int = 8, pos: int = 4>(x) [n] y = Neg(a) }"""
    bare, document, done = there(model(text), "aimet-2.0.0")
    assert document["encodings"] == [{"name": "x", "output_dtype": "int8", "y_scale": 0.0625}]
    assert done.notes == ("x: its FixNeuron comes back as a QDQ pair",)
    assert {node.op_type for node in back(bare, document).model.graph} == {"QuantizeLinear", "DequantizeLinear", "Neg"}


def test_a_pair_that_nobody_reads_is_not_exported() -> None:
    dead = f"g (float[2] x) => (float[2] y) <{PARAMETERS}> {{ {PAIR.format('x')} [n] y = Neg(x) [p] c = QuantizeLinear(y, s, z) }}"
    _, document, done = there(model(dead), "aimet-2.0.0")
    assert {entry["name"] for entry in document["encodings"]} <= {"x"}
    assert done.left == ()
