"""What a unit is: an operator, what is computed in one with it, and the QDQ nodes around both."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from qdq_passes import run_pipeline
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.npu.units.float_causes import why_not_quantized
from qdq_passes.npu.units.units import Unit, units_of

from tests.cases.small_models import model
from tests.dial import examples
from tests.properties.qdq_graphs import qdq_texts

SCALES = "float s = {0.5}, float r = {0.25}, int8 z = {0}"
WEIGHT = "int8[2,2,1,1] wq = {1, 2, 3, 4}, int32[2] bq = {1, 2}, float t = {0.25}, int32 zb = {0}"


def units(
    body: str, *, inputs: str = "float[1,2,4,4] x", outputs: str = "float[1,2,4,4] y", constants: str = SCALES
) -> list[Unit]:
    """The units of a graph whose body is ``body``, with its types inferred."""
    graph = model(f"g ({inputs}) => ({outputs}) <{constants}> {{ {body} }}")
    run_pipeline(graph, "infer-shapes")
    return units_of(graph)


def shown(found: list[Unit]) -> list[str]:
    """Names of the nodes of each unit."""
    return ["+".join(str(node.name) for node in unit.nodes) for unit in found]


IN = "[qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z)"
OUT = "[qy] yq = QuantizeLinear(v, r, z) [dy] y = DequantizeLinear(yq, r, z)"
PARAMETERS = "[dw] w = DequantizeLinear(wq, s, z) [db] b = DequantizeLinear(bq, t, zb)"


def test_a_layer_with_its_activation_is_one_unit() -> None:
    [unit] = units(
        f"{IN} {PARAMETERS} [conv] u = Conv(xd, w, b) [relu] v = Relu(u) {OUT}", constants=f"{SCALES}, {WEIGHT}"
    )
    assert shown([unit]) == ["conv+relu"]
    assert [o.kind for o in unit.operands] == ["activation", "weight", "bias"]
    assert [str(o.dequantize.name) for o in unit.operands if o.dequantize] == ["dx", "dw", "db"]
    assert [o.integers.name for o in unit.operands if o.integers] == ["xq", "wq", "bq"]
    assert [o.constant for o in unit.operands] == [False, True, True]
    [result] = unit.results
    assert (result.value.name, result.quantize and result.quantize.name, result.integers and result.integers.name) == (
        "v",
        "qy",
        "yq",
    )
    assert result.encoding is not None
    assert result.encoding.scale == (0.25,)
    assert unit.is_quantized
    assert why_not_quantized(unit) == ""


def test_a_pair_on_a_float_weight_is_a_weight() -> None:
    body = f"{IN} [qw] wi = QuantizeLinear(w, s, z) [dw] wd = DequantizeLinear(wi, s, z) [mm] v = MatMul(xd, wd) {OUT}"
    [unit] = units(
        body, inputs="float[1,2] x", outputs="float[1,2] y", constants=f"{SCALES}, float[2,2] w = {{1,2,3,4}}"
    )
    weight = unit.operands[1]
    assert (weight.kind, weight.quantize and weight.quantize.name, weight.constant) == ("weight", "qw", True)
    assert unit.is_quantized


def test_an_initializer_that_is_a_graph_input_is_no_constant() -> None:
    body = f"{IN} [dw] w = DequantizeLinear(wq, s, z) [mm] v = MatMul(xd, w) {OUT}"
    constants = f"{SCALES}, int8[2,2] wq = {{1,2,3,4}}"
    [unit] = units(body, inputs="float[1,2] x, int8[2,2] wq", outputs="float[1,2] y", constants=constants)
    assert (unit.operands[1].kind, unit.operands[1].constant) == ("activation", False)
    assert unit.is_quantized


def test_the_second_operand_of_an_add_is_stored_like_data() -> None:
    [unit] = units(
        f"{IN} [dc] c = DequantizeLinear(cq, s, z) [add] v = Add(xd, c) {OUT}", constants=f"{SCALES}, int8 cq = {{3}}"
    )
    assert [o.kind for o in unit.operands] == ["activation", "constant"]


def test_per_axis_and_contrib_pairs_are_read() -> None:
    constants = f"{SCALES}, int8[2,2,1,1] wq = {{1,2,3,4}}, float[2] sw = {{0.5,0.25}}, int8[2] zw = {{0,0}}"
    text = f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{constants}> {{
      [qx] xq = com.microsoft.QuantizeLinear(x, s, z) [dx] xd = com.microsoft.DequantizeLinear(xq, s, z)
      [dw] w = com.microsoft.DequantizeLinear<axis: int = 0>(wq, sw, zw)
      [conv] v = Conv(xd, w)
      [qy] yq = com.microsoft.QuantizeLinear(v, r, z) [dy] y = com.microsoft.DequantizeLinear(yq, r, z)
    }}"""
    [unit] = units_of(model(text))
    weight = unit.operands[1].encoding
    assert weight is not None
    assert (weight.axis, weight.scale) == (0, (0.5, 0.25))
    assert unit.is_quantized


def test_a_shared_dequantize_is_an_operand_of_both_readers() -> None:
    found = units(
        f"{IN} [a] u = Relu(xd) [b] v = Sigmoid(xd) [qu] uq = QuantizeLinear(u, r, z) [du] p = DequantizeLinear(uq, r, z) {OUT}",
        outputs="float[1,2,4,4] y, float[1,2,4,4] p",
    )
    assert shown(found) == ["a", "b"]
    assert found[0].operands[0].dequantize is found[1].operands[0].dequantize
    assert all(unit.is_quantized for unit in found)


def test_a_requantization_is_a_unit() -> None:
    [unit] = units(f"{IN} [qy] yq = QuantizeLinear(xd, r, z) [dy] y = DequantizeLinear(yq, r, z)")
    assert unit.is_requantization
    assert (unit.core.name, unit.operands[0].integers and unit.operands[0].integers.name) == ("qy", "xq")
    assert len(unit.operands) == 1
    assert unit.results[0].integers is not None
    assert unit.results[0].integers.name == "yq"
    assert unit.is_quantized


def test_what_steers_is_control() -> None:
    found = units(
        "[shape] n = Shape(x) [gather] i = Gather(n, k) [greater] b = Greater(i, k) [cast] u = Cast<to: int = 1>(b) [reshape] y = Reshape(x, sh)",
        outputs="float[1,2,16] y, float[1] u", constants="int64[1] k = {0}, int64[3] sh = {1,2,16}",
    )  # fmt: skip
    assert [[o.kind for o in unit.operands] for unit in found] == [
        ["float"], ["control", "control"], ["control", "control"], ["control"], ["float", "control"],
    ]  # fmt: skip
    assert [unit.is_compute for unit in found] == [False, False, False, False, True]


def test_the_value_of_a_pad_steers_and_bounds_of_a_clip_do() -> None:
    found = units(
        f"{IN} [pad] p = Pad(xd, pads, c) [q1] pq = QuantizeLinear(p, s, z) [d1] pd = DequantizeLinear(pq, s, z) [clip] v = Clip(pd, c, , ) {OUT}"
        .replace(", , )", ")"), constants=f"{SCALES}, int64[8] pads = {{0,0,0,0,0,0,0,0}}, float c = {{0}}",
    )  # fmt: skip
    assert shown(found) == ["pad", "clip"]
    assert [o.kind for o in found[0].operands] == ["activation", "control", "control"]
    assert [o.kind for o in found[1].operands] == ["activation", "control"]
    assert all(unit.is_quantized for unit in found)


@pytest.mark.parametrize(
    ("body", "outputs", "expected"),
    [
        ("[conv] u = Conv(xd, w) [relu] v = Relu(u)", "float[1,2,4,4] y", ["conv+relu"]),
        ("[conv] u = Conv(xd, w) [leaky] v = LeakyRelu(u)", "float[1,2,4,4] y", ["conv+leaky"]),
        ("[conv] u = Conv(xd, w) [prelu] v = PRelu(u, k)", "float[1,2,4,4] y", ["conv+prelu"]),
        ("[conv] u = Conv(xd, w) [prelu] v = PRelu(u, xd)", "float[1,2,4,4] y", ["conv", "prelu"]),
        ("[conv] u = Conv(xd, w) [clip] v = Clip(u, low)", "float[1,2,4,4] y", ["conv+clip"]),
        ("[conv] u = Conv(xd, w) [clip] v = Clip(u, n)", "float[1,2,4,4] y", ["conv", "clip"]),
        ("[conv] u = Conv(xd, w) [sig] v = Sigmoid(u)", "float[1,2,4,4] y", ["conv", "sig"]),
        ("[conv] u = Conv(xd, w) [relu] a = Relu(u) [relu2] v = Relu(a)", "float[1,2,4,4] y", ["conv+relu", "relu2"]),
        ("[conv] u = Conv(xd, w) [relu] v = Relu(u)", "float[1,2,4,4] y, float[1,2,4,4] u", ["conv", "relu"]),
        ("[conv] u = Conv(xd, w) [add] v = Add(u, u)", "float[1,2,4,4] y", ["conv", "add"]),
        ("[pad] u = Pad(xd, pads) [pool] v = AveragePool<kernel_shape: ints = [3,3]>(u)", "float[1,2,2,2] y", ["pad+pool"]),
        (
            "[pool] u = AveragePool<kernel_shape: ints = [3,3]>(xd) [mul] m = Mul(u, f) [relu] v = Relu(m)",
            "float[1,2,2,2] y",
            ["pool+mul+relu"],
        ),
        ("[pool] u = AveragePool<kernel_shape: ints = [3,3]>(xd) [mul] v = Mul(u, low)", "float[1,2,2,2] y", ["pool", "mul"]),
        ("[pool] u = AveragePool<kernel_shape: ints = [3,3]>(xd) [mul] v = Mul(u, k)", "float[1,2,2,2] y", ["pool", "mul"]),
        ("[sig] u = Sigmoid(xd) [mul] v = Mul(u, f)", "float[1,2,4,4] y", ["sig", "mul"]),
        ("[hs] u = HardSigmoid<alpha: float = 0.16666667>(xd) [mul] v = Mul(h, u)", "float[1,2,4,4] y", ["hs+mul"]),
        ("[max] u, i = MaxPool<kernel_shape: ints = [1,1]>(xd) [relu] v = Relu(u)", "float[1,2,4,4] y, int64[1,2,4,4] i", ["max", "relu"]),
    ],
)  # fmt: skip
def test_tails(body: str, outputs: str, expected: list[str]) -> None:
    constants = (
        f"{SCALES}, float[2,2,1,1] w = {{1,2,3,4}}, float[2,1,1] k = {{0.5,0.25}}, float low = {{0}}, float f = {{0.984375}}, "
        f"float h = {{1.0001220703125}}, int64[8] pads = {{0,0,0,0,0,0,0,0}}"
    )
    assert (
        shown(units(f"{IN} {body} {OUT}", inputs="float[1,2,4,4] x, float n", outputs=outputs, constants=constants))
        == expected
    )


@pytest.mark.parametrize(
    ("body", "outputs", "why"),
    [
        (f"[relu] v = Relu(x) {OUT}", "float[1,2,4,4] y", "reads x as a float, a graph input without a pair"),
        (f"{IN} [relu] y = Relu(xd)", "float[1,2,4,4] y", "writes y as a float, a graph output without a pair"),
        (
            f"{IN} [relu] v = Relu(xd) {OUT} [exp] e = Exp(v)",
            "float[1,2,4,4] y, float[1,2,4,4] e",
            "v is read as a float too, by Exp exp beside its QuantizeLinear",
        ),
        (f"{IN} [relu] v = Relu(xd) {OUT}", "float[1,2,4,4] y, float[1,2,4,4] v", "v is a graph output as a float, beside its QuantizeLinear"),
        (
            f"{IN} [relu] v = Relu(xd) {OUT} [q2] v2 = QuantizeLinear(v, s, z) [d2] y2 = DequantizeLinear(v2, s, z)",
            "float[1,2,4,4] y, float[1,2,4,4] y2",
            "v is quantized 2 times, once for each reader",
        ),
        (
            "[neg] n = Abs(f) [qx] xq = QuantizeLinear(x, n, z) [dx] xd = DequantizeLinear(xq, n, z) [relu] v = Relu(xd) " + OUT,
            "float[1,2,4,4] y",
            "the scale of xd is computed at run time",
        ),
        (
            f"{IN} [neg] n = Abs(f) [relu] v = Relu(xd) [qv] vq = QuantizeLinear(v, n, z) [dv] y = DequantizeLinear(vq, n, z)",
            "float[1,2,4,4] y",
            "the scale of v is computed at run time",
        ),
        (
            f"{IN} [relu] v = Relu(xd) [exp] e = Exp(v) [qe] eq = QuantizeLinear(e, s, z) [de] y = DequantizeLinear(eq, s, z)",
            "float[1,2,4,4] y",
            "writes v as a float, with no pair before Exp exp, which reads it",
        ),
        (
            f"[neg] n = Neg(f) [relu] v = Relu(n) {OUT}",
            "float[1,2,4,4] y",
            "reads n as a float, with no pair behind Neg neg, which writes it",
        ),
        (f"{IN} [arg] y = ArgMax(xd)", "int64[1,2,4,4] y", "writes y as int64"),
        (f"{IN} [add] v = Add(xd, c) {OUT}", "float[1,2,4,4] y", "reads c as a float, a constant without a pair"),
    ],
)  # fmt: skip
def test_why_a_unit_is_not_quantized(body: str, outputs: str, why: str) -> None:
    found = units(body, inputs="float[1,2,4,4] x, float f", outputs=outputs, constants=f"{SCALES}, float c = {{1.5}}")
    unit = next(unit for unit in found if unit.core.name not in ("exp", "neg"))
    assert why_not_quantized(unit) == why
    assert not unit.is_quantized


def test_a_reader_in_a_body_reads_the_float() -> None:
    text = f"""g (float[2] x, bool c) => (float[2] y, float[2] o) <{SCALES}> {{
      {IN} [relu] v = Relu(xd) {OUT}
      [if] o = If(c) <then_branch = t () => (float[2] a) {{ a = Neg(v) }}, else_branch = e () => (float[2] b) {{ b = Identity(v) }}>
    }}"""
    found = units_of(model(text))
    assert shown(found) == ["relu", "if"]
    assert why_not_quantized(found[0]).startswith("v is read as a float too, by Neg ")


@settings(max_examples=examples(40), deadline=None)
@given(qdq_texts())
def test_every_node_is_in_one_unit(text: str) -> None:
    graph = model(text)
    found = units_of(graph)
    held = [node for unit in found for node in unit.nodes]
    assert len(held) == len(set(held))
    others = {node for node in graph.graph if node not in set(held)}
    assert all(
        is_dequantize(n) or n.op_type == "Constant" or (is_quantize(n) and not _reads_dequantize(n)) for n in others
    )
    order = {node: i for i, node in enumerate(graph.graph)}
    assert [order[u.core] for u in found] == sorted(order[u.core] for u in found)
    for unit in found:
        assert unit.is_quantized == (why_not_quantized(unit) == "")


def _reads_dequantize(node: ir.Node) -> bool:
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    return before is not None and is_dequantize(before)
