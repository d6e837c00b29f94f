"""What a QDQ pair does to numbers, and what of it can be proved.

A pair rounds element by element, F(x) = (clip(round(x / s) + z, qmin, qmax) − z)·s, every step in float32 (float16 and bfloat16
results rounded once more). For s > 0 and an integer type that holds z:

- F(0) = F(−0) = +0, as 0 is always on the grid; F never gives −0. F does not decrease: none of its steps does.
- A number c *is on the grid* when F(c) = c, bit for bit; this is computed, never assumed. F of what lies below the grid is its
  least number F(−∞), above it F(∞).
- Integers come back, round((q − z)·s / s) + z = q, so that F(F(x)) = F(x): with k = q − z, v = fl(k·s) is k·s(1 + e) or, below
  2^-126, exact, and fl(v / s) = k(1 + e)(1 + e'), |e|, |e'| ≤ 2^-24. That is off by at most |k|·2^-23·(1 + 2^-24) < 2^-6 for
  |k| ≤ 2^16, so that it rounds to k, unless k·s is infinite. In float16 and bfloat16 e is up to 2^-9: there every integer of
  the type is tried. 32-bit integers have more digits than a float32 and do not come back; of float types NaN need not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_qdq
from qdq_passes.graph.uses import constant_array, dtype_of
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.look.pairs import Pair, encoding_of

#: Attributes that are part of the encoding, and what the others are when they are left out.
_ENCODED = ("axis", "block_size")
_DEFAULTS = {"saturate": 1, "precision": 0, "output_dtype": 0}
#: Domains whose operators compute alike.
_ONNX = ("", "ai.onnx", "com.microsoft")


@dataclass(frozen=True)
class Rounding:
    """What a Q or DQ node (or a pair) computes; equal roundings give equal bits.

    Args:
        encoding: the grid; its axis counts from the front where the rank is known.
        float_type: element type of scale and result.
        domain: whose arithmetic it is, "" for onnx's and onnxruntime's.
        options: other attributes that are not at their default, ``"saturate=0"``.
    """

    encoding: Encoding
    float_type: ir.DataType
    domain: str
    options: tuple[str, ...]

    @property
    def is_integer(self) -> bool:
        """Whether the grid is one of integers; a float8 has a −0, and NaN."""
        return is_integer_type(self.encoding.dtype)

    def apply(self, x: Array) -> Array:
        """F(x), in the element type and shape of ``x``."""
        return dequantize(quantize(x, self.encoding), self.encoding, x.dtype)

    def per_scale(self, x: Array) -> Array:
        """F(x) by each of the scales: [n] → [n, number of scales]."""
        e, count = self.encoding, len(self.encoding.scale)
        flat = Encoding(dtype=e.dtype, scale=e.scale, zero_point=e.zero_point, shape=(count,), axis=1)
        wide = np.broadcast_to(x.reshape(-1, 1), (x.size, count))
        return dequantize(quantize(wide, flat), flat, x.dtype)

    @property
    def is_idempotent(self) -> bool:
        """Whether F(F(x)) = F(x) for every x: the integers come back."""
        encoding, dtype = self.encoding, self.float_type.numpy()
        if not self.is_integer or encoding.dtype.bitwidth > 16:
            return False
        low, high = integer_range(encoding.dtype, symmetric=False)
        pairs = np.unique(np.array([encoding.scale, encoding.zero_point], np.float64), axis=1)
        with np.errstate(over="ignore"):
            if dtype == np.float32:
                ends = [(end - pairs[1]).astype(np.float32) * pairs[0].astype(np.float32) for end in (low, high)]
                return bool(np.isfinite(ends).all())
            integers = np.arange(low, high + 1)
            for scale, zero_point in pairs.T.tolist():
                one = Encoding(dtype=encoding.dtype, scale=(scale,), zero_point=(zero_point,))
                if not np.array_equal(quantize(dequantize(integers, one, dtype), one).astype(np.int64), integers):
                    return False
        return True

    def along(self, axis: int | None) -> Rounding:
        """The same with its scales along another axis."""
        return replace(self, encoding=replace(self.encoding, axis=axis))


def rounding_of(node: ir.Node) -> Rounding | None:
    """What the Q or DQ ``node`` computes; None when its scale or zero point is not constant."""
    encoding, scale = encoding_of(node), constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    if encoding is None or scale is None:
        return None
    rank = rank_of(node.inputs[0], node.outputs[0])
    if len(encoding.scale) == 1 and not encoding.block_size:  # an axis with one element: one scale for the whole tensor
        encoding = replace(encoding, shape=(), axis=None)
    if encoding.axis is not None and rank and -rank <= encoding.axis < 0:
        encoding = replace(encoding, axis=encoding.axis + rank)
    options = []
    for name, attribute in sorted(node.attributes.items()):
        at_default = not attribute.is_ref() and attribute.value == _DEFAULTS.get(name)
        tells_type = name == "output_dtype" and not is_dequantize(node)
        of_floats = name == "saturate" and is_integer_type(encoding.dtype)
        if name not in _ENCODED and not (at_default or tells_type or of_floats):
            options.append(f"{name}={'@' if attribute.is_ref() else attribute.value}")
    domain = "" if node.domain in _ONNX else node.domain
    return Rounding(encoding, ir.DataType.from_numpy(scale.dtype), domain, tuple(options))


def rank_of(*values: ir.Value | None) -> int | None:
    """The rank of values of one shape, as far as one of them tells it."""
    return next((len(shape) for value in values if (shape := shape_of(value)) is not None), None)


def shape_of(value: ir.Value | None) -> ir.Shape | None:
    """The shape of ``value``, or of what it is rounded from; None when neither is known."""
    seen: set[ir.Value] = set()
    while value is not None and value.shape is None and value not in seen:
        seen.add(value)
        producer = value.producer()
        is_half = producer is not None and is_qdq(producer)
        value = producer.inputs[0] if producer is not None and is_half else None
    return value.shape if value is not None else None


def why_not_exact(pair: Pair, types: dict[ir.Value, ir.DataType]) -> str:
    """Why nothing can be proved about ``pair``, in words; "" when something can. Types found go to ``types``."""
    if pair.q is pair.dq:
        return "both halves are one node; run convert-qdq-domain{to=onnx} first"
    nodes = [pair.dq] if pair.q is None else [pair.q, pair.dq]
    found = [rounding_of(node) for node in nodes]
    known = [rounding for rounding in found if rounding is not None]
    if len(known) < len(found):
        return "its scale is not constant"
    first, last = known[0], known[-1]
    if (first.encoding, first.float_type) != (last.encoding, last.float_type):
        return f"its halves differ: {exact_text(first.encoding)} and {exact_text(last.encoding)}"
    if not all(0 < s < np.inf for s in first.encoding.scale):
        return "its scale is not positive"
    asked = [option for rounding in known for option in rounding.options if not option.startswith("saturate")]
    if asked:
        return f"it asks for {asked[0]}"
    source = pair.q.inputs[0] if pair.q is not None else None
    dtype = None if source is None else dtype_of(source, types)
    if source is not None and dtype is not None:
        types[source] = dtype  # a chain is not followed from each of its values
        if dtype != first.float_type:
            return "its scale has another float type"
    return ""


def why_not_cancelled(dq: ir.Node, q: ir.Node) -> str:
    """Why ``q`` need not give back the integers that ``dq`` before it was given, in words; "" when it does."""
    first, second = rounding_of(dq), rounding_of(q)
    if first is None or second is None:
        return "its scale is not constant"
    if (first.encoding, first.float_type) != (second.encoding, second.float_type):
        return f"requantizes: {exact_text(first.encoding)} at {dq.name}, {exact_text(second.encoding)} here"
    options = [option for option in (*first.options, *second.options) if not option.startswith("saturate")]
    if options or first.domain != second.domain:
        return f"asks for {options[0]}" if options else f"is of another domain than {dq.name}"
    if not first.is_idempotent:
        stored, real = first.encoding.dtype.name.lower(), first.float_type.name.lower()
        return f"undoes {dq.name}, but not every {stored} comes back from {real} at {exact_text(first.encoding)}"
    return ""


def on_grid(values: Array, rounding: Rounding, *, rank: int | None, beyond: str = "") -> bool:
    """Whether rounding leaves each of the constants ``values`` as it is.

    Args:
        values: constants that meet the rounded tensor.
        rounding: the rounding.
        rank: rank of the rounded tensor. Scales per axis are laid over constants of the same rank; of a scalar every scale must
            leave it as it is, of other constants nothing is known.
        beyond: ``"below"`` or ``"above"``: constants beyond this end of the grid are as good, for what takes the larger of a
            rounded number and a constant takes the rounded number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        encoding = rounding.encoding
        fits = encoding.axis is not None and rank == values.ndim and _scales_of(encoding, values) == encoding.shape
        if encoding.axis is None or fits:
            spread, rounded = values, rounding.apply
        elif values.size == 1:
            spread, rounded = np.broadcast_to(values.reshape(-1, 1), (1, len(encoding.scale))), rounding.per_scale
        else:
            return False
        given = values if spread is values else values.reshape(-1)
        result = rounded(given)
        good = (result == spread) & (np.signbit(result) == np.signbit(spread))
        if beyond == "below":
            good |= spread < rounded(np.full_like(given, -np.inf))
        elif beyond == "above":
            good |= spread > rounded(np.full_like(given, np.inf))
    return bool(np.all(good))


def _scales_of(encoding: Encoding, values: Array) -> tuple[int, ...] | None:
    if encoding.axis is None or not -values.ndim <= encoding.axis < values.ndim:
        return None
    return encoding.granularity.scale_shape(values.shape)


def exact_text(encoding: Encoding) -> str:
    """An encoding in a few words: ``int8 scale 0.5 zero point 0``."""
    dtype, kind = encoding.dtype.name.lower(), encoding.granularity.kind
    scale, zero_point = (
        _few([str(np.float32(s)) for s in encoding.scale], encoding),
        _few(encoding.zero_point, encoding),
    )
    where = "" if encoding.axis is None else f" {kind} (axis {encoding.axis})"
    return f"{dtype}{where} scale {scale} zero point {zero_point}"


def _few(numbers: Sequence[object], encoding: Encoding) -> str:
    if encoding.axis is None:
        return str(numbers[0])
    return f"[{', '.join(map(str, numbers[:3]))}{', …' if len(numbers) > 3 else ''}]"
