"""Functions of one value: one of 8 bits has 256 results, one of 16 bits 65536.

Bringing integers from one encoding to another is a table between 8 bits, and computed where one of them has 16.

table[i] = Q_y(f((q_i − z_x)·s_x)), q_i the smallest integer plus i; f in float32, and of 16 bits as the target says
(`functions.table`)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any, ClassVar

import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.npu.formulas.functions import Function, chained, function_of, table
from qdq_passes.npu.program.edit import Replacement
from qdq_passes.npu.program.operands import (
    NotComputable,
    constant_floats,
    encoded,
    no_references,
    operand_at,
    rank_of,
    requantized,
    same,
    source,
    target,
)
from qdq_passes.npu.program.operator import ProgramOperator, Row
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


class Lookup(ProgramOperator[Table]):
    """A function of one value, or a requantization."""

    family = "tables"
    turn = 2
    rows = (
        Row("Lookup", (2, 2), {"axis": int}),
        Row(
            "Requantize", (1, 1),
            {"x_zero_point": int, "x_scale": float, "y_zero_point": int, "y_scale": float, "y_type": int, "rounding": str},
        ),
    )  # fmt: skip
    standard = ("Identity",)
    operations: ClassVar[Mapping[str, int]] = {"Pow": 1}

    def accepts(self, unit: Unit) -> bool:
        """Whatever operator it is of, its parameters known or not."""
        return unit.is_requantization or function_of(unit.core, constant_floats) is not None

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Table:
        """The table."""
        if unit.is_requantization:
            x, output = source(unit), target(unit)
            computed = is_wide(encoded(x).dtype) or is_wide(output.dtype)
            return Table(x=x, table=None if computed else requantized(encoded(x), output, arithmetic), output=output)
        functions: list[Function] = []
        for node in unit.nodes:
            no_references(node)
            found = function_of(node, constant_floats)
            if found is None or isinstance(found, str):
                raise NotComputable(found or f"{node.op_type} is no function of one value")
            functions.append(found)
        function = chained(functions)
        x, output = source(unit, function.input), target(unit)
        axis = None if function.axis is None else function.axis + rank_of(operand_at(unit, function.input))
        if axis is not None and axis < 0:
            raise NotComputable("its slope has more dimensions than what it is applied to")
        if axis is not None and is_wide(encoded(x).dtype):
            raise NotComputable("has a slope per channel on 16 bits, a table of 65536 numbers for each")
        asked = _Asked(
            nodes=_numbers_of(unit), source=encoded(x), target=output, arithmetic=arithmetic, function=function
        )
        return Table(x=x, table=_tabulated(asked), output=output, axis=axis)

    def write(self, plan: Table, into: Replacement) -> ir.Value:
        """``x, table → ai.qdqtool::Lookup``; ``x → ai.qdqtool::Requantize`` where x or the output has 16 bits."""
        x = into.integers(plan.x)
        if plan.table is not None:
            return into.table(x, plan.table, plan.axis, helps=False)
        if same(encoded(plan.x), plan.output):
            return into.node("::Identity", [x], dtype=plan.output.dtype, like=x)
        return into.requantized(x, encoded(plan.x), plan.output, helps=False)


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
