"""QDQ model → float model and encodings file → QDQ model: the same nodes, names, parameters and integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import UnsupportedError
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

import qdqtool
from qdqtool.encodings.formats import FORMATS
from tests.cases.encodings_helpers import AIMET, back, facts, there, there_and_back
from tests.cases.quantized_files import CASES, DYNAMIC, marked, quantized_file
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

OLD = '<ir_version: 8, opset_import: ["" : 13, "com.microsoft": 1]>'

#: Models with pairs of every kind, and the formats that can say them.
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "per tensor": ("""g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1, -2, 3, 4}, float s = {0.1}, uint8 z = {7}, float sw = {0.5}, int8 zw = {0}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [wq] c = QuantizeLinear(w, sw, zw) [wd] e = DequantizeLinear(c, sw, zw)
        [m] t = MatMul(b, e) [r] y = Relu(t) }""", FORMATS),
    "per axis, stored": ("""g (float[1,3] x) => (float[1,2] y) <int8[3,2] wi = {1, -2, 3, 4, 5, -128}, float[2] sw = {0.5, 0.25}, int8[2] zw = {0, 0}>
      { [wd] w = DequantizeLinear<axis: int = 1>(wi, sw, zw) [m] y = MatMul(x, w) }""", FORMATS),
    "negative axis": ("""g (float[1,3] x) => (float[1,2] y) <int8[3,2] w_quantized = {1, -2, 3, 4, 5, 6}, float[2] sw = {0.5, 0.25}, int8[2] zw = {0, 0}>
      { [wd] w = DequantizeLinear<axis: int = -1>(w_quantized, sw, zw) [m] y = MatMul(x, w) }""", FORMATS),
    "one channel": ("""g (float[1,1,2,2] x) => (float[1,1,2,2] y) <int8[1,1,1,1] w_quantized = {3}, float[1] sw = {0.5}, int8[1] zw = {0}>
      { [wd] w = DequantizeLinear<axis: int = 0>(w_quantized, sw, zw) [m] y = Conv(x, w) }""", FORMATS),
    "blocked": ("""g (float[1,4] x) => (float[1,2] y) <int4[4,2] w_quantized = {33, 67, 121, 31}, float[2,2] sw = {0.5, 0.25, 2, 1}, int4[2,2] zw = {0, 0}>
      { [wd] w = DequantizeLinear<axis: int = 0, block_size: int = 2>(w_quantized, sw, zw) [m] y = MatMul(x, w) }""", AIMET[1:]),
    "blocked, transposed": ("""g (float[1,4] x) => (float[1,3] y) <int8[3,4] w_quantized = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3,2] sw = {1,2,3,4,5,6}>
      { [wd] w = DequantizeLinear<axis: int = 1, block_size: int = 2>(w_quantized, sw) [m] y = Gemm<transB: int = 1>(x, w) }""", AIMET[1:]),
    "blocked kernel": ("""g (float[1,4,2,2] x) => (float[1,1,1,1] y) <int8[1,4,2,2] w_quantized = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16},
        float[1,2,2,2] sw = {1,1,1,1,3,3,3,3}>
      { [wd] w = DequantizeLinear<axis: int = 1, block_size: int = 2>(w_quantized, sw) [m] y = Conv(x, w) }""", AIMET[1:]),
    "blocked with zero points": ("""g (float[1,4] x) => (float[1,2] y) <uint8[4,2] w_quantized = {1,2,3,4,5,6,7,8}, float[2,2] sw = {0.5, 0.25, 2, 1}, uint8[2,2] zw = {1, 2, 3, 128}>
      { [wd] w = DequantizeLinear<axis: int = 0, block_size: int = 2>(w_quantized, sw, zw) [m] y = MatMul(x, w) }""", AIMET[1:]),
    "signed with zero point": ("""g (float[2] x) => (float[2] y) <float s = {0.1}, int8 z = {-17}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [r] y = Relu(b) }""", FORMATS),
    "unsigned in the middle": ("""g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {128}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [r] y = Relu(b) }""", FORMATS),
    "16 and 4 bits": ("""g (float[2] x) => (float[2] y) <float s = {0.1}, uint16 z = {32768}, float h = {0.01}, int16 i = {-5}, uint4 u = {7}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [r] t = Relu(b) [q2] c = QuantizeLinear(t, h, i) [d2] e = DequantizeLinear(c, h, i)
        [n] v = Neg(e) [q3] f = QuantizeLinear(v, s, u) [d3] y = DequantizeLinear(f, s, u) }""", FORMATS),
    "2 bits": ("""<ir_version: 12, opset_import: ["": 25]> g (float[2] x) => (float[2] y) <float s = {0.1}, int2 z = {0}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [r] y = Relu(b) }""", AIMET[2:]),
    "float8": ("""g (float[2] x) => (float[2] y) <float s = {0.1}>
      { [q] a = QuantizeLinear<output_dtype: int = 17>(x, s) [d] b = DequantizeLinear(a, s) [r] y = Relu(b) }""", (*AIMET[2:], "ort")),
    "no zero point": ("""g (float[2] x) => (float[2] y) <float s = {0.1}>
      { [q] a = QuantizeLinear(x, s) [d] b = DequantizeLinear(a, s) [r] y = Relu(b) }""", FORMATS),
    "a scale of one element": ("""g (float[2] x) => (float[2] y) <float[1] s = {0.1}, int8[1] z = {0}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [r] y = Relu(b) }""", FORMATS),
    "float16": ("""g (float16[1,2] x) => (float16[1,2] y) <float16 s = {11878}, uint8 z = {7}, int8[2,2] w_quantized = {1, -2, 3, 127}, float16[2] sw = {13517, 14746}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [wd] w = DequantizeLinear<axis: int = 1>(w_quantized, sw) [m] y = MatMul(b, w) }""", FORMATS),
    "float16, integers it cannot hold": ("""g (float16[4] x) => (float16[4] y) <int16[4] w_quantized = {32767, -32768, 12345, 4097}, float16 sw = {13517}>
      { [wd] w = DequantizeLinear(w_quantized, sw) [m] y = Add(x, w) }""", FORMATS),
    "int32 bias that float32 cannot hold": ("""g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float s = {0.1}, uint8 z = {7}, int8[1,1,1,1] w_quantized = {3}, float sw = {0.3},
        int32[1] b_quantized = {1234567891}, float sb = {0.03}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [wd] w = DequantizeLinear(w_quantized, sw) [bd] c = DequantizeLinear(b_quantized, sb)
        [m] y = Conv(b, w, c) }""", (*AIMET, "qnn")),
    "graph output": ("""g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {7}>
      { [r] t = Relu(x) [q] a = QuantizeLinear(t, s, z) [d] y = DequantizeLinear(a, s, z) }""", FORMATS),
    "graph output, read as well": ("""g (float[2] x) => (float[2] y, float[2] v) <float s = {0.1}, uint8 z = {7}>
      { [r] y_QuantizeLinear_Input = Relu(x) [q] a = QuantizeLinear(y_QuantizeLinear_Input, s, z) [d] y = DequantizeLinear(a, s, z) [n] v = Neg(y) }""", FORMATS),
    "graph output that stays float": ("""g (float[2] x) => (float[2] t, float[2] v) <float s = {0.1}, uint8 z = {7}>
      { [r] t = Relu(x) [q] a = QuantizeLinear(t, s, z) [d] b = DequantizeLinear(a, s, z) [n] v = Neg(b) }""", FORMATS),
    "one reader reads the float value": ("""g (float[2] x) => (float[2] y, float[2] v) <float s = {0.1}, uint8 z = {7}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [r] y = Relu(b) [n] v = Neg(x) }""", FORMATS),
    "a DQ per reader": ("""g (float[2] x) => (float[2] y, float[2] v) <float s = {0.1}, uint8 z = {7}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [d2] c = DequantizeLinear(a, s, z) [r] y = Relu(b) [n] v = Neg(c) }""", FORMATS),
    "a pair per reader": ("""g (float[2] x) => (float[2] y, float[2] v) <float s = {0.1}, uint8 z = {7}, float s2 = {0.1}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [q2] e = QuantizeLinear(x, s2, z) [d2] c = DequantizeLinear(e, s2, z)
        [r] y = Relu(b) [n] v = Sub(b, c) }""", FORMATS),
    "one scale for all": ("""g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}, float[2] w = {1, 2}>
      { [q] i = QuantizeLinear(x, s, z) [d] f = DequantizeLinear(i, s, z) [p] j = QuantizeLinear(w, s, z) [e] v = DequantizeLinear(j, s, z)
        [m] t = Mul(f, v) [q2] k = QuantizeLinear(t, s, z) [d2] y = DequantizeLinear(k, s, z) }""", FORMATS),
    "weight read twice": ("""g (float[1,2] x) => (float[1,2] y) <int8[2,2] wi = {1, -2, 3, 4}, float sw = {0.5}>
      { [d1] a = DequantizeLinear(wi, sw) [d2] b = DequantizeLinear(wi, sw) [m] t = MatMul(x, a) [n] y = MatMul(t, b) }""", FORMATS),
    "styles mixed": ("""g (float[2] x) => (float[2] y) <float[2] w = {0.3, 2}, int8[2] v_quantized = {3, 4}, float s = {0.5}, int8 z = {0}>
      { [q] i = QuantizeLinear(w, s, z) [d] a = DequantizeLinear(i, s, z) [e] v = DequantizeLinear(v_quantized, s, z) [m] t = Mul(x, a) [n] y = Add(t, v) }""", FORMATS),
    "com.microsoft": (f"""{OLD} g (float[2] x) => (float[2] y) <float s = {{0.1}}, uint16 z = {{7}}>
      {{ [q] a = com.microsoft.QuantizeLinear(x, s, z) [d] b = com.microsoft.DequantizeLinear(a, s, z) [r] y = Relu(b) }}""", FORMATS),
    "integer input": ("""g (int8[2] x) => (float[2] y) <float s = {0.1}, int8 z = {3}> { [d] b = DequantizeLinear(x, s, z) [r] y = Relu(b) }""", FORMATS),
    "integer output": ("""g (float[2] x) => (int8[2] y) <float s = {0.1}, int8 z = {3}> { [r] t = Relu(x) [q] y = QuantizeLinear(t, s, z) }""", FORMATS),
    "integers and floats are outputs": ("""g (float[2] x) => (int8[2] y, float[2] v) <float s = {0.1}, int8 z = {3}>
      { [r] t = Relu(x) [q] y = QuantizeLinear(t, s, z) [d] b = DequantizeLinear(y, s, z) [n] v = Neg(b) }""", FORMATS),
    "in a body": ("""g (bool c, float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {7}> { [i] y = If(c)
      <then_branch = p () => (float[2] u) { [e] t = Exp(x) [q] a = QuantizeLinear(t, s, z) [d] b = DequantizeLinear(a, s, z) [r] u = Relu(b) },
       else_branch = o () => (float[2] v) { [n] v = Neg(x) }> }""", FORMATS),
    "a body returns a tensor from outside": ("""g (bool c, float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {7}> { [i] y = If(c)
      <then_branch = p () => (float[2] u) { [e] u = Exp(x) },
       else_branch = o () => (float[2] v) { [q] a = QuantizeLinear(x, s, z) [d] v = DequantizeLinear(a, s, z) }> }""", FORMATS),
    "a body returns a result from outside, read there too": ("""g (bool c, float[2] x) => (float[2] y, float[2] w) <float s = {0.1}, uint8 z = {7}>
      { [t] t = Exp(x) [q] a = QuantizeLinear(t, s, z) [d0] b = DequantizeLinear(a, s, z) [n] w = Neg(b) [i] y = If(c)
      <then_branch = p () => (float[2] u) { [e] u = Exp(x) },
       else_branch = o () => (float[2] v) { [d] v = DequantizeLinear(a, s, z) }> }""", FORMATS),
    "one channel of an activation": ("""g (float[N,1,2] x) => (float[N,1,2] y) <float[1] s = {0.1}, int8[1] z = {7}>
      { [q] a = QuantizeLinear<axis: int = 1>(x, s, z) [d] b = DequantizeLinear<axis: int = 1>(a, s, z) [r] y = Relu(b) }""", ("aimet-2.0.0", "aimet-2.1.0")),
    "widths that meet unconverted": ("""g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {7}, float h = {0.001}, uint16 k = {9}>
      { [q] x_QuantizeLinear_Output = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(x_QuantizeLinear_Output, s, z) [n] t = Neg(b)
        [q2] e = QuantizeLinear(t, h, k) [d2] c = DequantizeLinear(e, h, k) [r] y = Sigmoid(c) }""", FORMATS),
    "constant node": ("""g (float[2] x) => (float[2] y) <float s = {0.5}, int8 z = {0}>
      { [c] w = Constant<value: tensor = float[2] {1, 2}>() [q] i = QuantizeLinear(w, s, z) [d] a = DequantizeLinear(i, s, z) [m] y = Mul(x, a) }""", FORMATS),
    "constant node, per axis": ("""g (float[1,2] x) => (float[1,3] y) <float[3] s = {0.5, 0.25, 1}, int8[3] z = {0, 0, 0}>
      { [c] w = Constant<value: tensor = float[2,3] {1, 2, 3, 4, 5, 6}>() [q] i = QuantizeLinear<axis: int = 1>(w, s, z)
        [d] a = DequantizeLinear<axis: int = 1>(i, s, z) [m] y = MatMul(x, a) }""", FORMATS),
    "names with signs": ('''g (float[2] "in put&1") => (float[2] "out:0") <float s = {0.1}, uint8 z = {7}>
      { [q] a = QuantizeLinear("in put&1", s, z) [d] b = DequantizeLinear(a, s, z) ["a b"] "out:0" = Relu(b) }''', FORMATS),
    "converted for one reader": ("""g (float[2] x) => (float[2] y, float[2] v) <float s = {0.1}, uint8 z = {7}, float h = {0.001}, uint16 k = {9}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [q2] e = QuantizeLinear(b, h, k) [d2] c = DequantizeLinear(e, h, k)
        [r] y = Relu(b) [n] v = Neg(c) }""", ("ort",)),
    "converted for all": ("""g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {7}, float h = {0.001}, uint16 k = {9}>
      { [q] a = QuantizeLinear(x, s, z) [d] b = DequantizeLinear(a, s, z) [q2] e = QuantizeLinear(b, h, k) [d2] c = DequantizeLinear(e, h, k) [r] y = Relu(c) }""", ("ort",)),
}  # fmt: skip

EACH = [(name, format_name) for name, (_, formats) in MODELS.items() for format_name in formats]
NOT = [(name, format_name) for name, (_, can) in MODELS.items() for format_name in FORMATS if format_name not in can]


@pytest.mark.product(cover=("name", "format_name"), extra=len(EACH) // 4)
@pytest.mark.parametrize(("name", "format_name"), EACH)
def test_the_same_model_comes_back(name: str, format_name: str) -> None:
    before = model(MODELS[name][0])
    assert facts(there_and_back(before, format_name)) == facts(before)


@pytest.mark.parametrize(("name", "format_name"), NOT)
def test_what_a_format_cannot_say_is_refused(name: str, format_name: str) -> None:
    """The message names the format that cannot, and one that can."""
    with refusal(UnsupportedError) as caught:
        there(model(MODELS[name][0]), format_name)
    text = str(caught.value)
    assert format_name in text
    can = MODELS[name][1]
    assert any(other in text for other in can), text


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", [name for name, (_, formats) in MODELS.items() if "qnn" in formats])
def test_the_float_model_has_no_pair_and_keeps_its_ends(name: str, format_name: str) -> None:
    before = model(MODELS[name][0])
    bare, _, done = there(before, "aimet-2.0.0")
    assert qdq_pairs(bare) == []
    assert [v.name for v in bare.graph.outputs] == [v.name for v in before.graph.outputs]
    assert [v.name for v in bare.graph.inputs] == [v.name for v in before.graph.inputs]
    assert done.left == ()


@cache
def other_tools_model(case: str) -> ir.Model:
    loaded = qdqtool.load(quantized_file(case))
    run_pipeline(loaded, "sort")
    return loaded


@pytest.mark.product(cover=("case", "format_name"), extra=6)
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("case", marked([case for case in CASES if case not in (DYNAMIC, "qoperator")]))
def test_files_of_other_tools(case: str, format_name: str) -> None:
    before = other_tools_model(case)
    assert facts(there_and_back(before, format_name)) == facts(before)


@pytest.mark.parametrize("case", marked(["u8s8", "s8s8_per_axis", "u16int4", "pair_on_weights"]))
def test_onnxruntimes_overrides_without_hints(case: str) -> None:
    """int32 biases are not in the file, and made anew by the reader: the same scales and the same integers."""
    before = other_tools_model(case)
    bare, document, _ = there(before, "ort", hints=False)
    after = back(bare, document, weights="qdq" if case == "pair_on_weights" else "dq").model
    mine, theirs = (
        {pair.tensor: (pair.encoding, stored(pair.stored)) for pair in qdq_pairs(m)} for m in (before, after)
    )
    assert mine == theirs


def stored(value: ir.Value | None) -> bytes:
    return value.const_value.tobytes() if value is not None and value.const_value is not None else b""


WITHOUT_HINTS: list[tuple[str, Callable[[ir.Model], object]]] = [
    ("per tensor", lambda m: {(p.tensor, p.encoding) for p in qdq_pairs(m)}),
    ("per axis, stored", lambda m: {p.encoding for p in qdq_pairs(m)}),
    ("blocked", lambda m: {(p.encoding, stored(p.stored)) for p in qdq_pairs(m)}),
    ("unsigned in the middle", lambda m: {p.encoding for p in qdq_pairs(m)}),
    ("16 and 4 bits", lambda m: {p.encoding for p in qdq_pairs(m)}),
]  # fmt: skip


@pytest.mark.parametrize("format_name", ["aimet-2.0.0", "aimet-2.1.0"])
@pytest.mark.parametrize(("name", "what"), WITHOUT_HINTS)
def test_encodings_do_not_need_the_hints(name: str, what: Callable[[ir.Model], object], format_name: str) -> None:
    before = model(MODELS[name][0])
    bare, document, _ = there(before, format_name, hints=False)
    assert "qdqtool" not in document
    assert what(back(bare, document, boundaries=False).model) == what(before)


@pytest.mark.parametrize("format_name", ["aimet-0.6.1", "aimet-1.0.0", "qnn"])
def test_without_hints_a_signed_type_with_a_zero_point_reads_as_unsigned(format_name: str) -> None:
    """int8 zero point -17 is uint8 zero point 111: the same grid."""
    bare, document, _ = there(model(MODELS["signed with zero point"][0]), format_name, hints=False)
    (pair,) = qdq_pairs(back(bare, document).model)
    assert pair.encoding is not None
    assert (pair.encoding.dtype, pair.encoding.zero_point) == (ir.DataType.UINT8, (111,))


def test_activations_unsigned() -> None:
    """int8 activations are counted as uint8, weights stay; by default nothing is."""
    text = MODELS["signed with zero point"][0]
    _, document, _ = there(model(text), "aimet-2.0.0", activations="unsigned")
    assert document["encodings"] == [
        {"name": "x", "output_dtype": "uint8", "y_scale": np.float32(0.1).item(), "y_zero_point": 111}
    ]
    _, document, _ = there(model(text), "aimet-2.0.0")
    assert document["encodings"][0]["y_zero_point"] == -17
    _, document, _ = there(model(MODELS["per axis, stored"][0]), "aimet-2.0.0", activations="unsigned")
    assert document["encodings"][0]["output_dtype"] == "int8"


def test_a_changed_weight_is_quantized_anew() -> None:
    """Integers that float32 cannot hold are hints, and count only as long as the bias still is what they stand for."""
    before = model(MODELS["int32 bias that float32 cannot hold"][0])
    bare, document, _ = there(before, "aimet-2.0.0")
    bias = next(
        v for v in bare.graph.initializers.values() if v.dtype == ir.DataType.FLOAT and v.shape == ir.Shape([1])
    )
    assert document["qdqtool"]["tensors"][bias.name]["integers"] == [[0, 1234567891]]
    bias.metadata_props.clear()
    again = back(bare, document).model
    assert b"\xd3\x02\x96\x49" in {stored(p.stored) for p in qdq_pairs(again)}  # 1234567891, little endian
    bias.const_value = ir.tensor(np.array([0.3], np.float32))
    changed = back(bare, document).model
    assert (10).to_bytes(4, "little") in {stored(p.stored) for p in qdq_pairs(changed)}


def test_edited_scales_win_over_hints() -> None:
    """Hints are names and forms: the numbers are those of the file."""
    bare, document, _ = there(model(MODELS["a DQ per reader"][0]), "aimet-2.0.0")
    document["encodings"][0]["y_scale"] = 0.25
    pairs = qdq_pairs(back(bare, document).model)
    assert len(pairs) == 2
    assert {p.encoding.scale for p in pairs if p.encoding} == {(0.25,)}
