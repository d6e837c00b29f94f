"""Decoders of one layer in ONNX text, with masks and positions as exporters spell them; and what they compute under onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from qdq_passes.decoder.look.record import HIDDEN, HIDDEN_FLOAT16

from qdqtool.runtime.session import Session, open_session
from tests.cases.small_models import Array, model, parsed

VOCABULARY, WIDTH, HEADS, SIZE = 11, 8, 2, 4
IDS, MASK, POSITIONS = "int64[B,S] input_ids", "int64[B,T] attention_mask", "int64[B,S] position_ids"
PASTS = f"float[B,{HEADS},P,{SIZE}] past_key, float[B,{HEADS},P,{SIZE}] past_value"
PRESENTS = f"float[B,{HEADS},R,{SIZE}] present_key, float[B,{HEADS},R,{SIZE}] present_value"

#: [1, 1, S, T]: keys up to the query, behind a past of any size; padding of attention_mask [B, T] besides.
CAUSAL = """
  ids_shape = Shape(input_ids) sequence = Gather <axis = 0> (ids_shape, one)
  past_shape = Shape(past_key) past = Gather <axis = 0> (past_shape, two)
  total = Add(past, sequence) keys = Range(zero, total, one) steps = Range(past, total, one)
  queries = Unsqueeze(steps, one_axis) is_causal = LessOrEqual(keys, queries)
"""
#: Adds 0 and the lowest float.
ADDED = CAUSAL + "[bias] bias = Where(is_causal, nothing, lowest) [mask] masked = Add(scores, bias)"
#: Learned positions, chosen by the input.
LEARNED = "embedded_at = Gather(places, position_ids) x = Add(words, embedded_at)"

CONSTANTS = {
    "zero": 0, "one": 1, "two": 2, "one_axis": [1], "zero_axis": [0], "split_heads": [0, 0, HEADS, SIZE],
    "join_heads": [0, 0, WIDTH], "minus": -1, "three": 3, "last_axis": [-1], "no_axes": [0, 1],
}  # fmt: skip
FLOATS = {
    "nothing": 0.0,
    "lowest": -3.4028234663852886e38,
    "half": 0.5,
    "low": -1e4,
    "unit": 1.0,
    "minus_inf": float("-inf"),
}


def weight(name: str, *shape: int) -> Array:
    """Numbers that depend on the name alone."""
    random = np.random.default_rng(sum(ord(c) * (k + 1) for k, c in enumerate(name)))
    return random.standard_normal(shape).astype(np.float32)


WEIGHTS: dict[str, tuple[int, ...]] = {
    "table": (VOCABULARY, WIDTH), "places": (64, WIDTH), "w_q": (WIDTH, WIDTH), "w_k": (WIDTH, WIDTH), "w_v": (WIDTH, WIDTH),
    "w_o": (WIDTH, WIDTH), "head": (WIDTH, VOCABULARY),
}  # fmt: skip


def decoder(
    mask: str = ADDED,
    positions: str = LEARNED,
    *,
    inputs: str = f"{IDS}, {MASK}, {POSITIONS}",
    attention: str = "",
    opset: int = 18,
    more: Mapping[str, Array] | None = None,
    joins: bool = True,
) -> ir.Model:
    """A decoder of one layer.

    Args:
        mask: makes ``masked`` of ``scores`` [B, heads, S, T].
        positions: makes ``x`` of ``words`` [B, S, width].
        inputs: all inputs but the cache.
        attention: makes ``heads`` [B, heads, S, size] of ``q``, ``present_key`` and ``present_value``, instead of ``mask``.
        opset: version of the operators.
        more: further constants.
        joins: a Concat makes ``present_key`` and ``present_value``; else ``attention`` does.
    """
    joined_rows = "[join_key] present_key = Concat <axis = 2> (past_key, k) [join_value] present_value = Concat <axis = -2> (past_value, v)"
    core = (
        attention
        or f"""
      keys_turned = Transpose <perm = [0, 1, 3, 2]> (present_key) products = MatMul(q, keys_turned) scores = Mul(products, half)
      {mask}
      [softmax] weights = Softmax <axis = -1> (masked) heads = MatMul(weights, present_value)"""
    )
    text = f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
    g ({inputs}, {PASTS}) => (float[B,S,{VOCABULARY}] logits, {PRESENTS})
    {{
      words = Gather(table, input_ids)
      {positions}
      xq = MatMul(x, w_q) xk = MatMul(x, w_k) xv = MatMul(x, w_v)
      sq = Reshape(xq, split_heads) sk = Reshape(xk, split_heads) sv = Reshape(xv, split_heads)
      q = Transpose <perm = [0, 2, 1, 3]> (sq) k = Transpose <perm = [0, 2, 1, 3]> (sk) v = Transpose <perm = [0, 2, 1, 3]> (sv)
      {joined_rows if joins else ""}
      {core}
      turned = Transpose <perm = [0, 2, 1, 3]> (heads) joined = Reshape(turned, join_heads)
      projected = MatMul(joined, w_o) stream = Add(projected, x) [lm_head] logits = MatMul(stream, head)
    }}"""
    graph = parsed(text).graph
    constants: dict[str, Array] = {name: weight(name, *shape) for name, shape in WEIGHTS.items()}
    constants |= {name: np.array(number, np.int64) for name, number in CONSTANTS.items()}
    constants |= {name: np.array(number, np.float32) for name, number in FLOATS.items()}
    constants |= dict(more or {})
    bodies = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    read = {name for graph in (graph, *bodies) for node in graph.node for name in node.input}
    return model(text, {name: array for name, array in constants.items() if name in read})


def feed(session: Session, *, batch: int = 1, past: int, new: int, pads: int = 0) -> dict[str, Array]:
    """Ids, caches, and masks and positions in the form that each input asks for; ``pads`` keys of the last row hold no token."""
    queries, keys = np.arange(past, past + new), np.arange(past + new)
    result: dict[str, Array] = {}
    for name in session.input_names:
        dtype, shape = session.input_dtypes[name], session.input_shapes[name]
        assert dtype is not None
        random = np.random.default_rng(sum(map(ord, name)) + batch)
        if name == "input_ids":
            array = random.integers(0, VOCABULARY, (batch, new))
        elif name.startswith("attention_mask") and len(shape) == 4:
            window = int(name.rpartition("_w")[2]) if "_w" in name else 0
            seen = (keys <= queries[:, None]) & ((keys > queries[:, None] - window) | (window == 0))
            seen = np.repeat(seen[None, None], batch, axis=0)
            seen[-1, ..., :pads] = False
            lowest = HIDDEN if dtype == np.float32 else HIDDEN_FLOAT16
            array = seen if dtype.kind == "b" else np.where(seen, 0, lowest)
        elif "mask" in name:
            array = np.ones((batch, past + new))
            array[-1, :pads] = 0
        elif "position" in name:
            array = np.repeat(queries[None], batch, axis=0) if len(shape) == 2 else queries
        else:
            sizes = [d if isinstance(d, int) else 1 for d in shape]
            sizes[0], sizes[2] = batch, past
            array = random.standard_normal(sizes)
        result[name] = array.astype(dtype)
    return result


def difference(
    before: ir.Model, after: ir.Model, *, batch: int = 1, past: int = 7, new: int = 3, pads: int = 0
) -> float:
    """Largest difference of any output, in units of that output's largest magnitude."""
    results = []
    for each in (before, after):
        session = open_session(each)
        results.append(session.run(feed(session, batch=batch, past=past, new=new, pads=pads)))
    assert list(results[0]) == list(results[1])
    return max(float(np.abs(a - results[1][name]).max() / np.abs(a).max()) for name, a in results[0].items())
