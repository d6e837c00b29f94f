"""Encodings given as options: scales and zero points as flat lists, their shape by the axis, the block size and the tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from qdq_passes.errors import UsageError
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.numerics.encoding import Encoding, integer_range, is_integer_type
from qdq_passes.numerics.granularity import Granularity


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
