"""Our QuantizeLinear and DequantizeLinear against onnxruntime's, with optimization off: equal at tolerance zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from qdq_passes.graph.edit import make_node
from qdq_passes.numerics.encoding import Encoding, integer_range
from qdq_passes.numerics.granularity import Granularity
from qdq_passes.numerics.quantize import dequantize, quantize

from qdqtool.runtime.session import open_session
from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC

TYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4")
Array = npt.NDArray[Any]


def pair_model(encoding: Encoding, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.Model:
    """x → QuantizeLinear → q → DequantizeLinear → y; q is an output too where numpy has its type."""
    x = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape(shape))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 21}, name="pair")
    scale = ir.val("scale", const_value=ir.tensor(encoding.scale_array().astype(dtype.numpy()), name="scale"))
    zero = ir.tensor(encoding.zero_point_array(), dtype=encoding.dtype, name="zero_point")
    zero_point = ir.val("zero_point", const_value=zero)
    graph.register_initializer(scale)
    graph.register_initializer(zero_point)
    attributes = [] if encoding.axis is None else [ir.AttrInt64("axis", encoding.axis)]
    attributes += [ir.AttrInt64("block_size", encoding.block_size)] if encoding.block_size else []
    q = make_node(
        "QuantizeLinear",
        [x, scale, zero_point],
        name="q",
        output="q",
        like=x,
        dtype=encoding.dtype,
        attributes=attributes,
    )
    dq = make_node(
        "DequantizeLinear", [q.outputs[0], scale, zero_point], name="dq", output="y", like=x, attributes=attributes
    )
    graph.extend([q, dq])
    graph.outputs.extend([*([q.outputs[0]] if encoding.dtype.bitwidth >= 8 else []), dq.outputs[0]])
    return ir.Model(graph, ir_version=10)


@st.composite
def encodings(draw: st.DrawFn, shape: tuple[int, ...], *, half: bool) -> Encoding:
    """Any integer encoding that fits ``shape``; scales and zero points anywhere in their range (float16's for ``half``)."""
    dtype = ir.DataType[draw(st.sampled_from(TYPES)).upper()]
    axis = draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    # onnxruntime takes a vector of one scale as per-tensor and refuses block_size with it, so blocks need two axes
    block_size = 0 if axis is None or len(shape) == 1 else draw(st.sampled_from([0, 0, 1, 2, 3]))
    scale_shape = Granularity(axis, block_size).scale_shape(shape)
    low, high = (2.0**-10, 2.0**4) if half else (2.0**-60, 2.0**60)
    power = st.integers(math.frexp(low)[1], math.frexp(high)[1]).map(lambda e: math.ldexp(0.5, e))
    scale = power | st.floats(low, high, width=16 if half else 32)
    zero_point = st.sampled_from([0, *integer_range(dtype, symmetric=False)]) | st.integers(
        *integer_range(dtype, symmetric=False)
    )
    count = math.prod(scale_shape)
    return Encoding(
        dtype=dtype,
        scale=tuple(draw(st.lists(scale, min_size=count, max_size=count))),
        zero_point=tuple(draw(st.lists(zero_point, min_size=count, max_size=count))),
        shape=scale_shape,
        axis=axis,
        block_size=block_size,
    )


def values_for(encoding: Encoding, shape: tuple[int, ...], dtype: npt.DTypeLike, seed: int) -> Array:
    """Values around the grid: multiples of half a step (ties), single floats beside a tie, far outside, infinities, zeros."""
    random = np.random.default_rng(seed)
    _, qmax = integer_range(encoding.dtype, symmetric=False)
    steps = random.integers(-2 * qmax - 3, 2 * qmax + 3, shape) / 2
    scale = encoding.granularity.expand(encoding.scale_array().astype(np.float64), shape)
    x = (steps * scale).astype(dtype)
    kinds = random.integers(0, 8, shape)
    x = np.where(kinds == 0, np.nextafter(x, np.array(np.inf, dtype)), x)
    x = np.where(kinds == 1, np.nextafter(x, np.array(-np.inf, dtype)), x)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.finfo(dtype).max]).astype(dtype)
    x = np.where(kinds == 2, random.choice(special, shape), x)
    if np.dtype(dtype) == np.float16 or encoding.block_size or encoding.dtype.bitwidth < 8:
        # onnxruntime converts x/scale to int32 before it saturates here: beyond 2^31 it gives the lowest integer, of any sign
        limit = np.minimum(2.0**30 * scale, float(np.finfo(dtype).max))
        x = np.clip(x.astype(np.float64), -limit, limit)
    return x.astype(dtype)


def check(encoding: Encoding, shape: tuple[int, ...], dtype: ir.DataType, seed: int) -> None:
    with np.errstate(over="ignore"):  # values that overflow to infinity are wanted
        x = values_for(encoding, shape, dtype.numpy(), seed)
        ours = quantize(x, encoding)
        real = dequantize(ours, encoding, dtype.numpy())
    theirs = open_session(pair_model(encoding, dtype, shape)).run({"x": x})
    if "q" in theirs:
        np.testing.assert_array_equal(ours, theirs["q"])
    assert real.dtype == theirs["y"].dtype
    np.testing.assert_array_equal(real, theirs["y"])


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@settings(DETERMINISTIC, max_examples=examples(250))
@given(st.data(), shapes, st.integers(0, 2**16))
def test_float32(data: st.DataObject, shape: tuple[int, ...], seed: int) -> None:
    encoding = data.draw(encodings(shape, half=False))
    check(encoding, shape, ir.DataType.FLOAT, seed)
    assert encoding.granularity.scale_shape(shape) == encoding.shape


@settings(DETERMINISTIC, max_examples=examples(120))
@given(st.data(), shapes, st.integers(0, 2**16))
def test_float16(data: st.DataObject, shape: tuple[int, ...], seed: int) -> None:
    encoding = data.draw(encodings(shape, half=True))
    check(encoding, shape, ir.DataType.FLOAT16, seed)
    assert encoding.granularity.scale_shape(shape) == encoding.shape


def test_ties_go_to_even() -> None:
    encoding = Encoding.per_tensor(ir.DataType.INT8, 0.5, 1)
    x = np.array([-1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 63.25], np.float32)
    assert quantize(x, encoding).tolist() == [-1, -1, 1, 1, 3, 3, 127]
    check(encoding, (7,), ir.DataType.FLOAT, 0)


def test_blocks_may_end_short() -> None:
    encoding = Encoding(dtype=ir.DataType.INT4, scale=(1.0, 2.0), zero_point=(0, 0), shape=(2, 1), axis=0, block_size=2)
    x = np.array([[3.0], [4.0], [6.0]], np.float32)
    assert quantize(x, encoding).astype(int).tolist() == [[3], [4], [3]]
    check(encoding, (3, 1), ir.DataType.FLOAT, 0)
