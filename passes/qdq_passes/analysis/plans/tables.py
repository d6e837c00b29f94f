"""Plans of tables: a function of one 8-bit value has 256 results, of one 16-bit value 65536. Bringing integers from one encoding
to another is a table between 8 bits, and computed where one of them has 16."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

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
from qdq_passes.npu.formulas.functions import Function, chained, dequantized, function_of, quantized, table
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding, is_wide

#: Tables that are kept for the next graph, of 128 KiB at most unless they have channels.
TABLES = 256


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """A table of 256 or 65536 integers, or one for each index of an axis.

    Args:
        x: what is looked up.
        table: [256], [C, 256] or [65536] in the type of the output; entry i is that of the smallest integer plus i. None of a
            requantization that is computed.
        output: encoding of the output.
        axis: axis of C, from the start.
    """

    x: Operand
    table: npt.NDArray[Any] | None
    output: Encoding
    axis: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A table that is asked for, equal to others of the same numbers.

    Args:
        nodes: all that ``function`` is made of.
        source: encoding of what is looked up.
        target: encoding of the results.
        arithmetic: of the target.
        function: what is computed.
    """

    nodes: tuple[Hashable, ...]
    source: Encoding
    target: Encoding
    arithmetic: Arithmetic
    function: Function = field(compare=False)


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
        computed = is_wide(x.encoding.dtype) or is_wide(output.dtype)
        return Table(x=x, table=None if computed else requantized(x.encoding, output, arithmetic), output=output)
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
    if axis is not None and is_wide(x.encoding.dtype):
        raise NotComputable("has a slope per channel on 16 bits, a table of 65536 numbers for each")
    asked = _Asked(nodes=_numbers_of(unit), source=x.encoding, target=output, arithmetic=arithmetic, function=function)
    return Table(x=x, table=_tabulated(asked), output=output, axis=axis)


@lru_cache(maxsize=TABLES)
def _tabulated(asked: _Asked) -> npt.NDArray[Any]:
    """The table, not to be written to: whether there is one is asked before it is lowered, prefill and decode have the same."""
    found = table(asked.function, asked.source, asked.target, asked.arithmetic).astype(asked.target.dtype.numpy())
    found.flags.writeable = False
    return found


def _numbers_of(unit: Unit) -> tuple[Hashable, ...]:
    """Operators, attributes and constants of ``unit``."""
    found: list[Hashable] = []
    for node in unit.nodes:
        numbers = [None if value is None else constant_floats(value) for value in node.inputs]
        found.append((node.domain, node.op_type, tuple((a.name, str(a.value)) for a in node.attributes.values())))
        found.append(tuple(None if n is None else (n.shape, n.tobytes()) for n in numbers))
    return tuple(found)


def requantized(source: Encoding, target: Encoding, arithmetic: Arithmetic) -> npt.NDArray[Any]:
    """The table [256], in the type of ``target``, that brings integers of ``source`` to it."""
    return table(None, source, target, arithmetic).astype(target.dtype.numpy())


def brought(integers: npt.NDArray[Any], source: Encoding, target: Encoding, arithmetic: Arithmetic) -> npt.NDArray[Any]:
    """``integers`` (any shape) of ``source``, of at most 16 bits, in ``target`` and its type; as they are where both are one."""
    if same(source, target):
        return integers.astype(target.dtype.numpy())
    real = dequantized(integers, source)
    return quantized(real, target, arithmetic.rounding).astype(target.dtype.numpy())
