"""Biases in 32 bits at the scale s_x·s_w, which readers of some formats make themselves and the files therefore leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import ml_dtypes
import onnx_ir as ir
from qdq_passes.graph.annotate import ENCODING
from qdq_passes.graph.operators.channels import BIAS_INPUT
from qdq_passes.graph.uses import dtype_of, is_constant, main_nodes, readers
from qdq_passes.numerics.encoding import FLOAT32_TINY, Encoding
from qdq_passes.qdq.edit.biases import bias_encoding

#: Operators and the input that onnxruntime's quantizer takes for a bias.
WITH_BIAS = {**BIAS_INPUT, "BatchNormalization": 2, "InstanceNormalization": 2}


def biases_of(model: ir.Model) -> list[ir.Value]:
    """The constants that layers of the main graph add to their products, each once."""
    found: dict[ir.Value, None] = {}
    for node in main_nodes(model):
        index = WITH_BIAS.get(node.op_type)
        value = node.inputs[index] if index is not None and index < len(node.inputs) else None
        if value is not None and is_constant(value):
            found[value] = None
    return list(found)


def product_encodings(
    biases: Iterable[ir.Value], encodings: Mapping[ir.Value, Encoding]
) -> dict[ir.Value, Encoding | str]:
    """The int32 encoding of each bias that follows from the ``encodings`` of input and weight, or why there is none."""
    before = {value: ENCODING.get(value) for value in encodings}
    for value, encoding in encodings.items():
        ENCODING.set(value, encoding)
    try:
        return {bias: _encoding(bias) for bias in biases}
    finally:
        for value, old in before.items():
            ENCODING.clear(value)
            if old is not None:
                ENCODING.set(value, old)


def _encoding(bias: ir.Value) -> Encoding | str:
    uses = [use for use in readers(bias) if WITH_BIAS.get(use[0].op_type) == use[1]]
    return bias_encoding(bias, uses) if uses else "no layer adds it to its products"


def smallest_scale(value: ir.Value) -> float:
    """Smallest scale that the float type of ``value`` holds: a subnormal of float16, but a normal number of float32."""
    dtype = (dtype_of(value) or ir.DataType.FLOAT).numpy()
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return max(float(limits.smallest_subnormal), FLOAT32_TINY)
