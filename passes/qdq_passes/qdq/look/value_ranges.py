"""Value ranges that the graph proves, without data: a Relu writes nothing below 0, a Softmax nothing outside of [0, 1]."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.operators.activations import clip_bounds
from qdq_passes.graph.uses import SHARING, has_body, is_standard
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.pairs import Pair, encoding_of, is_dequantize, is_quantize

Interval = tuple[float, float]
EVERYTHING: Interval = (-math.inf, math.inf)
#: Values that are looked at on the way up; beyond, nothing is known.
FARTHEST = 200

#: What an operator writes, whatever it reads. HardSwish has its minimum −3/8 at x = −3/2.
WRITES: dict[str, Interval] = {
    **dict.fromkeys(("Abs", "Exp", "ReduceL1", "ReduceL2", "Softplus", "Sqrt"), (0.0, math.inf)),
    **dict.fromkeys(("HardSigmoid", "Sigmoid", "Softmax"), (0.0, 1.0)),
    **dict.fromkeys(("Cos", "Erf", "Sin", "Softsign", "Tanh"), (-1.0, 1.0)),
    "HardSwish": (-0.375, math.inf),
    "LogSoftmax": (-math.inf, 0.0),
}

#: Operators that write values of their first input, or means of them (and of zeros).
WITHIN_INPUT = SHARING | {
    "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceMin",
}  # fmt: skip


def proven_range(value: ir.Value | None) -> Interval:
    """(low, high) between which every element of ``value`` lies, infinite where nothing is known.

    Pairs on the way count as exact: what they round is out by half a step at most. A body's inputs know nothing.
    """
    return _range(value, {})


def is_clamped_at_zero(pair: Pair, encoding: Encoding | None = None) -> bool:
    """Whether the zero point of ``pair`` (in ``encoding``, its own by default) does the work of a Relu: its range starts at 0,
    and what a node writes there may lie below. Before graph inputs no Relu stood."""
    encoding = pair.encoding if encoding is None else encoding
    producer = pair.source.producer() if pair.source is not None else None
    if encoding is None or pair.q is None or pair.q is pair.dq or pair.stored is not None:
        return False
    if (
        producer is None
        or has_body(producer)
        or not is_integer_type(encoding.dtype)
        or proven_range(pair.source)[0] >= 0
    ):
        return False
    return bool(np.all(real_range(encoding)[0] == 0))


def _range(value: ir.Value | None, known: dict[ir.Value, Interval]) -> Interval:
    producer = value.producer() if value is not None else None
    if value is None or producer is None or not producer.inputs:
        return EVERYTHING
    if value is not producer.outputs[0] and not is_standard(producer, "Split"):
        return EVERYTHING
    if value not in known:
        if len(known) >= FARTHEST:
            return EVERYTHING
        known[value] = EVERYTHING  # a graph with a cycle ends here
        known[value] = _written(producer, known)
    return known[value]


def _written(node: ir.Node, known: dict[ir.Value, Interval]) -> Interval:
    first = node.inputs[0]
    if is_dequantize(node):
        return _dequantized(node, known)
    if not is_standard(node, node.op_type):
        return EVERYTHING
    if node.op_type in WRITES:
        return WRITES[node.op_type]
    if node.op_type == "Relu":
        return 0, max(_range(first, known)[1], 0)
    if node.op_type == "Clip":
        return _clipped(node, _range(first, known))
    if node.op_type == "Concat":
        ranges = [_range(v, known) for v in node.inputs]
        return min(low for low, _ in ranges), max(high for _, high in ranges)
    if node.op_type in WITHIN_INPUT:
        low, high = _range(first, known)
        return min(low, 0), max(high, 0)
    return EVERYTHING


def _dequantized(node: ir.Node, known: dict[ir.Value, Interval]) -> Interval:
    integers, encoding = node.inputs[0], encoding_of(node)
    q = integers.producer() if integers is not None else None
    low, high = _range(q.inputs[0], known) if q is not None and is_quantize(q) else EVERYTHING
    if encoding is None or not encoding.scale:
        return low, high
    lows, highs = real_range(encoding)
    return max(low, float(lows.min())), min(high, float(highs.max()))


def _clipped(node: ir.Node, of_input: Interval) -> Interval:
    """A bound that is not given, or computed, says nothing."""
    given = clip_bounds(node)
    low = -math.inf if given[0] is None else given[0]
    high = math.inf if given[1] is None else given[1]
    return max(low, min(of_input[0], high)), min(high, max(of_input[1], low))
