"""For all small graphs and encodings: what insert-qdq puts in, qdq_rows reads back, and remove-qdq takes out again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st
from qdq_passes.graph.annotate import ENCODING, STYLE, Style
from qdq_passes.graph.dump import dump
from qdq_passes.graph.uses import all_values, constant_array, dtype_of, is_constant
from qdq_passes.integers.look.quantized_table import qdq_rows
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.granularity import Granularity
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.verification.rules import verify

from tests.golden.numerics import outputs_of
from tests.properties.graphs import DETERMINISTIC, parse, texts
from tests.properties.test_graphs import without_annotations

TYPES = [ir.DataType[name] for name in ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4")]
SCALES = st.floats(2.0**-10, 4.0, allow_nan=False, width=32)


@st.composite
def encodings(draw: st.DrawFn, shape: tuple[int, ...], *, constant: bool, blocked: bool = True) -> Encoding:
    """An encoding for a tensor of ``shape``; constants may have an axis, or (``blocked``) blocks."""
    dtype = draw(st.sampled_from(TYPES))
    axis = draw(st.none() | st.integers(-len(shape), len(shape) - 1)) if constant and shape else None
    blocks = 0 if axis is None else draw(st.sampled_from([0, 0, 1, 2] if blocked else [0]))
    scale_shape = Granularity(axis, blocks).scale_shape(shape)
    count = int(np.prod(scale_shape))
    zeros = st.integers(*integer_range(dtype, symmetric=False))
    return Encoding(
        dtype=dtype,
        scale=tuple(draw(st.lists(SCALES, min_size=count, max_size=count))),
        zero_point=tuple(draw(st.lists(zeros, min_size=count, max_size=count))),
        shape=scale_shape,
        axis=axis,
        block_size=blocks,
    )


def floats_of(model: ir.Model) -> list[ir.Value]:
    """Float values that some node reads or that are outputs, in order."""
    found = [v for v in all_values(model) if dtype_of(v) == ir.DataType.FLOAT]
    return [v for v in found if v.uses() or v.is_graph_output()]


def annotate(data: Any, model: ir.Model, *, stored: bool | None, blocked: bool = True) -> dict[str, Encoding]:
    """Encodings for some of the values; ``stored``: how weights are kept, None for either."""
    chosen = {}
    for value in floats_of(model):
        if value.shape is None or not value.shape.is_static() or not data.draw(st.booleans()):
            continue
        encoding = data.draw(encodings(tuple(value.shape.numpy()), constant=is_constant(value), blocked=blocked))
        ENCODING.set(value, encoding)
        STYLE.set(value, Style(stored=data.draw(st.booleans()) if stored is None else stored))
        chosen[value.name or ""] = encoding
    return chosen


def inferred(text: str) -> ir.Model:
    model = parse(text)
    run_pipeline(model, "infer-shapes")
    return model


@DETERMINISTIC
@given(texts(), st.data(), st.booleans(), st.sampled_from(["onnx", "com.microsoft"]))
def test_what_was_inserted_is_listed(text: str, data: Any, dedicated: bool, domain: str) -> None:
    model = inferred(text)
    chosen = annotate(data, model, stored=None, blocked=domain == "onnx")  # onnxruntime's own Q and DQ have no blocks
    run_pipeline(model, f"insert-qdq{{domain={domain}{' dedicated=true' if dedicated else ''}}}")
    assert verify(model, minimum="error") == []
    assert {row.tensor: row.encoding for row in qdq_rows(model)} == chosen


@DETERMINISTIC
@given(texts(), st.data(), st.booleans())
def test_remove_undoes_insert_of_pairs(text: str, data: Any, dedicated: bool) -> None:
    model = inferred(text)
    before = dump(model)
    annotate(data, model, stored=False)
    run_pipeline(model, f"insert-qdq{{dedicated={str(dedicated).lower()}}},remove-qdq")
    assert without_annotations(dump(model)) == without_annotations(before)


@DETERMINISTIC
@given(texts(), st.data(), st.booleans())
def test_remove_leaves_the_dequantized_weights(text: str, data: Any, dedicated: bool) -> None:
    """Against the model whose weights were replaced by their dequantized values by hand: bit for bit, in onnxruntime."""
    model, reference = inferred(text), inferred(text)
    chosen = annotate(data, model, stored=True)
    run_pipeline(model, f"insert-qdq{{dedicated={str(dedicated).lower()}}},remove-qdq")
    for value in floats_of(reference):
        array, encoding = constant_array(value), chosen.get(value.name or "")
        if array is None or encoding is None:
            continue
        tensor = ir.tensor(dequantize(quantize(array, encoding), encoding), name=value.name)
        producer = value.producer()
        if producer is None:
            value.const_value = tensor
        else:
            producer.attributes["value"] = ir.AttrTensor("value", tensor)
    expected, got = outputs_of(reference), outputs_of(model)
    assert expected.keys() == got.keys()
    assert all(expected[name].tobytes() == got[name].tobytes() for name in expected)
