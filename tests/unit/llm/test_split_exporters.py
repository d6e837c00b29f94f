"""What exporters do besides the usual: split and run against the dynamic model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.decoder.look.host_region import Host, Sizes
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, make_node, new_constant
from qdq_passes.graph.evaluate.node import NodeEvaluator, Spec

from qdqtool.llm.plan.specializations import Specialization
from qdqtool.llm.plan.splitting import SplitPlan, split_model
from tests.cases.small_decoders import ADDED, CAUSAL, IDS, POSITIONS, VOCABULARY, decoder
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal
from tests.unit.decoder.test_replace_positions import MORE
from tests.unit.llm.test_split_decoders import CLOSE, LAYOUTS, worst

PLAN = SplitPlan(specializations=(Specialization.of(1, 4, 20),))
#: Name → (operator, its other inputs, sizes of the logits): how an export takes the last of its tokens before its head.
LAST: dict[str, tuple[str, list[Any], list[Any]]] = {
    "a row": ("Gather", [np.array(-1)], ["B", VOCABULARY]),
    "a row of one": ("Gather", [np.array([-1])], ["B", 1, VOCABULARY]),
    "a slice": ("Slice", [np.array([-1]), np.array([2**62]), np.array([1])], ["B", 1, VOCABULARY]),
}


def giving_the_last(how: str, behind: bool) -> ir.Model:
    """A decoder that gives the logits of its last token alone, which it takes before its head or ``behind`` it."""
    op_type, inputs, sizes = LAST[how]
    made, head = decoder(), "lm_head"
    namer, node = Namer(made), next(node for node in made.graph if node.name == head)
    axis = [ir.AttrInt64("axis", 1)] if op_type == "Gather" else []
    others = [new_constant(made.graph, namer, "at", np.asarray(array, np.int64)) for array in inputs]
    logits = node.outputs[0]
    source = logits if behind else node.inputs[0]
    last = make_node(op_type, [source, *others], name="last", output="last_row", attributes=axis, stands_for=[node])
    if behind:
        made.graph.insert_after(node, last)
        logits.name, last.outputs[0].name, last.outputs[0].type = "all_logits", "logits", logits.type
        made.graph.outputs[0] = logits = last.outputs[0]
    else:
        made.graph.insert_before(node, last)
        node.replace_input_with(0, last.outputs[0])
    logits.shape = ir.Shape(sizes)
    return made


@pytest.mark.product(cover=("how", "behind", "rows", "layout"), extra=2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("how", LAST)
def test_logits_of_the_last_token_alone(how: str, behind: bool, rows: int, layout: str, tmp_path: Path) -> None:
    """The last of the tokens may be padding: the graph is told which one it is."""
    assert worst(giving_the_last(how, behind), tmp_path, layout, rows) <= CLOSE


def test_all_logits_of_an_export_without_them() -> None:
    plan = SplitPlan(specializations=(Specialization.of(1, 4, 20),), all_logits=True)
    with refusal(UnsupportedError):
        split_model(giving_the_last("a row", behind=False), plan)


def test_a_state_under_any_name() -> None:
    """An input that is no key, no value, and has no role."""
    made = decoder(
        ADDED,
        "at = Gather(places, position_ids) y = Add(words, at) x = Add(y, blend)",
        inputs=f"{IDS}, {POSITIONS}, float[B,1,8] blend",
    )
    with refusal(UnsupportedError) as caught:
        split_model(made, PLAN)
    assert caught.value.where == "blend"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_mask_for_a_first_run_or_one_token(layout: str, tmp_path: Path) -> None:
    """The export spreads the square of its queries over all keys: that fits an empty cache, or one query."""
    text = """ids_shape = Shape(input_ids) new = Gather <axis = 0> (ids_shape, one) past_shape = Shape(past_key)
      past = Gather <axis = 0> (past_shape, two) total = Add(new, past) r = Range(zero, new, one) rows = Unsqueeze(r, one_axis)
      below = LessOrEqual(r, rows) square = Where(below, nothing, lowest) a = Unsqueeze(new, zero_axis) b = Unsqueeze(total, zero_axis)
      wide = Concat <axis = 0> (a, b) bias = Expand(square, wide) masked = Add(scores, bias)"""
    assert worst(decoder(text), tmp_path, layout, 1) <= CLOSE


def test_a_router_is_no_attention() -> None:
    """What a Softmax over experts makes reaches the products of attention by its shape alone, or through other products."""
    graph = model("""g (int64[B,S] ids, float[B,1,P,2] c0, float[B,1,P,2] c1)
      => (float[B,1,R,2] d0, float[B,1,R,2] d1, float[B,1,S,3] scores)
      <float[3,2] table = {1,2,3,4,5,6}, float[2,3] head = {1,2,3,4,5,6}, float[2,2] square = {1,2,3,4},
       int64[1] nil = {0}, int64[1] one = {1}, int64[1] ones = {1}, int64[1] two = {2}, int64[1] far = {99}>
    {
      e = Gather(table, ids) routes = MatMul(e, head) shares = Softmax(routes) best, at = TopK(shares, one) routed = Mul(e, best)
      w = MatMul(routed, square) x = Unsqueeze(w, one) d0 = Concat <axis = 2> (c0, x) d1 = Concat <axis = 2> (c1, x)
      sizes = Shape(shares) three = Slice(sizes, two, far) split = Concat <axis = 0> (ones, ones, three) joined = Slice(split, nil, two)
      turned = Transpose <perm = [0,1,3,2]> (d0) all = Shape(turned) firsts = Slice(all, nil, two) lasts = Slice(all, two, far)
      none = Sub(joined, joined) same = Add(firsts, none) shape = Concat <axis = 0> (same, lasts) t = Reshape(turned, shape)
      s = MatMul(x, t) p = Softmax(s) y = MatMul(p, d1) scores = MatMul(y, head)
    }""")
    assert [(pair.part, pair.past.name) for pair in decoder_io(graph).pairs] == [("key", "c0"), ("value", "c1")]


def test_tokens_gathered_by_an_expert_are_refused_by_name() -> None:
    """Shapes behind what is scattered back are known, so that the node whose shape follows the content is the one that is named."""
    chosen = """high = Greater(words, nothing) [choose] at = NonZero(high) pairs = Transpose <perm = [1,0]> (at) few = GatherND(words, pairs)
      twice = Add(few, few) moved = ScatterND(words, pairs, twice) like = Shape(moved) again = Reshape(moved, like)"""
    text = f"{chosen} embedded_at = Gather(places, position_ids) x = Add(again, embedded_at)"
    host = Host(made := decoder(ADDED, text), decoder_io(made))
    found = host.probe(Sizes(past=3, new=5)).specs
    assert next(spec for value, spec in found.items() if value.name == "moved").shape == (1, 5, 8)
    with refusal(UnsupportedError) as caught:
        split_model(decoder(ADDED, text), PLAN)
    assert caught.value.where == "choose"


@pytest.mark.parametrize("op_type", ["MoE", "QMoE", "QuickGelu", "RotaryEmbedding", "SkipSimplifiedLayerNormalization"])
def test_shapes_of_contributed_operators(op_type: str) -> None:
    made = decoder()
    x = ir.Value(name="x")
    node = ir.Node("com.microsoft", op_type, [x, ir.Value(name="unknown")], num_outputs=1)
    assert NodeEvaluator(made.opset_imports[""]).specs(node, {x: Spec(ir.DataType.FLOAT, (2, 3, 8))}, {}) == [
        Spec(ir.DataType.FLOAT, (2, 3, 8))
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_made_of_the_logits(layout: str, tmp_path: Path) -> None:
    """The best token as an output, first of all, and a copy of the logits: they are of one token in the static graphs."""
    made = decoder()
    logits = next(value for value in made.graph.outputs if value.name == "logits")
    best = make_node(
        "ArgMax", [logits], name="best", output="next", attributes=[ir.AttrInt64("axis", -1)], stands_for=[]
    )
    twice = make_node("Add", [logits, logits], name="twice", output="twice_logits", like=logits, stands_for=[])
    made.graph.extend([best, twice])
    best.outputs[0].type, best.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape(["B", "S", 1])
    twice.outputs[0].shape = logits.shape
    made.graph.outputs.insert(0, best.outputs[0])
    made.graph.outputs.append(twice.outputs[0])
    assert worst(made, tmp_path, layout, 1) <= CLOSE
    graph = split_model(made, PLAN).graphs[0].model.graph
    shapes = {value.name: str(value.shape) for value in graph.outputs}
    assert (shapes["next"], shapes["twice_logits"]) == ("[1,1,1]", f"[1,1,{VOCABULARY}]")


LONG = """most = ReduceMax <keepdims = 0> (position_ids) far = Greater(most, limit) f = Where(far, slow, frequencies)
  p = Cast <to = 1> (position_ids) column = Unsqueeze(p, last_axis) angles = MatMul(column, f) c = Cos(angles) x = Mul(words, c)"""


@pytest.mark.parametrize(("context", "is_told"), [(21, False), (22, True), (200, True)])
def test_a_rotation_for_long_texts(context: int, is_told: bool) -> None:
    """Beyond position 20 all tokens of a run are rotated otherwise, those in the cache are not: that is said."""
    told: list[str] = []
    plan = SplitPlan(specializations=(Specialization.of(1, 4, context),))
    split_model(decoder(ADDED, LONG, more=MORE), plan, warn=told.append)
    assert ["reaches position 21" in text and "a context of 21 is exact" in text for text in told] == [True] * is_told


def test_activations_quantized_together() -> None:
    text = "i, s, z = DynamicQuantizeLinear(words) w = DequantizeLinear(i, s, z) at = Gather(places, position_ids) x = Add(w, at)"
    told: list[str] = []
    split_model(decoder(ADDED, text), PLAN, warn=told.append)
    assert ["quantizes all tokens of a run by one scale" in text for text in told] == [True]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_quantized_table_of_words(layout: str, tmp_path: Path) -> None:
    """Ids choose rows of integers, which become floats behind."""
    made = decoder()
    node = next(node for node in made.graph if node.op_type == "Gather" and node.outputs[0].name == "words")
    integers = np.random.default_rng(3).integers(-100, 100, (VOCABULARY, 8)).astype(np.int8)
    table = new_constant(made.graph, Namer(made), "integers", integers)
    scale = new_constant(made.graph, Namer(made), "scale", np.array(0.01, np.float32))
    node.replace_input_with(0, table)
    words, node.outputs[0].name = node.outputs[0], "chosen"
    widened = make_node("DequantizeLinear", [words, scale], name="widen", output="words", stands_for=[node])
    words.replace_all_uses_with(widened.outputs[0])
    widened.replace_input_with(0, words)
    made.graph.insert_after(node, widened)
    assert decoder_io(made).ids.name == "input_ids"
    assert worst(made, tmp_path, layout, 1) <= CLOSE


#: Scores as exporters lay them out: groups of heads apart, heads before the batch; both have as many heads as the batch has rows.
APART = {
    "groups": ("Unsqueeze(scores, two_axis)", "Squeeze(added, two_axis)"),
    "heads first": ("Transpose <perm = [1, 0, 2, 3]> (scores)", "Transpose <perm = [1, 0, 2, 3]> (added)"),
    "groups, heads first": (
        "Transpose <perm = [2, 0, 1, 3, 4]> (spread)",
        "Transpose <perm = [1, 2, 0, 3, 4]> (added)",
    ),
    "heads first, groups": (
        "Transpose <perm = [1, 0, 2, 3, 4]> (spread)",
        "Transpose <perm = [1, 0, 2, 3, 4]> (added)",
    ),
}


@pytest.mark.product(cover=("name", "layout", "mask"), extra=2)
@pytest.mark.parametrize("mask", ["input", "graph"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", APART)
def test_scores_of_any_layout(name: str, layout: str, mask: str, tmp_path: Path) -> None:
    """Each row of a batch is hidden what its own mask hides: the batch is looked for."""
    there, back = APART[name]
    text = f"spread = Unsqueeze(scores, two_axis) laid = {there} bias = Where(is_causal, nothing, lowest) added = Add(laid, bias) "
    back = f"back = {back} masked = Squeeze(back, two_axis)" if "spread" in there else f"masked = {back}"
    assert worst(decoder(CAUSAL + text + back, more=MORE), tmp_path, layout, 2, mask=mask) <= CLOSE


@pytest.mark.product(cover=("order", "rows"))
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("order", ["[2, 0, 1, 3]", "[0, 2, 1, 3]"])
def test_scatter_nd_along_any_axis(order: str, rows: int, tmp_path: Path) -> None:
    """Caches [past, batch, heads, size] and [batch, past, heads, size]."""
    perm = [int(n) for n in order.strip("[]").split(",")]
    back = [perm.index(axis) for axis in range(4)]
    text = "".join(
        f"""turned_{part} = Transpose <perm = {order}> ({part[0]}) present_{part} = Concat <axis = {perm.index(2)}> (past_{part}, turned_{part})
        whole_{part} = Transpose <perm = {back}> (present_{part}) """
        for part in ("key", "value")
    )
    more = "keys_turned = Transpose <perm = [0, 1, 3, 2]> (whole_key) products = MatMul(q, keys_turned) scores = Mul(products, half) "
    last = " weights = Softmax <axis = -1> (masked) heads = MatMul(weights, whole_value)"
    mask = ADDED.replace("(past_shape, two)", f"(past_shape, {('zero', 'one')[perm.index(2)]})")
    made = decoder(attention=text + more + mask + last, joins=False)
    for value in [*made.graph.inputs, *made.graph.outputs]:
        if value.name.startswith(("past_", "present_")):
            sizes = list(value.shape)
            value.shape = ir.Shape([sizes[axis] for axis in perm])
    assert worst(made, tmp_path, "in-place", rows, scatter="scatter-nd") <= CLOSE


F, B = ir.DataType.FLOAT, ir.DataType.UINT8
#: Operator → attributes, its inputs, its output.
PACKED: dict[str, tuple[dict[str, int], list[Spec], Spec]] = {
    "MatMulNBits": ({"N": 5}, [Spec(F, (2, 3, 8)), Spec(B, (5, 1, 4))], Spec(F, (2, 3, 5))),
    "MatMulBnb4": ({"N": 5}, [Spec(F, (2, 3, 8)), Spec(B, (20,))], Spec(F, (2, 3, 5))),
    "GatherBlockQuantized": (
        {"bits": 4}, [Spec(B, (11, 4)), Spec(ir.DataType.INT64, (2, 3)), Spec(F, (11, 1))], Spec(F, (2, 3, 8)),
    ),
    "DynamicQuantizeMatMul": ({}, [Spec(F, (2, 3, 8)), Spec(B, (8, 5)), Spec(F, (5,))], Spec(F, (2, 3, 5))),
    "MatMulIntegerToFloat": ({}, [Spec(B, (2, 3, 8)), Spec(B, (8, 5)), Spec(F, ())], Spec(F, (2, 3, 5))),
    "DequantizeLinear": ({}, [Spec(B, (2, 3)), Spec(F, ())], Spec(F, (2, 3))),
    "QuantizeLinear": ({}, [Spec(F, (2, 3)), Spec(F, ())], Spec(B, (2, 3))),
}  # fmt: skip


@pytest.mark.parametrize("op_type", PACKED)
def test_shapes_of_quantized_operators(op_type: str) -> None:
    attributes, specs, expected = PACKED[op_type]
    inputs = [ir.Value(name=f"x{number}") for number in range(len(specs))]
    given = [ir.AttrInt64(name, number) for name, number in attributes.items()]
    node = ir.Node("com.microsoft", op_type, inputs, attributes=given, num_outputs=1)
    assert NodeEvaluator(decoder().opset_imports[""]).specs(node, dict(zip(inputs, specs, strict=True)), {}) == [
        expected
    ]
