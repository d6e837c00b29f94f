"""What a quantized model is compared with the float one at: its outputs, or what they are made of.

Of a decoder the logits, of all tokens, though the graph gives those of one; of what ends in a Softmax the numbers before it: both
are distributions, and compared as such. Anything else is compared number by number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.decoder.look.record import DECODER
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import is_standard
from qdq_passes.numerics.arrays import Array

from qdqtool.runtime.gradients.backward import Backward
from qdqtool.runtime.gradients.graph import Seed

#: Name of the logits of a decoder that nothing else is known of.
LOGITS = "logits"


@dataclass(frozen=True, kw_only=True)
class End:
    """A value that is compared.

    Args:
        quantized: its name in the quantized model.
        reference: that in the float model.
        axis: of a distribution, the one that its numbers are along; None where numbers are compared.
    """

    quantized: str
    reference: str
    axis: int | None = None

    @property
    def wanted(self) -> str:
        """Name of the input that the float model's value is fed as."""
        return f"wanted of {self.quantized}"

    def seed(self, power: float) -> Seed:
        """The gradient of what is lost here.

        Args:
            power: mean square of the float model's values.
        """

        def squares(b: Backward, value: ir.Value) -> ir.Value:
            shape = b.shape(value)
            off = b("Sub", value, b.fed(self.wanted, shape))
            return b("Mul", off, b.number(2 / (max(power, 1e-30) * max(int(np.prod(shape)), 1))))

        def divergence(b: Backward, value: ir.Value) -> ir.Value:
            shape, axis = b.shape(value), self.axis
            assert axis is not None
            off = b("Sub", b("Softmax", value, axis=axis), b("Softmax", b.fed(self.wanted, shape), axis=axis))
            return b("Mul", off, b.number(shape[axis] / max(int(np.prod(shape)), 1)))

        return squares if self.axis is None else divergence

    def lost(self, value: Array, wanted: Array, power: float) -> float:
        """What is minimized: the divergence (Kullback-Leibler) of ``value`` from ``wanted``, mean of all distributions; or the
        mean squared difference over ``power``."""
        if self.axis is None:
            return float(np.mean((value - wanted) ** 2, dtype=np.float64) / max(power, 1e-30))
        p, q = _log_softmax(wanted, self.axis), _log_softmax(value, self.axis)
        probability = np.exp(p)
        off = np.subtract(p, q, out=np.zeros_like(p), where=probability > 0)  # what is impossible, -inf, costs nothing
        return float((probability * off).sum(axis=self.axis).mean())


def ends_of(model: ir.Model, reference: ir.Model) -> list[End]:
    """Where ``model`` is compared with ``reference``: values of float32 that both have."""
    record = DECODER.get(model.graph)
    logits = record.logits if record is not None else LOGITS if _reads_words(model) else ""
    named = {node.name: node for node in reference.graph if node.name}
    known = {value.name for value in reference.graph.outputs}
    outputs = [
        value for value in model.graph.outputs if value.name in known and value.dtype in (ir.DataType.FLOAT, None)
    ]
    chosen = [value for value in outputs if value.name == logits]
    if chosen:
        return [End(quantized=value.name or "", reference=value.name or "", axis=-1) for value in chosen]
    ends: list[End] = []
    for value in outputs:
        softmax = _softmax(value)
        twin = named.get(softmax.name or "") if softmax is not None else None
        if softmax is None or twin is None:
            ends.append(End(quantized=value.name or "", reference=value.name or ""))
            continue
        names = [(node.inputs[0].name or "") if node.inputs[0] is not None else "" for node in (softmax, twin)]
        axis = softmax.attributes["axis"].as_int() if "axis" in softmax.attributes else -1
        ends.append(End(quantized=names[0], reference=names[1], axis=axis))
    return list(dict.fromkeys(ends))


def _reads_words(model: ir.Model) -> bool:
    """Whether an input is numbers of words, int64 [B, S]."""
    return any(v.dtype == ir.DataType.INT64 and v.shape is not None and len(v.shape) == 2 for v in model.graph.inputs)


def _softmax(value: ir.Value) -> ir.Node | None:
    """The Softmax that an output ends in, in front of pairs."""
    node = value.producer()
    while node is not None and (is_qdq(node) or is_standard(node, "Identity")) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and is_standard(node, "Softmax", "LogSoftmax") else None


def _log_softmax(values: Array, axis: int) -> Array:
    wide = values.astype(np.float64)
    wide = wide - np.maximum(wide.max(axis=axis, keepdims=True), np.finfo(np.float64).min)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=axis, keepdims=True)))
