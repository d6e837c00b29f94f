"""What conditions of target files see of a unit."""

from __future__ import annotations

from typing import Any

import pytest
from qdq_passes import run_pipeline
from qdq_passes.npu.units.units import units_of

from qdqtool.targets.expression import Expression
from qdqtool.targets.unit_facts import UnitFacts, vocabulary
from tests.cases.small_models import model

CONSTANTS = (
    "float s = {0.5}, float r = {0.1}, int8 z = {0}, uint8 m = {128}, uint8 low = {0}, float[2] sw = {0.25, 0.5}, int8[2] zw = {0, 0}, "
    "int8[2,2,1,1] wq = {1, 2, 3, 4}, int32[2] bq = {1, 2}, float[2] sb = {0.125, 0.25}, float[2] sc = {0.125, 0.3}, int32[2] zb = {0, 0}, "
    "int64[2] shape = {1, -1}, float zero = {0}, float top = {6}"
)
CONV = """[qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z)
  [dw] w = DequantizeLinear<axis=-4>(wq, sw, zw) [db] b = DequantizeLinear<axis=0>(bq, %s, zb)
  [conv] u = Conv(xd, w, b) %s"""


def facts(body: str, *, outputs: str = "float[1,2,4,4] y", opset: int = 21, unit: int = 0) -> UnitFacts:
    """Of one unit of a graph."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}, "com.acme" : 1]>\n'
    graph = model(f"{text}g (float[1,2,4,4] x, float[N,2] dynamic) => ({outputs}) <{CONSTANTS}> {{ {body} }}")
    run_pipeline(graph, "infer-shapes")
    return UnitFacts(units_of(graph)[unit], "acme")


def value(of: UnitFacts, text: str) -> Any:
    return Expression.parse(text, vocabulary())(of)


def conv(
    tail: str = "[qy] yq = QuantizeLinear(u, r, m) [dy] y = DequantizeLinear(yq, r, m)", bias: str = "sb"
) -> UnitFacts:
    return facts(CONV % (bias, tail))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("op", "Conv"),
        ("domain", ""),
        ("opset", 21),
        ("since", 11),
        ("target", "acme"),
        ("tail", []),
        ("tail_absorbed", True),
        ("len(inputs)", 3),
        ("len(outputs)", 1),
        ("quantized", True),
        ("attr.group", 1),
        ("attr.auto_pad", "NOTSET"),
        ("attr.dilations", None),
        ("[t.kind for t in inputs]", ["activation", "weight", "bias"]),
        ("y.kind", "activation"),
        ("[x.dtype, w.dtype, b.dtype, y.dtype]", ["int8", "int8", "int32", "uint8"]),
        ("[x.bits, b.bits]", [8, 32]),
        ("[x.signed, y.signed]", [True, False]),
        ("[x.zero_point, y.zero_point, w.zero_points]", [0, 128, [0, 0]]),
        ("[x.symmetric, y.symmetric]", [True, True]),
        ("[x.pow2, y.pow2, x.position, y.position]", [True, False, 1, None]),
        ("[x.granularity, w.granularity]", ["per-tensor", "per-axis"]),
        ("[x.axis, w.axis, w.block_size]", [None, 0, 0]),
        ("[x.scale, w.scale, w.scales]", [0.5, 0.25, [0.25, 0.5]]),
        ("[x.low, x.high]", [-64.0, 63.5]),
        ("[x.shape, w.shape, b.shape, y.shape]", [[1, 2, 4, 4], [2, 2, 1, 1], [2], [1, 2, 4, 4]]),
        ("[x.rank, b.rank]", [4, 1]),
        ("[x.constant, w.constant]", [False, True]),
        ("x.encoding == y.encoding", False),
        ("x.encoding == x.encoding", True),
        ("inputs[3].dtype", None),
        ("bias_is_product_scale", True),
        ("[float_inputs, float_outputs]", [[], []]),
    ],
)
def test_a_quantized_layer(text: str, wanted: Any) -> None:
    assert value(conv(), text) == wanted


def test_a_bias_elsewhere_than_at_the_product() -> None:
    assert value(conv(bias="sc"), "bias_is_product_scale") is False
    relu = facts("[relu] y = Relu(x)")
    assert value(relu, "bias_is_product_scale") is None
    assert value(relu, "[b.kind, b.dtype, b.shape]") == ["absent", None, None]


@pytest.mark.parametrize(
    ("tail", "absorbed"),
    [
        ("[a] v = Relu(u) [qy] yq = QuantizeLinear(v, r, low) [dy] y = DequantizeLinear(yq, r, low)", True),
        ("[a] v = Relu(u) [qy] yq = QuantizeLinear(v, r, m) [dy] y = DequantizeLinear(yq, r, m)", False),
        ("[a] v = Clip(u, zero, top) [qy] yq = QuantizeLinear(v, r, low) [dy] y = DequantizeLinear(yq, r, low)", False),
        ("[a] v = Clip(u, zero) [qy] yq = QuantizeLinear(v, r, low) [dy] y = DequantizeLinear(yq, r, low)", True),
        ("[a] v = LeakyRelu(u) [qy] yq = QuantizeLinear(v, r, low) [dy] y = DequantizeLinear(yq, r, low)", False),
        ("[a] y = Relu(u)", False),
    ],
)
def test_what_the_range_of_the_output_implies(tail: str, absorbed: bool) -> None:
    """uint8 at scale 0.1 with zero point 0 holds 0 to 25.5."""
    found = conv(tail)
    assert len(found.tail) == 1
    assert value(found, "tail_absorbed") is absorbed


def test_floats_and_integers_that_are_no_data() -> None:
    reshape = facts("[r] y = Reshape(x, shape)", outputs="float[1,32] y")
    assert value(reshape, "[x.kind, x.dtype, x.quantized, w.kind, w.values]") == [
        "float",
        "float",
        False,
        "control",
        [1, -1],
    ]
    assert value(reshape, "[float_inputs, float_outputs, quantized]") == [[0], [0], False]
    arg_max = facts("[a] y = ArgMax<axis=1>(x)", outputs="int64[1,1,4,4] y")
    assert value(arg_max, "[y.kind, y.dtype, float_outputs]") == ["control", "int64", []]
    dynamic = facts("[a] y = Relu(dynamic)", outputs="float[N,2] y")
    assert value(dynamic, "[x.shape, x.shape[0] is None, x.rank]") == [[None, 2], True, 2]


def test_attributes_have_the_defaults_of_their_opset() -> None:
    for opset, axis in ((11, 1), (13, -1)):
        assert value(facts("[s] y = Softmax(x)", opset=opset), "attr.axis") == axis
    pool = facts("[p] y = MaxPool<kernel_shape=[1, 1], strides=[1, 1]>(x)", opset=22)
    assert value(pool, "[since, attr.kernel_shape, attr.ceil_mode]") == [22, [1, 1], 0]
    odd = facts('[o] y = com.acme.Odd<mode="fast">(x)')
    assert value(odd, "[op, domain, opset, since]") == ["com.acme::Odd", "com.acme", 1, None]
    assert Expression.parse("attr.mode", vocabulary(("com.acme::Odd",)))(odd) == "fast"
    assert Expression.parse("attr.anything", vocabulary(("com.acme::Odd",)))(odd) is None
