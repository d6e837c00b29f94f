"""Which Q and DQ nodes move together, which of them have a position at all, and why not."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes import dump, run_pipeline
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import all_nodes
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.qdq.look.pairs import encoding_of, is_dequantize, is_quantize
from qdq_passes.refine.look.position_groups import position_groups, tensor_of
from qdq_passes.refine.look.scale_positions import Positions

from tests.cases.positioned import places_of, positioned
from tests.cases.small_models import model


def groups(graph: ir.Model, *, by_initializer: bool = False) -> list[set[str]]:
    """Names of the tensors that move together, of every group."""
    found = position_groups(filter(is_qdq, all_nodes(graph)), by_initializer=by_initializer)
    return [{tensor_of(node) for node in group.nodes} for group in dict.fromkeys(found.values())]


CHAIN = ["r: u = Reshape(x, shape)", "t: v = Transpose(u)", "p: y = MaxPool<kernel_shape: ints = [2,2]>(v)"]
SHAPE = ["int64[4] shape = {1,1,2,8}"]


@pytest.mark.parametrize("by_initializer", [False, True])
def test_data_movement_ties_what_shares_a_scale(by_initializer: bool) -> None:
    places, scales = dict.fromkeys("xuvy", 4), dict.fromkeys("uvy", "x")
    graph = positioned(CHAIN, places, outputs=["y"], scales=scales, constants=SHAPE)
    assert groups(graph, by_initializer=by_initializer) == [set("xuvy")]


def test_without_a_common_scale_nothing_is_tied() -> None:
    graph = positioned(CHAIN, dict.fromkeys("xuvy", 4), outputs=["y"], constants=SHAPE)
    assert groups(graph) == [{"x"}, {"u"}, {"v"}, {"y"}]


def test_a_link_without_pair_is_walked_through() -> None:
    graph = positioned(CHAIN, dict.fromkeys("xy", 4), outputs=["y"], scales={"y": "x"}, constants=SHAPE)
    assert groups(graph) == [{"x", "y"}]


def test_siblings_without_a_pair_on_what_they_move() -> None:
    nodes = ["e: t = Exp(x)", "r: u = Reshape(t, shape)", "s: v = Reshape(t, shape)", "a: y = Add(u, v)"]
    graph = positioned(nodes, dict.fromkeys("uvy", 4), outputs=["y"], scales={"v": "u", "y": "u"}, constants=SHAPE)
    assert groups(graph) == [{"u", "v"}, {"y"}]


def test_an_equal_constant_ties_nothing() -> None:
    """A Conv computes: its output is another tensor, whoever's scale it reads. The reference moves both."""
    places = {"x": 4, "w": 4, "y": 4}
    graph = positioned(["c: y = Conv(x, w)"], places, outputs=["y"], scales={"w": "x", "y": "x"})
    assert groups(graph) == [{"x"}, {"w"}, {"y"}]
    assert groups(graph, by_initializer=True) == [{"x", "w", "y"}]


DEDICATED = """g (float[2] x) => (float[2] y, float[2] v) <float s = {0.5}, float r = {0.5}, float o = {0.25}, int8 z = {0}>
{ [q1] i = QuantizeLinear(x, s, z) [d1] a = DequantizeLinear(i, s, z) [q2] j = QuantizeLinear(x, r, z)
  [d2] b = DequantizeLinear(j, r, z) [q3] k = QuantizeLinear(x, o, z) [d3] c = DequantizeLinear(k, o, z)
  [m] y = Mul(a, b) [n] v = Neg(c) }"""


def test_equal_pairs_on_one_value_are_one_tensor() -> None:
    found = position_groups(filter(is_qdq, all_nodes(model(DEDICATED))), by_initializer=False)
    together = [sorted(node.name or "" for node in group.nodes) for group in dict.fromkeys(found.values())]
    assert together == [["d1", "d2", "q1", "q2"], ["d3", "q3"]]


def test_stored_integers_of_several_readers() -> None:
    graph = model(
        """g (float[2] x) => (float[2] y) <int8[2] w = {1, 2}, float s = {0.5}, float r = {0.5}>
        { [d1] a = DequantizeLinear(w, s) [d2] b = DequantizeLinear(w, s) [d3] c = DequantizeLinear(w, r)
          [m] t = Mul(x, a) [n] u = Mul(t, b) [o] y = Mul(u, c) }"""
    )
    found = position_groups(filter(is_qdq, all_nodes(graph)), by_initializer=False)
    together = [sorted(node.name or "" for node in group.nodes) for group in dict.fromkeys(found.values())]
    assert together == [["d1", "d2"], ["d3"]]


PAIR = "{ [q] i = QuantizeLinear(x, s, z) [d] a = DequantizeLinear(i, s, z) [p] y = MaxPool<kernel_shape: ints = [1,1]>(a) }"


def why_not(text: str, *, reference: bool = False) -> dict[str, str]:
    """Notes at the operators of a graph, after their inputs and outputs have been asked for."""
    graph = model(text)
    positions = Positions(graph, reference=reference)
    for node in graph.graph:
        if node.op_type in ("MaxPool", "Conv", "Add"):
            for index in range(len(node.inputs)):
                assert positions.input(node, index) is None
            positions.output(node)
    return {node.name or "": reason for node, reason in positions.notes.items()}


@pytest.mark.parametrize(
    ("initializers", "reason"),
    [
        ("float s = {0.3}, int8 z = {0}", "x has the scale 0.3, no power of two"),
        ("float s = {0.5}, uint8 z = {3}", "x has the zero point 3"),
        ("float s = {0.5}, uint8 z = {0}", "x has the zero point 0"),
        ("float s = {-0.5}, int8 z = {0}", "x has the scale -0.5, no power of two"),
        ("float s = {0.5}, int16 z = {0}", "x is int16; shift limits are for 8 bits"),
        ("float s = {0.5}, float8e4m3fn z = {0}", "x is float8e4m3fn, no integer type"),
    ],
)
def test_scales_without_a_position(initializers: str, reason: str) -> None:
    assert why_not(f"g (float[1,1,2,2] x) => (float[1,1,2,2] y) <{initializers}> {PAIR}") == {"p": reason}


def test_a_scale_per_axis() -> None:
    text = PAIR.replace("Linear(", "Linear<axis: int = 2>(")
    found = why_not(
        f"g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[2] s = {{0.5, 0.5}}, int8[2] z = {{0, 0}}> {text}"
    )
    assert found == {"p": "x has 2 scales"}


def test_one_scale_of_an_axis_is_as_good_as_any() -> None:
    text = PAIR.replace("Linear(", "Linear<axis: int = 1>(")
    graph = model(f"g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1] s = {{0.5}}, int8[1] z = {{0}}> {text}")
    positions, pool = Positions(graph), graph.graph[-1]
    half = positions.input(pool, 0)
    assert half is not None
    assert positions[half] == 1


def test_a_pair_without_a_scale() -> None:
    """`load` lets it pass, `check` reports it."""
    text = PAIR.replace("(x, s, z)", '(x, "")').replace("(i, s, z)", '(i, "")')
    assert why_not(f"g (float[1,1,2,2] x) => (float[1,1,2,2] y) {text}") == {"p": "d has no scale"}


def test_scales_from_outside() -> None:
    signature = "g (float[1,1,2,2] x, float s) => (float[1,1,2,2] y) <int8 z = {0}>"
    assert why_not(f"{signature} {PAIR}") == {"p": "x has no constant scale and zero point"}
    overridable = "g (float[1,1,2,2] x, float s = {0.5}) => (float[1,1,2,2] y) <int8 z = {0}>"
    assert why_not(f"{overridable} {PAIR}") == {"p": "x has no constant scale and zero point"}
    assert why_not(f"{overridable} {PAIR}", reference=True) == {"p": "x has no constant scale and zero point"}


def test_q_and_dq_that_differ() -> None:
    text = PAIR.replace("DequantizeLinear(i, s, z)", "DequantizeLinear(i, r, z)")
    found = why_not(
        f"g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float s = {{0.5}}, float r = {{0.25}}, int8 z = {{0}}> {text}"
    )
    assert found == {"p": "x has different encodings at its Q and DQ nodes"}


def test_integers_that_others_see() -> None:
    head = "g (float[1,1,2,2] x) => (float[1,1,2,2] y, int8[1,1,2,2] {}) <float s = {{0.5}}, int8 z = {{0}}>"
    assert why_not(f"{head.format('i')} {PAIR}") == {"p": "x leaves the graph as integers"}
    read = PAIR.replace(" }", " [m] o = MaxPool<kernel_shape: ints = [1,1]>(i) }")
    assert why_not(f"{head.format('o')} {read}") == dict.fromkeys("mp", "x has integers that m reads too")


@pytest.mark.parametrize(
    ("inputs", "nodes", "reason"),
    [
        ("int8[1,1,2,2] i", "", "a enters the graph as integers"),
        ("int8[1,1,2,2] j", "[neg] i = Neg(j)", "a is made of integers by neg"),
    ],
)
def test_integers_that_come_from_elsewhere(inputs: str, nodes: str, reason: str) -> None:
    text = f"{{ {nodes} [d] a = DequantizeLinear(i, s) [p] y = MaxPool<kernel_shape: ints = [1,1]>(a) }}"
    assert why_not(f"g ({inputs}) => (float[1,1,2,2] y) <float s = {{0.5}}> {text}") == {"p": reason}


def test_a_fix_neuron_has_no_scale_to_move() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "com.vai.quantize" : 1]> g (float[1,1,2,2] x) => (float[1,1,2,2] y)
    { [fix] a = com.vai.quantize.FixNeuron<bit_width: int = 8, pos: int = 4>(x) [p] y = MaxPool<kernel_shape: ints = [1,1]>(a) }"""
    assert why_not(text) == {"p": "fix is a FixNeuron; run convert-qdq-domain{to=onnx} first"}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("opset", [10, 13, 21, 25])
def test_symmetric_types_and_opsets(dtype: str, opset: int) -> None:
    nodes = ["pool: y = MaxPool<kernel_shape: ints = [2,2]>(x)"]
    graph = positioned(nodes, {"x": 5, "y": 3}, outputs=["y"], types={"x": dtype, "y": dtype}, opset=opset)
    run_pipeline(graph, "align-pool", hooks=[VerifyEach()])
    assert places_of(graph) == {"x": 3, "y": 3}


def test_wide_integers_of_biases_have_positions() -> None:
    """An int16 bias with a scale of its own; an int16 activation is not what the limits are about."""
    for types, b in (({"b": "int16"}, 20), ({"b": "int16", "x": "int16"}, 30)):
        graph = positioned(["c: y = Conv(x, w, b)"], {"x": 4, "w": 1, "b": 30, "y": 4}, outputs=["y"], types=types)
        run_pipeline(graph, "adjust-shift-bias")
        assert places_of(graph)["b"] == b


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx"])
def test_operators_of_other_domains(domain: str) -> None:
    graph = model(
        f"""<ir_version: 10, opset_import: ["{domain}" : 21, "" : 21]>
        g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float s = {{0.5}}, float r = {{0.25}}, int8 z = {{0}}>
        {{ [q] i = {domain}.QuantizeLinear(x, s, z) [d] a = {domain}.DequantizeLinear(i, s, z)
           [p] o = MaxPool<kernel_shape: ints = [1,1]>(a)
           [q2] j = {domain}.QuantizeLinear(o, r, z) [d2] y = {domain}.DequantizeLinear(j, r, z) }}"""
    )
    run_pipeline(graph, "align-pool")
    assert places_of(graph) == {"x": 1, "o": 1}


def test_a_pair_that_reaches_into_a_body_moves_whole() -> None:
    graph = model(
        """g (bool c, float[1,1,2,2] x) => (float[1,1,2,2] y, float[1,1,2,2] v) <float s = {0.125}, float r = {0.25}, int8 z = {0}>
        { [q] i = QuantizeLinear(x, s, z) [d] a = DequantizeLinear(i, s, z) [p] o = MaxPool<kernel_shape: ints = [1,1]>(a)
          [q2] j = QuantizeLinear(o, r, z) [d2] y = DequantizeLinear(j, r, z)
          [if] v = If(c) <then_branch = t () => (float[1,1,2,2] b) { [d3] b = DequantizeLinear(i, s, z) },
            else_branch = e () => (float[1,1,2,2] f) { [d4] g = DequantizeLinear(i, s, z) [p2] f = MaxPool<kernel_shape: ints = [1,1]>(g) }> }"""
    )
    run_pipeline(graph, "align-pool", hooks=[VerifyEach()])
    encodings = {node.name: encoding_of(node) for node in all_nodes(graph) if is_quantize(node) or is_dequantize(node)}
    positions = {name: encoding.position for name, encoding in encodings.items() if encoding is not None}
    assert positions == dict.fromkeys(("q", "d", "q2", "d2", "d3", "d4"), (2,))


def test_operators_in_bodies_ask_for_nothing() -> None:
    graph = model(
        """g (bool c, float[1,1,2,2] x) => (float[1,1,2,2] v) <float s = {0.125}, float r = {0.5}, int8 z = {0}>
        { [if] v = If(c) <then_branch = t () => (float[1,1,2,2] b) { [q] i = QuantizeLinear(x, s, z)
            [d] a = DequantizeLinear(i, s, z) [p] o = MaxPool<kernel_shape: ints = [1,1]>(a) [q2] j = QuantizeLinear(o, r, z)
            [d2] b = DequantizeLinear(j, r, z) }, else_branch = e () => (float[1,1,2,2] f) { [n] f = Neg(x) }> }"""
    )
    before = dump(graph)
    assert not run_pipeline(graph, "refine-positions").modified
    assert dump(graph) == before


def test_positions_that_a_float_type_does_not_hold() -> None:
    """float16 has 2^-24 at the least and 2^15 at the most, but normal numbers from 2^-14 on."""
    graph = model(
        """g (float16[1,1,2,2] x) => (float16[1,1,2,2] y) <float16 s = {14336}, int8 z = {0}, int8[1,1,1,1] w = {64}, float16 r = {1}>
        { [q] i = QuantizeLinear(x, s, z) [d] a = DequantizeLinear(i, s, z) [e] v = DequantizeLinear(w, r)
          [c] t = Conv(a, v) [q2] j = QuantizeLinear(t, s, z) [d2] y = DequantizeLinear(j, s, z) }"""
    )
    positions, conv = Positions(graph), next(n for n in graph.graph if n.op_type == "Conv")
    weight = positions.input(conv, 1)
    assert weight is not None
    assert positions[weight] == 24
    assert [positions.why_not(weight, p) for p in (24, 25, -15, -16)] == [
        None,
        "2^-25 is no float16",
        None,
        "2^16 is no float16",
    ]
