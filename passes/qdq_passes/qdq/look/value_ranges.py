"""Value ranges that the graph proves, without data: a Relu writes nothing below 0, a Softmax nothing outside of [0, 1]."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.graph.operators.activations import PRODUCERS, clip_bounds, is_dpu_hard_sigmoid
from qdq_passes.graph.uses import FLOAT_TYPES, SHARING, constant_array, dtype_of, has_body, is_standard
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.numerics.reencode import real_range
from qdq_passes.qdq.look.pairs import Pair, encoding_of, is_dequantize, is_quantize

Interval = tuple[float, float]
EVERYTHING: Interval = (-math.inf, math.inf)
#: Two roundings to float32, of the range and of the scale, 2^-24 each, and as much again for those who divide otherwise.
SCALE_ROUNDING = 2.0**-22
#: Beyond, a range that ends at whole numbers by chance is no longer rare: of one that ends anywhere, one in 2^13.
WIDEST = 256
#: Values that are looked at on the way up; beyond, nothing is known.
FARTHEST = 200

#: The least value of x·σ(x), at x = −1.2785, and of x·max(0, min(1, x/6 + 1/2)), at x = −3/2, rounded down.
SWISH_LOW, HARD_SWISH_LOW = -0.27847, -0.375
#: What an operator writes, whatever it reads. HardSwish has its minimum −3/8 at x = −3/2, Gelu −0.16997 at −0.7518 (its tanh form
#: −0.17004), Mish −0.30885 at −1.1924; rounded down.
WRITES: dict[str, Interval] = {
    **dict.fromkeys(("Abs", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Softplus", "Sqrt"), (0.0, math.inf)),
    **dict.fromkeys(("HardSigmoid", "Sigmoid", "Softmax"), (0.0, 1.0)),
    **dict.fromkeys(("Cos", "Erf", "Sin", "Softsign", "Tanh"), (-1.0, 1.0)),
    "Gelu": (-0.17005, math.inf),
    "HardSwish": (HARD_SWISH_LOW, math.inf),
    "LogSoftmax": (-math.inf, 0.0),
    "Mish": (-0.30885, math.inf),
}

#: Types that hold nothing below 0, and what a float made of one is at most.
UNSIGNED: dict[ir.DataType | None, float] = {
    ir.DataType.BOOL: 1.0,
    ir.DataType.UINT8: 255.0,
    ir.DataType.UINT16: 65535.0,
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
    """Whether the zero point of ``pair`` (in ``encoding``, its own by default) does the work of a Relu: see `begins_at_zero`."""
    encoding = pair.encoding if encoding is None else encoding
    if encoding is None or pair.q is None or pair.q is pair.dq or pair.stored is not None:
        return False
    return begins_at_zero(pair.source, encoding)


def begins_at_zero(source: ir.Value | None, encoding: Encoding) -> bool:
    """Whether the range of ``encoding`` starts at 0, and what a node writes to ``source`` may lie below by more than half a step,
    which rounding alone explains (a Gelu reaches −0.17). Before graph inputs no Relu stood."""
    producer = source.producer() if source is not None else None
    if producer is None or has_body(producer) or not is_integer_type(encoding.dtype):
        return False
    if not all(map(math.isfinite, encoding.scale)):  # of a mask of −inf
        return False
    if not bool(np.all(real_range(encoding)[0] == 0)):
        return False
    return proven_range(source)[0] < -max(encoding.scale) / 2


def whole_bounds(source: ir.Value | None, encoding: Encoding) -> Interval | None:
    """(low, high) where the range of ``encoding`` was made for two whole numbers, up to the rounding of a float32 scale, as that
    of a Clip which a quantizer left out is.

    With (qmax − qmin)·s = high − low and z = round(qmin − low/s), Q saturates at both: Q(x) = Q(clip(x, low, high)).

    None where ``source`` lies there by itself, is of an operator that no quantizer takes an activation into, or where whole
    numbers are nothing to go by: a power-of-two scale, whose ranges often end at some, and signed encodings about 0, before which
    quantizers leave every activation where it is.
    """
    producer = source.producer() if source is not None else None
    if producer is None or not is_standard(producer, *PRODUCERS) or len(encoding.scale) != 1:
        return None
    is_about_zero = is_integer_type(encoding.dtype) and integer_format(encoding.dtype)[0] and encoding.is_symmetric
    if is_about_zero or not is_integer_type(encoding.dtype) or not math.isfinite(encoding.scale[0]):
        return None
    (low,), (high,), step = (*(end.ravel().tolist() for end in real_range(encoding)), encoding.scale[0])
    if not math.isfinite(high - low):
        return None
    width, first = round(high - low), round(low)
    if (
        not 1 <= width <= WIDEST
        or math.frexp(step)[0] == 0.5
        or abs(high - low - width) > width * SCALE_ROUNDING
        or first > 0
    ):
        return None
    if abs(low - first) > step * (0.5 + SCALE_ROUNDING * width):
        return None
    proven = proven_range(source)
    return (float(first), float(first + width)) if proven[0] < first or proven[1] > first + width else None


def _range(value: ir.Value | None, known: dict[ir.Value, Interval]) -> Interval:
    producer = value.producer() if value is not None else None
    if value is None or (array := constant_array(value)) is not None:
        return EVERYTHING if value is None or array is None else _extremes(array)
    if producer is None or not producer.inputs:
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
    if node.op_type == "Cast":
        return _cast(node, known)
    if node.op_type in ("Add", "Mul", "Max", "Min"):
        return _combined(node, known)
    if node.op_type in ("Concat", "Where"):
        ranges = [_range(v, known) for v in node.inputs[node.op_type == "Where" :]]
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
    stored = constant_array(integers)
    scale = node.inputs[1]
    is_float32 = scale is not None and dtype_of(scale) is ir.DataType.FLOAT  # another type rounds the products
    is_plain = encoding.axis is None and is_integer_type(encoding.dtype) and is_float32
    if stored is not None and stored.size and is_plain:
        return _extremes(dequantize(np.array([stored.min(), stored.max()], stored.dtype), encoding))
    lows, highs = real_range(encoding)
    return max(low, float(lows.min())), min(high, float(highs.max()))


def _clipped(node: ir.Node, of_input: Interval) -> Interval:
    """A bound that is not given, or computed, says nothing."""
    given = clip_bounds(node)
    low = -math.inf if given[0] is None else given[0]
    high = math.inf if given[1] is None else given[1]
    return max(low, min(of_input[0], high)), min(high, max(of_input[1], low))


def _extremes(array: npt.NDArray[Any]) -> Interval:
    """Of a constant; one that is empty, or holds what is no number, says nothing."""
    if array.dtype.kind not in "biuf" or not array.size:
        return EVERYTHING
    low, high = float(array.min()), float(array.max())
    return (low, high) if low <= high else EVERYTHING


def _cast(node: ir.Node, known: dict[ir.Value, Interval]) -> Interval:
    """Between floats, and from types without a sign."""
    source = node.inputs[0]
    dtype = dtype_of(source) if source is not None else None
    if dtype in FLOAT_TYPES:
        return _range(source, known)
    return (0.0, UNSIGNED[dtype]) if dtype in UNSIGNED else EVERYTHING


def _combined(node: ir.Node, known: dict[ir.Value, Interval]) -> Interval:
    """Add, Mul, Max and Min of intervals; x·x, and x times a gate of x."""
    ranges = [_range(value, known) for value in node.inputs]
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    if node.op_type == "Add":
        return sum(lows), sum(highs)
    if node.op_type in ("Max", "Min"):
        choose = max if node.op_type == "Max" else min
        return choose(lows), choose(highs)
    corners = [0.0 if 0 in (a, b) else a * b for a in ranges[0] for b in ranges[1]]
    return max(min(corners), _least_product(node)), max(corners)


def _least_product(mul: ir.Node) -> float:
    """The least value of x·x, x·σ(x), x·HardSigmoid(x) with the usual slope; −inf of others."""
    roots = [_before_pairs(value) for value in mul.inputs]
    if roots[0] is not None and roots[0] is roots[1]:
        return 0.0
    for gated, gate in (roots, roots[::-1]):
        node = gate.producer() if gate is not None else None
        if node is not None and node.inputs and gated is not None and _before_pairs(node.inputs[0]) is gated:
            if is_standard(node, "Sigmoid"):
                return SWISH_LOW
            if is_dpu_hard_sigmoid(node):
                return HARD_SWISH_LOW
    return -math.inf


def _before_pairs(value: ir.Value | None) -> ir.Value | None:
    """What pairs on ``value`` stand on."""
    while value is not None and (dq := value.producer()) is not None and is_dequantize(dq):
        q = dq.inputs[0].producer() if dq.inputs and dq.inputs[0] is not None else None
        if q is None or not is_quantize(q):
            break
        value = q.inputs[0]
    return value
