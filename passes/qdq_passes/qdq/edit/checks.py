"""What an opset, a domain and a tensor can hold, asked before anything is edited; encodings given as options: scales and zero
points as flat lists, their shape by the axis, the block size and the tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.graph.operators.qdq_ops import FIRST_OPSET, OPSET_OF_AXIS, OPSET_OF_BLOCKS, OPSET_OF_HALF
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import dtype_of
from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type
from qdq_passes.numerics.granularity import Granularity
from qdq_passes.qdq.edit.streamed import blocked_weight

#: Storage types of the Q and DQ of other domains (the schemas that onnxruntime 1.31.1 registers, and loads; the custom operators
#: of Quark 0.13).
DOMAIN_TYPES = {
    "com.microsoft": frozenset(
        ir.DataType[name] for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32", "INT4", "UINT4")
    ),
    **dict.fromkeys(
        ("com.amd.quark", "com.vai.quantize"),
        frozenset(
            ir.DataType[name]
            for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT4", "UINT4", "FLOAT16", "BFLOAT16")
        ),
    ),
}  # fmt: skip


#: Whose QuantizeLinear and DequantizeLinear are made, as options say it.
OperatorDomain = Literal["onnx", "com.microsoft", "com.amd.quark", "com.vai.quantize"]


def domain_named(name: OperatorDomain) -> str:
    """The domain as nodes bear it."""
    return "" if name == "onnx" else name


def check_encoding(value: ir.Value, encoding: Encoding, opset: int, *, stored: bool, domain: str = "") -> None:
    """Refuse an encoding of the float tensor ``value`` that its operators, its opset or its shape cannot hold.

    Args:
        value: the float tensor.
        encoding: what it shall have.
        opset: the model's default-domain opset.
        stored: only a DequantizeLinear is made, on stored integers.
        domain: domain of the operators.

    Raises:
        UnsupportedError: an opset too old, or a type that the operators do not take.
        UsageError: scales that do not fit the tensor or its float type.
    """
    name, dtype = encoding.dtype.name.lower(), dtype_of(value) or ir.DataType.FLOAT
    if domain in ("", "ai.onnx"):
        _check_standard(value, encoding, opset, dtype, stored=stored)
    elif encoding.dtype not in DOMAIN_TYPES[domain]:
        raise UnsupportedError(f"{domain} quantizes to no {name}", where=value.name, hint="use the standard operators")
    elif encoding.block_size:
        raise UnsupportedError(f"{domain} knows no blocks", where=value.name, hint="use the standard operators")
    elif domain == "com.microsoft" and encoding.dtype == ir.DataType.INT32 and not stored:
        raise UnsupportedError(
            "QuantizeLinear writes no int32", where=value.name, hint="store the integers: weights=dq"
        )
    if encoding.dtype == ir.DataType.INT32 and not encoding.is_symmetric:
        raise UsageError("int32 has no zero point", where=value.name, hint="make it 0, or leave the tensor out")
    _check_scale(value, encoding, dtype)


def _check_standard(value: ir.Value, encoding: Encoding, opset: int, dtype: ir.DataType, *, stored: bool) -> None:
    name = encoding.dtype.name.lower()
    if encoding.dtype == ir.DataType.INT32 and not stored:
        raise UnsupportedError(
            "QuantizeLinear writes no int32", where=value.name, hint="store the integers: weights=dq"
        )
    first = FIRST_OPSET.get(encoding.dtype)
    if first is None:
        raise UnsupportedError(
            f"QuantizeLinear knows no {name}", where=value.name, hint="for example int8, uint8, int16, int4"
        )
    needed = max(
        first,
        OPSET_OF_AXIS if encoding.axis is not None else 0,
        OPSET_OF_BLOCKS if encoding.block_size else 0,
        OPSET_OF_HALF if dtype != ir.DataType.FLOAT else 0,
    )
    if opset < needed:
        on = "" if dtype == ir.DataType.FLOAT else f" on {dtype.name.lower()}"
        raise UnsupportedError(
            f"{name} {encoding.granularity.kind}{on} needs opset {needed}, the model has {opset}",
            where=value.name,
            hint=f"run convert-opset{{version={needed}}} first",
        )


def _check_scale(value: ir.Value, encoding: Encoding, dtype: ir.DataType) -> None:
    is_later = blocked_weight(value.const_value, encoding) is not None  # not computed yet, and positive
    scale = np.ones(1, np.float32) if is_later else encoding.scale_array().astype(dtype.numpy()).astype(np.float32)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise UsageError(f"scale {encoding.scale[0]:g} is no positive {dtype.name.lower()}", where=value.name)
    shape = static_sizes(value)
    if shape is not None and encoding.axis is not None:
        if not -len(shape) <= encoding.axis < len(shape):
            raise UsageError(f"axis {encoding.axis} does not exist in shape {shape}", where=value.name)
        wanted = encoding.granularity.scale_shape(tuple(shape))
        if wanted != encoding.shape:
            raise UsageError(
                f"scales of shape {list(encoding.shape)} on a tensor of shape {shape}, axis {encoding.axis}",
                where=value.name,
                hint=f"expected shape {list(wanted)}",
            )


def check_numbers(
    where: str, scale: Sequence[float], zero_point: Sequence[int], dtype: ir.DataType, axis: int | None, block_size: int
) -> None:
    """Refuse numbers that can be no encoding, whatever the tensor.

    Raises:
        UsageError: a scale that is not positive and finite, a zero point that the type does not hold, several scales without an
            axis, blocks without an axis.
    """
    if any(not (s > 0 and math.isfinite(s)) for s in scale):
        raise UsageError(f"scale {list(scale)} is not positive", where=where)
    if len(scale) > 1 and axis is None:
        raise UsageError(f"{len(scale)} scales without an axis", where=where, hint="give axis")
    if block_size < 0 or (block_size and axis is None):
        problem = f"block size {block_size}" if block_size < 0 else "a block size without an axis"
        raise UsageError(problem, where=where, hint="blocks run along an axis")
    name = dtype.name.lower()
    if not is_integer_type(dtype):
        if any(zero_point):
            raise UsageError(f"a zero point for {name}, which is no integer type", where=where)
    else:
        qmin, qmax = integer_range(dtype, symmetric=False)
        for z in zero_point:
            if not qmin <= z <= qmax:
                raise UsageError(f"zero point {z} is no {name}, which holds {qmin} to {qmax}", where=where)
    if zero_point and len(zero_point) not in (1, len(scale)):
        raise UsageError(f"{len(scale)} scales but {len(zero_point)} zero points", where=where)


def explicit_encoding(
    value: ir.Value | None,
    scale: Sequence[float],
    zero_point: Sequence[int],
    dtype: ir.DataType,
    axis: int | None,
    block_size: int,
) -> Encoding:
    """The encoding of ``value`` by numbers that `check_numbers` let pass; a single zero point serves all scales.

    Blocked scales are given in C order of their shape, that of ``value`` with ceil(D_axis / block_size) blocks.

    Raises:
        UsageError: blocks on a tensor whose shape is not known, or as many scales as do not fit it.
    """
    zeros = tuple(zero_point) * (len(scale) if len(zero_point) == 1 else 1) or (0,) * len(scale)
    shape: tuple[int, ...] = () if axis is None else (len(scale),)
    if block_size and axis is not None:
        dims = static_sizes(value) if value is not None else None
        where = value.name if value is not None else None
        if dims is None:
            raise UsageError("blocks on a tensor whose shape is not known", where=where, hint="run infer-shapes first")
        if not -len(dims) <= axis < len(dims):
            raise UsageError(f"axis {axis} does not exist in shape {dims}", where=where)
        shape = Granularity(axis, block_size).scale_shape(tuple(dims))
        if math.prod(shape) != len(scale):
            raise UsageError(
                f"{len(scale)} scales for {math.prod(shape)} blocks", where=where, hint=f"expected shape {list(shape)}"
            )
    return Encoding(dtype=dtype, scale=tuple(scale), zero_point=zeros, shape=shape, axis=axis, block_size=block_size)
