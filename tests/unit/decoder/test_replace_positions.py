"""Positions from everywhere become one input; what still follows the size of the cache is refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.decoder.look.host_boundary import frozen_positions, shared_positions
from qdq_passes.decoder.look.host_region import Host
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.runtime.session import open_session
from tests.cases.small_decoders import ADDED, IDS, MASK, POSITIONS, decoder, difference, feed, weight
from tests.golden_messages.refusal import refusal

#: Additions of the same numbers in the same order.
EXACT = 0.0
PIPELINE = "replace-attention-mask,replace-positions"
MORE = {
    "all": np.array([2**62]), "frequencies": weight("frequencies", 1, 8), "slow": weight("slow", 1, 8), "limit": np.array(20),
    "both": np.array([0, 1]), "row_axis": np.array([1]), "first_axes": np.array([0, 1]), "outer_axes": np.array([0, 2]), "two_axis": np.array([2]),
    "later_axes": np.array([1, 2]),
}  # fmt: skip
SIZES = """p_shape = Shape(past_key) p_size = Gather <axis = 0> (p_shape, two) i_shape = Shape(input_ids)
  i_size = Gather <axis = 0> (i_shape, one) t_size = Add(p_size, i_size)"""
RANGE = SIZES + " spots = Range(p_size, t_size, one)"
TABLE = "at = Gather(places, {}) x = Add(words, at)"
#: Name → what makes ``x``, the inputs, what is replaced, whether each row has its own positions.
SOURCES: dict[str, tuple[str, str, str, bool]] = {
    "range": (RANGE + TABLE.format("spots"), f"{IDS}, {MASK}", "spots", True),
    "range, two dimensions": (
        RANGE + " rows = Unsqueeze(spots, zero_axis) " + TABLE.format("rows"), f"{IDS}, {MASK}", "rows", True,
    ),
    "range, expanded": (
        RANGE + """ rows = Unsqueeze(spots, zero_axis) wide = Expand(rows, i_shape) """ + TABLE.format("wide"),
        f"{IDS}, {MASK}", "rows", True,
    ),
    "float range": (
        SIZES + """ a = Cast <to = 1> (p_size) b = Cast <to = 1> (t_size) spots = Range(a, b, unit)
        rows = Unsqueeze(spots, zero_axis) columns = Unsqueeze(rows, last_axis) angles = MatMul(columns, frequencies)
        c = Cos(angles) x = Mul(words, c)""",
        f"{IDS}, {MASK}", "rows", True,
    ),
    "outer product": (
        RANGE + """ f = Cast <to = 1> (spots) column = Unsqueeze(f, one_axis) angles = MatMul(column, frequencies) c = Cos(angles)
        x = Mul(words, c)""",
        f"{IDS}, {MASK}", "spots", True,
    ),
    "outer product, four dimensions": (
        RANGE + """ f = Cast <to = 1> (spots) column = Unsqueeze(f, one_axis) angles = MatMul(column, frequencies) c = Cos(angles)
        c4 = Unsqueeze(c, first_axes) w4 = Unsqueeze(words, one_axis) x4 = Mul(w4, c4) x = Squeeze(x4, one_axis)""",
        f"{IDS}, {MASK}", "spots", True,
    ),
    "range, expanded at once": (
        RANGE + """ b_size = Gather <axis = 0> (i_shape, zero_axis) shape = Concat <axis = 0> (b_size, one_axis)
        wide = Expand(spots, shape) """ + TABLE.format("wide"), f"{IDS}, {MASK}", "wide", True,
    ),
    "range, three dimensions": (
        RANGE + """ f = Cast <to = 1> (spots) columns = Unsqueeze(f, outer_axes) angles = MatMul(columns, frequencies) c = Cos(angles)
        x = Mul(words, c)""",
        f"{IDS}, {MASK}", "columns", True,
    ),
    "a sum over the mask": (
        SIZES + """ sums = CumSum(attention_mask, one) kept = Mul(sums, attention_mask) at0 = Sub(kept, one)
        start = Unsqueeze(p_size, zero_axis) new = Slice(at0, start, all, one_axis) offset = Add(new, two) """
        + TABLE.format("offset"),
        f"{IDS}, {MASK}", "new", True,
    ),
    "a table cut": (
        SIZES + """ a = Unsqueeze(p_size, zero_axis) b = Unsqueeze(t_size, zero_axis) cut = Slice(places, a, b, zero_axis)
        x = Add(words, cut)""",
        f"{IDS}, {MASK}", "cut", True,
    ),
    "a table cut, two dimensions": (
        SIZES + """ a = Unsqueeze(p_size, zero_axis) b = Unsqueeze(t_size, zero_axis) cut = Slice(places, a, b, zero_axis)
        rows = Unsqueeze(cut, zero_axis) x = Add(words, rows)""",
        f"{IDS}, {MASK}", "rows", True,
    ),
    "a table of four dimensions cut": (
        SIZES + """ a = Unsqueeze(p_size, zero_axis) b = Unsqueeze(t_size, zero_axis) deep = Unsqueeze(places, no_axes)
        cut = Slice(deep, a, b, two_axis) w4 = Unsqueeze(words, one_axis) x4 = Add(w4, cut) x = Squeeze(x4, one_axis)""",
        f"{IDS}, {MASK}", "cut", True,
    ),
    "the sequence first": (
        RANGE + """ f = Cast <to = 1> (spots) column = Unsqueeze(f, later_axes) angles = Mul(column, frequencies) c = Cos(angles)
        turned_words = Transpose <perm = [1, 0, 2]> (words) turned_x = Mul(turned_words, c) x = Transpose <perm = [1, 0, 2]> (turned_x)""",
        f"{IDS}, {MASK}", "spots", False,
    ),
    "cache_position": (TABLE.format("cache_position"), f"{IDS}, {MASK}, int64[S] cache_position", "cache_position", True),
    "int32": (TABLE.format("position_ids"), f"{IDS}, {MASK}, int32[B,S] position_ids", "position_ids_as_exported", True),
    "two inputs": (
        "a = Gather(places, cache_position) b = Gather(places, position_ids) c = Add(words, a) x = Add(c, b)",
        f"{IDS}, {MASK}, {POSITIONS}, int64[S] cache_position", "cache_position", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name: str) -> None:
    text, inputs, replaced, per_row = SOURCES[name]
    before = decoder(ADDED, text, inputs=inputs, more=MORE)
    report = run_pipeline(copy_model(before), PIPELINE)
    graph = report.model.graph
    assert [v.name for v in graph.inputs if "position" in (v.name or "") or v.name == "padding_mask"] == [
        "position_ids"
    ]
    assert [c.where for c in report.changes if c.kind == "replace" and "position_ids" in c.because] == [replaced]
    for batch, past, new in ((1, 7, 3), (2, 7, 3), (1, 0, 5), (1, 50, 1)):
        assert difference(before, report.model, batch=batch, past=past, new=new) == EXACT
    io = decoder_io(report.model)
    assert io.positions is not None
    host = Host(report.model, io)
    assert frozen_positions(host, io.positions) == []
    assert (shared_positions(host, io.positions) is None) == per_row


def test_later_positions_of_the_sizes_of_what_earlier_ones_made() -> None:
    """Positions of two layers: those of the second do not follow from the first's, whose shape alone they read."""
    rows = "rows = Unsqueeze(spots, zero_axis) at = Gather(places, rows) x0 = Add(words, at) shape0 = Shape(x0) "
    more = "size0 = Gather <axis = 0> (shape0, one) t0 = Add(p_size, size0) spots1 = Range(p_size, t0, one) "
    last = "rows1 = Unsqueeze(spots1, zero_axis) at1 = Gather(places, rows1) x = Add(x0, at1)"
    before = decoder(positions=f"{RANGE} {rows}{more}{last}", inputs=f"{IDS}, {MASK}", more=MORE)
    report = run_pipeline(copy_model(before), PIPELINE)
    assert {change.where for change in report.changes if change.kind == "replace"} >= {"rows", "rows1"}
    assert difference(before, report.model) == EXACT


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source[3]])
def test_each_row_has_its_own_positions(name: str) -> None:
    """Two rows whose positions differ are, each, what they are alone."""
    after = run_pipeline(decoder(ADDED, SOURCES[name][0], inputs=SOURCES[name][1], more=MORE), PIPELINE).model
    session = open_session(after)
    both = feed(session, batch=2, past=7, new=3)
    together = session.run(both)["logits"]
    both["position_ids"][1] -= 2
    logits = session.run(both)["logits"]
    assert np.array_equal(logits[0], together[0])
    assert not np.allclose(logits[1], together[1])
    for row in range(2):
        alone = session.run({name: array[row : row + 1] for name, array in both.items()})["logits"]
        assert np.array_equal(logits[row : row + 1], alone)


def test_a_batch_of_a_fixed_size() -> None:
    """Three rows: each its own; one row: nothing to tell apart."""
    for batch, per_row in ((3, True), (1, True)):
        model = decoder(ADDED, SOURCES["range"][0], inputs=f"{IDS}, {MASK}")
        for value in (*model.graph.inputs, *model.graph.outputs):
            assert value.shape is not None
            value.shape = ir.Shape([batch, *list(value.shape)[1:]])
        after = run_pipeline(copy_model(model), PIPELINE).model
        assert difference(model, after, batch=batch) == EXACT
        io = decoder_io(after)
        assert io.positions is not None
        assert (shared_positions(Host(after, io), io.positions) is None) == per_row


def test_a_rotation_that_depends_on_how_many_tokens_there_are() -> None:
    """Frequencies chosen by length > 20: by the largest position then, and the branch stays."""
    text = (
        RANGE
        + """ is_long = Greater(t_size, limit)
      f = If(is_long) <then_branch = a () => (float[1,8] f1) { f1 = Identity(frequencies) },
        else_branch = b () => (float[1,8] f2) { f2 = Identity(slow) }>
      n = Cast <to = 1> (spots) column = Unsqueeze(n, one_axis) angles = MatMul(column, f) c = Cos(angles) x = Mul(words, c)"""
    )
    before = decoder(ADDED, text, inputs=f"{IDS}, {MASK}", more=MORE)
    report = run_pipeline(copy_model(before), PIPELINE)
    assert [c.because for c in report.changes if c.kind == "edit"] == [
        "compares with the largest of position_ids, not with the size of the cache",
        "reads rows of a batch of position_ids",
    ]
    for past in (7, 17, 18, 30):
        assert difference(before, report.model, past=past) == EXACT


def test_an_input_of_positions_is_left_alone() -> None:
    report = run_pipeline(decoder(), PIPELINE)
    assert [str(c) for c in report.changes if c.is_skip] == ["skip g: nothing but an input of positions tells them"]


def test_what_else_follows_the_cache_is_refused() -> None:
    text = SIZES + " n = Cast <to = 1> (t_size) [scale] x = Mul(words, n)"
    with refusal(UnsupportedError):
        run_pipeline(decoder(ADDED, text, inputs=f"{IDS}, {MASK}"), PIPELINE)


def test_what_is_computed_of_positions_follows_them() -> None:
    text = RANGE + " odd = Mul(spots, spots) few = Mod(odd, three) at = Gather(places, few) x = Add(words, at)"
    before = decoder(ADDED, text, inputs=f"{IDS}, {MASK}")
    assert difference(before, run_pipeline(copy_model(before), PIPELINE).model) == EXACT


def test_positions_that_are_not_replaced_are_seen() -> None:
    """The guard alone, on the graph as exported: positions of a Range would be constants under a static cache."""
    model = run_pipeline(decoder(ADDED, SOURCES["range"][0], inputs=f"{IDS}, {MASK}"), "replace-attention-mask").model
    found = frozen_positions(Host(model, decoder_io(model)), None)
    assert [(node.op_type, value.name) for node, value in found] == [("Add", "at")]
