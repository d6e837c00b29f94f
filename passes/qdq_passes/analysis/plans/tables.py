"""Plans of tables: a function of one 8-bit value has 256 results; so has bringing integers from one encoding to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdq_passes.analysis.plans.operands import (
    NotComputable,
    constant_floats,
    no_references,
    operand_at,
    rank_of,
    same,
    source,
    target,
)
from qdq_passes.analysis.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.functions import Function, chained, function_of, table


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """A table of 256 integers, or one for each index of an axis.

    Args:
        x: what is looked up.
        table: [256] or [C, 256] in the type of the output; entry i is that of the smallest integer plus i.
        output: encoding of the output.
        axis: axis of C, from the start.
    """

    x: Operand
    table: npt.NDArray[Any]
    output: Encoding
    axis: int | None = None


def is_function(unit: Unit) -> bool:
    """Whether ``unit`` is a function of one value, its parameters known or not."""
    return unit.is_requantization or function_of(unit.core, constant_floats) is not None


def lookup(unit: Unit, arithmetic: Arithmetic) -> Table:
    """The plan of a function of one value, or of a requantization.

    Raises:
        NotComputable: there is none.
    """
    if unit.is_requantization:
        x, output = source(unit), target(unit)
        assert x.encoding is not None
        return Table(x=x, table=requantized(x.encoding, output, arithmetic), output=output)
    functions: list[Function] = []
    for node in unit.nodes:
        no_references(node)
        found = function_of(node, constant_floats)
        if found is None or isinstance(found, str):
            raise NotComputable(found or f"{node.op_type} is no function of one value")
        functions.append(found)
    function = chained(functions)
    x, output = source(unit, function.input), target(unit)
    assert x.encoding is not None
    axis = None if function.axis is None else function.axis + rank_of(operand_at(unit, function.input))
    if axis is not None and axis < 0:
        raise NotComputable("its slope has more dimensions than what it is applied to")
    data = table(function, x.encoding, output, arithmetic.rounding)
    return Table(x=x, table=data.astype(output.dtype.numpy()), output=output, axis=axis)


def requantized(source: Encoding, target: Encoding, arithmetic: Arithmetic) -> npt.NDArray[Any]:
    """The table [256], in the type of ``target``, that brings integers of ``source`` to it."""
    return table(None, source, target, arithmetic.rounding).astype(target.dtype.numpy())


def between(source: Encoding, target: Encoding, arithmetic: Arithmetic) -> npt.NDArray[Any] | None:
    """`requantized`, None where nothing changes."""
    return None if same(source, target) else requantized(source, target, arithmetic)


def looked_up(integers: npt.NDArray[Any], table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``table`` [256] of each of ``integers`` (int8 or uint8, any shape)."""
    found: npt.NDArray[Any] = table[integers.astype(np.int64) - int(np.iinfo(integers.dtype).min)]
    return found
