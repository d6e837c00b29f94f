"""How a weight is stored: its type by the operators that read it (``LayerNormalization:uint8``, ``*:activation``), which weights
have blocks, and what blocks cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

from qdq_passes.errors import UsageError
from qdq_passes.graph.operators.channels import Use, block_axis
from qdq_passes.numerics.blocks import BlockedWeight, BlockRule
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type, parse_dtype


class _Rule(Protocol):
    @property
    def dtype(self) -> ir.DataType: ...
    @property
    def smallest(self) -> float: ...
    @property
    def floor(self) -> float: ...
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
    smallest = max(rule.smallest, rule.floor)
    blocks = BlockRule(dtype=rule.dtype, block_size=block_size, fitted=fitted, smallest=smallest, empty=rule.empty)
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


#: Stands for every operator type without an entry of its own.
OTHERS = "*"
#: Type and symmetry of the activations.
LIKE_ACTIVATIONS = "activation"

_ENTRY = re.compile(r"(\*|[A-Za-z]\w*):(\w+)")


def parse_weight_types(entries: Iterable[str]) -> dict[str, ir.DataType | None]:
    """Operator type → storage type of the weights it reads, None for that of activations, of entries ``"Conv:int8"``.

    Raises:
        UsageError: an entry that cannot be read, a type that stores no integers, an operator named twice.
    """
    found: dict[str, ir.DataType | None] = {}
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise UsageError(
                f"weight-types entry {entry!r} cannot be read", hint="write Conv:int8, or *:activation for all others"
            )
        op_type, dtype = match[1], None if match[2] == LIKE_ACTIVATIONS else parse_dtype(match[2])
        if dtype is not None and not is_integer_type(dtype):
            raise UsageError(f"{entry}: weights are stored as integers", hint="for example int8, uint8, int16, int4")
        if op_type in found:
            raise UsageError(f"weight-types names {op_type} twice", hint="one type an operator type")
        found[op_type] = dtype
    return found


def weight_type(
    uses: Sequence[Use], types: Mapping[str, ir.DataType | None], default: ir.DataType
) -> tuple[ir.DataType | None, str]:
    """Storage type of a weight (None: like activations), and a remark where its readers disagree (else ``""``).

    Args:
        uses: the readers that demand an encoding of it.
        types: of `parse_weight_types`.
        default: type of what no entry is about, and of a weight whose readers disagree.
    """
    asked = {node.op_type: types.get(node.op_type, types.get(OTHERS, default)) for node, _ in uses}
    kinds = set(asked.values())
    if len(kinds) > 1:
        shown = ", ".join(f"{op} ({LIKE_ACTIVATIONS if t is None else t.name.lower()})" for op, t in asked.items())
        return default, f"{default.name.lower()}, as its readers disagree: {shown}"
    return (kinds.pop() if kinds else default), ""
