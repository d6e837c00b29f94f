"""For all encodings that a format can say: reading what was written gives them back, from the file's own text."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.annotate import ENCODING, STYLE, Style
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.granularity import Granularity
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.encodings.entries import Encodings, Entry, Lpbq
from qdqtool.encodings.files import values_by_name
from qdqtool.encodings.formats import FORMATS, read_document, write_document
from qdqtool.encodings.grid import as_type, integer_type, offset_of, zero_point_of
from qdqtool.encodings.reading import encoding_for
from qdqtool.encodings.tensors import implied_axes, place
from qdqtool.io.files.artifacts import canonical_json
from tests.cases.encodings_helpers import facts, there_and_back
from tests.cases.small_models import model
from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC, parse, texts

PROFILE = settings(DETERMINISTIC, max_examples=examples(150))
TYPES = st.sampled_from([ir.DataType[n] for n in ("INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")])
SCALES = st.floats(2.0**-60, 2.0**60, width=32)

NET = model("""g (float[1,6,4,4] x, float[2,6] z) => (float[1,4,4,4] y, float[1,3,4,4] u, float[2,5] v, float[2,7] t)
  <float[4,6,1,1] conv = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}, float[6,3,1,1] up = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0},
   float[6,5] mm = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0},
   float[7,6] fc = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}>
  { [a] y = Conv(x, conv) [b] u = ConvTranspose(x, up) [c] v = MatMul(z, mm) [d] t = Gemm<transB: int = 1>(z, fc) }""")
VALUES = values_by_name(NET)
WEIGHTS = ("conv", "up", "mm", "fc")


@st.composite
def encodings(draw: st.DrawFn) -> tuple[str, Encoding]:
    """(tensor, encoding): per tensor, per output channel, or blocked along the input channels."""
    dtype = draw(TYPES)
    kind = draw(st.sampled_from(["tensor", "channel", "block"]))
    name = draw(st.sampled_from(WEIGHTS if kind != "tensor" else (*WEIGHTS, "x", "y")))
    value = VALUES[name]
    axes = implied_axes(value)
    assert value.shape is not None
    dims = tuple(int(d) for d in value.shape)
    if kind == "tensor":
        granularity = Granularity()
    else:
        assert axes is not None
        granularity = (
            Granularity(axes[0]) if kind == "channel" else Granularity(axes[1], draw(st.integers(1, dims[axes[1]])))
        )
    shape = granularity.scale_shape(dims)
    count = math.prod(shape)
    scale = draw(st.lists(SCALES, min_size=count, max_size=count))
    low, high = integer_range(dtype, symmetric=False)
    zeros = st.just(0) if draw(st.booleans()) or dtype == ir.DataType.INT32 else st.integers(low, high)
    zero_point = draw(st.lists(zeros, min_size=count, max_size=count))
    return name, Encoding(
        dtype=dtype, scale=tuple(scale), zero_point=tuple(zero_point), shape=shape, axis=granularity.axis,
        block_size=granularity.block_size,
    )  # fmt: skip


def through(holds: Any, name: str, format_name: str) -> Any:
    """The entry of ``name`` after a round through the text of a file."""
    made = Encodings(format="", entries=(Entry(name=name, holds=holds),))
    text = canonical_json(write_document(made, format_name, VALUES))
    (found,) = read_document(json.loads(text)).entries
    return found


@PROFILE
@given(encodings(), st.sampled_from(FORMATS))
def test_written_and_read(drawn: tuple[str, Encoding], format_name: str) -> None:
    """The same grid; the same type too, where the format knows signs: 0.6.1, 1.0.0 and QNN count what has a zero point as
    unsigned. Fewer channels than two are a tensor in rows."""
    name, encoding = drawn
    if encoding.dtype == ir.DataType.INT32 and format_name == "ort":
        return
    if encoding.block_size and format_name in ("aimet-0.6.1", "qnn", "ort"):
        with pytest.raises(UnsupportedError, match="blocks of"):
            through(encoding, name, format_name)
        return
    found = encoding_for(through(encoding, name, format_name), VALUES[name], None)
    assert found is not None
    assert as_type(found, encoding.dtype) == encoding
    if format_name.startswith("aimet-2") or format_name == "ort" or encoding.is_symmetric:
        assert found.dtype == encoding.dtype


@PROFILE
@given(st.data(), st.sampled_from(WEIGHTS), st.sampled_from(["aimet-1.0.0", "aimet-2.0.0", "aimet-2.1.0"]))
def test_lpbq(data: st.DataObject, name: str, format_name: str) -> None:
    value = VALUES[name]
    axes = implied_axes(value)
    assert axes is not None
    assert value.shape is not None
    dims = tuple(int(d) for d in value.shape)
    block_size = data.draw(st.integers(1, dims[axes[1]]))
    shape = Granularity(axes[1], block_size).scale_shape(dims)
    channels = math.prod(shape) // shape[axes[1]]
    holds = Lpbq(
        dtype=ir.DataType.INT4,
        bits=8,
        channel_scale=tuple(data.draw(st.lists(SCALES, min_size=channels, max_size=channels))),
        block_scale=tuple(
            data.draw(st.lists(st.integers(1, 16), min_size=math.prod(shape), max_size=math.prod(shape)))
        ),
        block_size=block_size,
        shape=shape,
        axis=axes[1],
    )
    found = place(through(holds, name, format_name).holds, value)
    assert found == holds
    blocks = holds.encoding
    factors = np.array(holds.block_scale, np.float32).reshape(shape)
    assert np.array_equal(blocks.scale_array() / factors > 0, np.ones(shape, bool))


@PROFILE
@given(st.sampled_from([4, 8, 16, 32]), st.booleans(), st.data())
def test_the_unsigned_grid(bits: int, signed: bool, data: st.DataObject) -> None:
    """Offset and zero point are one number counted from two places; two types of as many bits are one grid."""
    dtype = integer_type(bits, signed=signed)
    low, high = integer_range(dtype, symmetric=False)
    zero_point = data.draw(st.integers(low, high))
    offset = offset_of(dtype, zero_point)
    assert -(2**bits) < offset <= 0
    assert zero_point_of(dtype, offset) == zero_point
    encoding = Encoding.per_tensor(dtype, 0.5, zero_point)
    other = as_type(encoding, integer_type(bits, signed=not signed))
    assert as_type(other, dtype) == encoding
    integers = np.array([low, zero_point, high], np.int64)
    shift = (-1 if signed else 1) * -(2 ** (bits - 1))
    assert np.array_equal(integers - zero_point, integers + shift - int(other.zero_point[0]))


@settings(DETERMINISTIC, max_examples=examples(40))
@given(texts(), st.data())
def test_any_model_comes_back(text: str, data: st.DataObject) -> None:
    """Random nets, random tensors quantized, weights stored or under a pair: the same model by way of every format."""
    net = parse(text)
    values = [v for v in values_by_name(net).values() if v.dtype == ir.DataType.FLOAT or v.dtype is None]
    chosen = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=5, unique_by=lambda v: v.name))
    for value in chosen:
        dtype = ir.DataType[data.draw(st.sampled_from(["INT8", "UINT8", "INT16", "UINT16"]))]
        zero = data.draw(st.integers(*integer_range(dtype, symmetric=False)))
        ENCODING.set(value, Encoding.per_tensor(dtype, data.draw(st.sampled_from([0.5, 0.1, 0.3])), zero))
        STYLE.set(value, Style(stored=data.draw(st.booleans())))
    run_pipeline(net, "insert-qdq")
    if not qdq_pairs(net):
        return
    for format_name in FORMATS:
        assert facts(there_and_back(net, format_name)) == facts(net)
