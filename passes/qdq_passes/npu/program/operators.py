"""The operators of programs, which of them takes a unit, and why none does.

Partitioning, lowering, reports and costs all ask here. A unit that the target takes and that is not computable keeps its verdict,
and runs on the CPU."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from qdq_passes.errors import QdqError
from qdq_passes.graph.uses import is_standard
from qdq_passes.npu import program
from qdq_passes.npu.program import DOMAIN
from qdq_passes.npu.program.floats.operator import Floats
from qdq_passes.npu.program.movement import check_steering
from qdq_passes.npu.program.operands import NotComputable
from qdq_passes.npu.program.operator import ProgramOperator
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic


def _classes() -> Iterator[type[ProgramOperator[Any]]]:
    """The operators of the files beside this one: a new file is a new operator."""
    for found in pkgutil.iter_modules(program.__path__):
        module = importlib.import_module(f"{program.__name__}.{found.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, ProgramOperator) and value.__module__ == module.__name__:
                yield value


#: All of them on integers: the first that accepts a unit writes it.
INTEGERS: tuple[ProgramOperator[Any], ...] = tuple(
    cls() for cls in sorted(_classes(), key=lambda cls: cls.turn) if hasattr(cls, "family")
)
#: What computes in floating point.
FLOATS = Floats()

#: What a unit is lowered as, by the pass ``lower-<family>``, and the operators that are lowered so.
FAMILIES: dict[str, tuple[str, ...]] = {
    family: tuple(dict.fromkeys(op for each in INTEGERS if each.family == family for op in each.takes))
    for family in dict.fromkeys(each.family for each in INTEGERS)
}
#: Operators of the domain ai.qdqtool by name: on integers, and in floating point.
ROWS = {row.name: row for each in INTEGERS for row in each.rows}
FLOAT_ROWS = {row.name: row for row in FLOATS.rows}
#: Standard operators in programs: what moves integers, and what brings floats to the edge of a program and back.
STANDARD = {"DequantizeLinear", "QuantizeLinear"}.union(*(each.standard for each in INTEGERS))

_COSTS = {name: each for each in INTEGERS for name in (*each.takes, *each.operations, *each.costs_like)}


def operator_of(unit: Unit) -> ProgramOperator[Any] | None:
    """The operator that writes ``unit`` on integers; None where none does."""
    return next((each for each in INTEGERS if each.accepts(unit)), None)


def operator_called(op_type: str) -> ProgramOperator[Any] | None:
    """The operator that knows what an ``op_type`` costs, of whatever domain; None where none does."""
    return _COSTS.get(op_type)


def why_not_computable(unit: Unit, arithmetic: Arithmetic, *, in_float: bool = False) -> str | None:
    """Why the simulated NPU does not compute ``unit`` under ``arithmetic``, in words; None where it does.

    With ``in_float`` the unit is computed in floating point (verdict npu-float). Shapes are read where they are written down: run
    infer-shapes first.
    """
    operator = FLOATS if in_float else operator_of(unit)
    if operator is None:
        if is_standard(unit.core, "Pow"):
            return "Pow has no kernel but for an exponent that is one constant number"
        return f"{unit.core.op_type} has no kernel"
    try:
        operator.plan(unit, arithmetic)
    except NotComputable as reason:
        return str(reason)
    except QdqError as error:  # what is stored is broken
        return error.message
    return None


def why_not_moved(unit: Unit) -> str | None:
    """Why no program holds ``unit``, which works on shapes, indices, masks or bare integers alone (a cache that the graph reads
    as integers), in words; None where one may."""
    why = why_no_kernel(unit.core)
    if why is not None:
        return why
    try:
        check_steering(unit.core)
    except NotComputable as reason:
        return str(reason)
    return None


def why_no_kernel(node: ir.Node) -> str | None:
    """Why no program may hold ``node``, in words; None where it may."""
    ours = node.domain == DOMAIN and (node.op_type in ROWS or node.op_type in FLOAT_ROWS)
    if ours or is_standard(node, *STANDARD):
        return None
    domain = f"{node.domain}::" if node.domain else ""
    return f"{domain}{node.op_type} has no kernel"
