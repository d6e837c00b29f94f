"""Masks in every form: which are told, which are refused, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.decoder.look.host_region import Host
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.masks import masked_attentions
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.pipeline import run_pipeline

from tests.cases.small_decoders import ADDED, CAUSAL, IDS, MASK, POSITIONS, decoder, difference
from tests.golden_messages.refusal import refusal

#: Masks are exact: hidden keys have weight 0 under -1e9 as under the lowest float, seen ones get 0 added.
EXACT = 0.0
BUFFER = {
    "buffer": np.tril(np.ones((1, 1, 64, 64), np.bool_)), "both_axes": np.array([2, 3]), "middle": np.array([1, 2]),
    "eight": np.array(8), "forty": np.array(40), "huge": np.array(1e9, np.float32), "vast": np.array(5000), "minus_vast": np.array(-5000), "first_axes": np.array([0, 1]),
    "near_buffer": np.tri(200, dtype=np.bool_) & ~np.tri(200, k=-80, dtype=np.bool_),
}  # fmt: skip
PADDED = "as_bool = Cast <to = 9> (attention_mask) wide = Unsqueeze(as_bool, middle) seen = And(is_causal, wide)"
WINDOW = "oldest = Sub(queries, three) is_near = LessOrEqual(oldest, keys) in_window = And(is_causal, is_near)"
FLAT = """long = Unsqueeze(sequence, zero_axis) wide = Unsqueeze(total, zero_axis) flat = Concat <axis = 0> (last_axis, long, wide)
  shape = Shape(scores) merged = Reshape(scores, flat)"""
#: All queries against all keys, [T, T].
SQUARE = CAUSAL + "all_queries = Unsqueeze(keys, one_axis) below = LessOrEqual(keys, all_queries)"
#: Name → what makes ``masked``, and the window.
FORMS: dict[str, tuple[str, int]] = {
    "add": (ADDED, 0),
    "add on the left": (CAUSAL + "bias = Where(is_causal, nothing, low) masked = Add(bias, scores)", 0),
    "where": (CAUSAL + "masked = Where(is_causal, scores, lowest)", 0),
    "where, inverted, -inf": (CAUSAL + "hidden = Not(is_causal) masked = Where(hidden, minus_inf, scores)", 0),
    "buffer and padding": (
        CAUSAL + """first = Unsqueeze(past, zero_axis) last = Unsqueeze(total, zero_axis) starts = Concat <axis = 0> (first, zero_axis)
        ends = Concat <axis = 0> (last, last) part = Slice(buffer, starts, ends, both_axes) causal = Where(part, scores, low)
        kept = Cast <to = 1> (attention_mask) gone = Sub(unit, kept) bias = Mul(gone, lowest) wide = Unsqueeze(bias, middle)
        masked = Add(causal, wide)""",
        0,
    ),
    "multiplied and subtracted": (
        CAUSAL + """kept = Cast <to = 1> (is_causal) zeroed = Mul(scores, kept) gone = Sub(unit, kept) much = Mul(gone, huge)
        masked = Sub(zeroed, much)""",
        0,
    ),
    "window": (CAUSAL + WINDOW + " masked = Where(in_window, scores, lowest)", 4),
    "window and causal apart": (
        CAUSAL + WINDOW + " near = Where(is_near, scores, lowest) bias = Where(is_causal, nothing, lowest) masked = Add(near, bias)",
        4,
    ),
    "long window": (
        CAUSAL + "d = Sub(queries, forty) near = Greater(keys, d) both = And(is_causal, near) masked = Where(both, scores, low)", 40,
    ),
    "window beyond what is probed, of a square": (
        SQUARE + "d = Sub(all_queries, vast) near = Greater(keys, d) both = And(below, near) rows = Gather(both, steps) "
        "masked = Where(rows, scores, low)",
        5000,
    ),
    "window beyond what is probed, as the oldest key": (
        SQUARE + "d = Add(all_queries, minus_vast) near = LessOrEqual(d, keys) both = And(below, near) rows = Gather(both, steps) "
        "masked = Where(rows, scores, low)",
        5001,
    ),
    "a large number that is no window": (
        SQUARE + "n = Min(total, vast) few = Range(zero, n, one) near = Less(few, n) both = And(below, near) rows = Gather(both, steps) "
        "masked = Where(rows, scores, low)",
        0,
    ),
    "window in a buffer": (
        CAUSAL + """first = Unsqueeze(past, zero_axis) last = Unsqueeze(total, zero_axis) starts = Concat <axis = 0> (first, zero_axis)
        ends = Concat <axis = 0> (last, last) part = Slice(near_buffer, starts, ends, first_axes) masked = Where(part, scores, low)""",
        80,
    ),
    "heads behind the sequence": (
        CAUSAL + """back = Transpose <perm = [0, 2, 1, 3]> (scores) tall = Unsqueeze(is_causal, one_axis)
        hidden = Where(tall, back, lowest) masked = Transpose <perm = [0, 2, 1, 3]> (hidden)""",
        0,
    ),
    "heads behind the sequence, added in a window": (
        CAUSAL + WINDOW + """ back = Transpose <perm = [0, 2, 1, 3]> (scores) bias = Where(in_window, nothing, lowest)
        tall = Unsqueeze(bias, one_axis) more = Add(back, tall) masked = Transpose <perm = [0, 2, 1, 3]> (more)""",
        4,
    ),
    "softcap first": ("small = Tanh(scores) capped = Mul(small, half)" + ADDED.replace("Add(scores", "Add(capped"), 0),
    "batch and heads as one axis": (
        CAUSAL + FLAT + " bias = Where(is_causal, nothing, lowest) added = Add(merged, bias) masked = Reshape(added, shape)", 0,
    ),
    "float16": (
        CAUSAL + """short = Cast <to = 10> (scores) l = Cast <to = 10> (low) n = Cast <to = 10> (nothing)
        bias = Where(is_causal, n, l) added = Add(short, bias) masked = Cast <to = 1> (added)""",
        0,
    ),
    "double": (
        CAUSAL + """long = Cast <to = 11> (scores) l = Cast <to = 11> (low) n = Cast <to = 11> (nothing)
        bias = Where(is_causal, n, l) added = Add(long, bias) masked = Cast <to = 1> (added)""",
        0,
    ),
}  # fmt: skip


@pytest.mark.product(cover=("name", "options"), extra=4)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("options", ["", "{form=graph}", "{form=graph layout=slide}"])
def test_forms(name: str, options: str) -> None:
    text, window = FORMS[name]
    before = decoder(text, more=BUFFER)
    report = run_pipeline(copy_model(before), f"replace-attention-mask{options}")
    masks = [v for v in report.model.graph.inputs if (v.name or "").startswith("attention_mask")]
    if options:
        assert masks == []
    else:
        dtype = ir.DataType.FLOAT16 if name == "float16" else ir.DataType.FLOAT
        wanted = f"attention_mask_w{window}" if window else "attention_mask"
        assert [(v.name, v.dtype, str(v.shape)) for v in masks] == [(wanted, dtype, "[B,1,S,P + S]")]
    kind = f"a causal window of {window}" if window else "causal"
    assert [c.because.partition(";")[0] for c in report.changes if c.where == "softmax"] == [f"its mask is {kind}"]
    for sizes in ((1, 7, 3), (2, 7, 3), (1, 0, 5), (1, 50, 1)):
        batch, past, new = sizes
        assert difference(before, report.model, batch=batch, past=past, new=new) == EXACT


def test_attentions_share_their_mask_and_dead_nodes_go() -> None:
    report = run_pipeline(decoder(), "replace-attention-mask")
    kinds = {node.op_type for node in report.model.graph}
    assert not kinds & {"Range", "LessOrEqual", "Where", "Shape"}
    assert [v.name for v in report.model.graph.inputs] == [
        "input_ids", "attention_mask", "position_ids", "past_key", "past_value",
    ]  # fmt: skip


def test_padding_is_honoured_by_both() -> None:
    before = decoder(CAUSAL + PADDED + " masked = Where(seen, scores, lowest)", more=BUFFER)
    after = run_pipeline(copy_model(before), "replace-attention-mask").model
    for pads in (0, 2):
        assert difference(before, after, batch=2, pads=pads) == EXACT
    ignoring = decoder()
    for model, expected in ((before, "honoured"), (ignoring, "ignored")):
        (found,) = masked_attentions(Host(model, decoder_io(model)))
        assert found.padding == expected


def test_a_mask_upon_a_mask() -> None:
    """The type of scores that are padded already is found although the input of padding loses its name to the new mask."""
    text = (
        CAUSAL
        + PADDED
        + "padded = Where(seen, scores, lowest) rounded = Round(padded) bias = Where(is_causal, nothing, lowest) "
    )
    before = decoder(text + "masked = Add(rounded, bias)", more=BUFFER)
    after = run_pipeline(copy_model(before), "replace-attention-mask").model
    assert difference(before, after, batch=2, pads=2) == EXACT


OPERATOR = "heads = Attention{attributes}(q, present_key, present_value, {mask})"


@pytest.mark.parametrize(
    ("attention", "inputs"),
    [
        (CAUSAL + OPERATOR.format(attributes="", mask="is_causal"), f"{IDS}, {MASK}, {POSITIONS}"),
        (CAUSAL + "bias = Where(is_causal, nothing, lowest) " + OPERATOR.format(attributes="", mask="bias"), f"{IDS}, {POSITIONS}"),
        (OPERATOR.format(attributes="", mask="mask"), f"{IDS}, float[B,1,S,T] mask, {POSITIONS}"),
        (OPERATOR.format(attributes="", mask="mask"), f"{IDS}, bool[B,1,S,T] mask, {POSITIONS}"),
    ],
)  # fmt: skip
def test_attention_of_one_node(attention: str, inputs: str) -> None:
    before = decoder(attention=attention, inputs=inputs, opset=23)
    if "float[B,1,S,T] mask" in inputs or "bool[B,1,S,T] mask" in inputs:
        before.graph.inputs[1].name = "attention_mask"  # the feed of a mask of rank 4
    after = run_pipeline(copy_model(before), "replace-attention-mask").model
    (node,) = (node for node in after.graph if node.op_type == "Attention")
    mask = node.inputs[3]
    assert mask is not None
    assert (mask.name, mask.dtype, mask.is_graph_input()) == ("attention_mask", ir.DataType.FLOAT, True)
    for batch, past, new in ((1, 7, 3), (2, 4, 2)):
        assert difference(before, after, batch=batch, past=past, new=new) == EXACT


def test_an_inner_cache_shifts_the_causal_attribute() -> None:
    """is_causal means k ≤ past + q with the cache inside, and k ≤ q where the operator does not know of a past."""
    inside = "heads, present_key2, present_value2 = Attention <is_causal = 1> (q, k, v, , past_key, past_value)"
    outside = "heads = Attention <is_causal = 1> (q, present_key, present_value)"
    with refusal(UnsupportedError):
        run_pipeline(decoder(attention=outside, opset=23), "replace-attention-mask")
    before = decoder(attention=inside, opset=23)
    report = run_pipeline(copy_model(before), "replace-attention-mask")
    (node,) = (node for node in report.model.graph if node.op_type == "Attention")
    assert "is_causal" not in node.attributes
    assert difference(before, report.model) == EXACT


def test_both_inputs_of_multi_head_attention() -> None:
    """A mask of padding and one of scores become one."""
    attention = (
        CAUSAL
        + """bias = Where(is_causal, nothing, lowest) wide = Unsqueeze(bias, no_axes)
      flat_q = Reshape(xq, join_heads) kt = Transpose <perm = [0, 2, 1, 3]> (present_key) kf = Reshape(kt, join_heads)
      vt = Transpose <perm = [0, 2, 1, 3]> (present_value) vf = Reshape(vt, join_heads) pad = Cast <to = 6> (attention_mask)
      flat = com.microsoft.MultiHeadAttention <num_heads = 2> (flat_q, kf, vf, , pad, wide)
      cut = Reshape(flat, split_heads) heads = Transpose <perm = [0, 2, 1, 3]> (cut)"""
    )
    before = decoder(attention=attention)
    after = run_pipeline(copy_model(before), "replace-attention-mask").model
    (node,) = (node for node in after.graph if node.op_type == "MultiHeadAttention")
    assert [v.name if v is not None else None for v in node.inputs[4:]] == [None, "attention_mask"]
    assert difference(before, after) == EXACT


#: What is refused: name → text.
REFUSED = {
    "alibi": (
        CAUSAL + "far = Cast <to = 1> (keys) slope = Mul(far, half) [alibi] biased = Add(scores, slope)"
        + ADDED.removeprefix(CAUSAL).replace("Add(scores", "Add(biased")
    ),
    "both ways": (
        "kept = Cast <to = 1> (attention_mask) gone = Sub(unit, kept) bias = Mul(gone, lowest) wide = Unsqueeze(bias, middle) "
        "[pads] masked = Add(scores, wide)"
    ),
    "nothing hidden": "masked = Identity(scores)",
    "prefix": CAUSAL + "early = Less(keys, three) seen = Or(early, is_causal) [prefix] masked = Where(seen, scores, low)",
    "chunks": (
        CAUSAL + "a = Div(keys, eight) b = Div(queries, eight) same = Equal(a, b) seen = And(same, is_causal) "
        "[chunk] masked = Where(seen, scores, low)"
    ),
    "long chunks": (
        SQUARE + "a = Div(keys, vast) b = Div(all_queries, vast) same = Equal(a, b) seen = And(same, below) rows = Gather(seen, steps) "
        "[chunk] masked = Where(rows, scores, low)"
    ),
    "queries behind the keys": (
        CAUSAL + "back = Transpose <perm = [0, 1, 3, 2]> (scores) wide = Transpose(is_causal) [turn] more = Where(wide, back, lowest) "
        "masked = Transpose <perm = [0, 1, 3, 2]> (more)"
    ),
    "softcap last": ADDED.replace("masked =", "added =") + " masked = Tanh(added)",
    "of ids": (
        CAUSAL + "pad = Equal(input_ids, zero) far = Cast <to = 1> (pad) much = Mul(far, lowest) wide = Unsqueeze(much, middle) "
        "tall = Transpose <perm = [0, 1, 3, 2]> (wide) bias = Where(is_causal, nothing, low) added = Add(scores, bias) "
        "[of_ids] masked = Add(added, tall)"
    ),
    "weak": CAUSAL + "[weak] masked = Where(is_causal, scores, nothing)",
    "scaled": (
        CAUSAL + "kept = Cast <to = 1> (is_causal) more = Add(kept, unit) [scale] scaled = Mul(scores, more) "
        + ADDED.removeprefix(CAUSAL).replace("Add(scores", "Add(scaled")
    ),
    "padding that hides more": (
        CAUSAL + "pads = ReduceMin <keepdims = 0> (attention_mask) some = Cast <to = 9> (pads) seen = And(is_causal, some) "
        "[some] masked = Where(seen, scores, low)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with refusal(UnsupportedError):
        run_pipeline(decoder(REFUSED[name], more=BUFFER), "replace-attention-mask")


@pytest.mark.parametrize("text", [ADDED, FORMS["heads behind the sequence"][0]])
def test_a_second_run_does_nothing(text: str) -> None:
    once = run_pipeline(decoder(text), "replace-attention-mask").model
    changes = run_pipeline(once, "replace-attention-mask").changes
    assert [str(change) for change in changes] == ["skip g: its masks are such inputs already"]


#: Attentions that make their masks themselves, in ways that are not those of a decoder: text.
OWN = {
    "a bias": (
        "flat, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2> "
        "(xq, xk, xv, past_key, past_value, lengths, total32, , , , far)"
    ),
    "later keys": (
        "flat, present_key, present_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2, causal = 0> "
        "(xq, xk, xv, past_key, past_value, lengths, total32)"
    ),
    "blocks": (
        "flat, present_key, present_value = com.microsoft.SparseAttention "
        "<num_heads = 2, kv_num_heads = 2, sparse_block_size = 16> "
        "(xq, xk, xv, past_key, past_value, lengths, lengths, total32, lengths)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_masks_of_their_own_are_refused(name: str) -> None:
    sides = "total32 = Cast <to = 6> (three) lengths = Cast <to = 6> (one_axis) far = Cast <to = 1> (no_axes) [group] "
    model = decoder(
        attention=sides + OWN[name] + " cut = Reshape(flat, split_heads) heads = Identity(cut)", joins=False
    )
    with refusal(UnsupportedError):
        run_pipeline(model, "replace-attention-mask")


def test_a_softmax_of_single_operators_is_refused() -> None:
    """Its mask would stay as it is, and be a constant under a static size of the cache."""
    attention = (
        ADDED.replace("scores,", "products,")
        + """ keys_turned = Transpose <perm = [0, 1, 3, 2]> (present_key) products = MatMul(q, keys_turned)
      powers = Exp(masked) sum = ReduceSum <keepdims = 1> (powers, last_axis) weights = Div(powers, sum)
      heads = MatMul(weights, present_value)"""
    )
    with refusal(UnsupportedError):
        run_pipeline(decoder(attention=attention), "replace-attention-mask")


def test_lengths_of_a_cache_in_place_are_refused() -> None:
    attention = "lengths = Gather(ids_shape, one_axis) ids_shape = Shape(input_ids) [told] heads = Attention(q, present_key, present_value, , , , lengths)"
    with refusal(UnsupportedError):
        run_pipeline(decoder(attention=attention, opset=24), "replace-attention-mask")
