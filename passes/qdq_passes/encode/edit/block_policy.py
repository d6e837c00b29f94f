"""Which weights are stored in blocks, and what blocks cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from qdq_passes.errors import UsageError
from qdq_passes.graph.operators.channels import Use, block_axis
from qdq_passes.numerics.blocks import BlockedWeight, BlockRule
from qdq_passes.numerics.encoding import Encoding, integer_format


class _Rule(Protocol):
    @property
    def dtype(self) -> ir.DataType: ...
    @property
    def smallest(self) -> float: ...
    @property
    def empty(self) -> float: ...


def blocked_encoding(
    value: ir.Value, uses: Sequence[Use], rule: _Rule, block_size: int, *, fitted: bool
) -> Encoding | str:
    """The encoding of the initializer ``value`` in blocks along the axis over which ``uses`` sum, or why it has none.

    Args:
        value: the weight.
        uses: its readers.
        rule: storage type and smallest scale.
        block_size: elements per scale; the last block of an axis may be shorter.
        fitted: scales of least squares.
    """
    tensor = value.const_value
    if tensor is None:
        return "is no initializer"
    axis = block_axis(uses, tuple(tensor.shape.numpy()))
    if isinstance(axis, str):
        return axis
    if not integer_format(rule.dtype)[0]:
        return f"{rule.dtype.name.lower()} has no sign"
    blocks = BlockRule(dtype=rule.dtype, block_size=block_size, fitted=fitted, smallest=rule.smallest, empty=rule.empty)
    return BlockedWeight(tensor=tensor, axis=axis, rule=blocks).encoding()


def check_blocks(block_size: int, weights: ir.DataType, *, power_of_two: bool, symmetric: bool, reduced: bool) -> None:
    """Refuse what blocks cannot be; nothing is asked of ``block_size`` 0.

    Raises:
        UsageError: a negative size, zero points, an unsigned type, power-of-two scales, or one bit less.
    """
    if not block_size:
        return
    if block_size < 0:
        raise UsageError(f"block size {block_size} is no number of elements", hint="for example 32 or 128")
    if not symmetric or not integer_format(weights)[0]:
        what = f"{weights.name.lower()} has no sign" if symmetric else "they have no zero point"
        raise UsageError(f"blocks are symmetric: {what}", hint="use int4 or int8, and weights-symmetric=true")
    if power_of_two:
        raise UsageError("blocks have float scales", hint="write scales=any, or drop block-size")
    if reduced:
        raise UsageError("blocks use all bits", hint="drop reduce-range or block-size")
