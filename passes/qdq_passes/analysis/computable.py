"""What the simulated NPU can compute: for what a target takes there must also be a kernel, and constants that its arithmetic has.

A unit that the target takes and that is not computable keeps its verdict, and runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from qdq_passes.analysis.plans.elementwise import elementwise
from qdq_passes.analysis.plans.movement import MOVING, max_pool, movement, rearrangement, resized
from qdq_passes.analysis.plans.operands import NotComputable
from qdq_passes.analysis.plans.pools import mean
from qdq_passes.analysis.plans.products import convolution, matrix_product
from qdq_passes.analysis.plans.softmax import softmax
from qdq_passes.analysis.plans.tables import is_function, lookup
from qdq_passes.analysis.units import Unit
from qdq_passes.analysis.uses import constant_array, is_standard
from qdq_passes.errors import QdqError
from qdq_passes.numerics.arithmetic import Arithmetic

#: What a unit is lowered as: by the pass ``lower-<family>``.
FAMILIES: dict[str, tuple[str, ...]] = {
    "convolutions": ("Conv", "ConvTranspose"),
    "products": ("MatMul", "Gemm"),
    "elementwise": ("Add", "Sub", "Mul"),
    "pools": ("AveragePool", "GlobalAveragePool", "ReduceMean", "MaxPool", "GlobalMaxPool"),
    "softmax": ("Softmax",),
    "movement": (*MOVING, "Resize", "DepthToSpace", "SpaceToDepth"),
}


def family_of(unit: Unit) -> str | None:
    """The family of `FAMILIES` that lowers ``unit``, ``"tables"`` for functions of one value; None where none does.

    A Pad is lowered with the average pool behind it; an Add, Sub or Mul with one float number is a function.
    """
    if is_standard(unit.core, "Pad") and unit.tail:
        return "pools"
    for family, types in FAMILIES.items():
        if is_standard(unit.core, *types) and not (family == "elementwise" and _reads_a_number(unit)):
            return family
    return "tables" if is_function(unit) else None


def why_not_computable(unit: Unit, arithmetic: Arithmetic) -> str | None:
    """Why the simulated NPU does not compute ``unit`` under ``arithmetic``, in words; None where it does.

    Partitioning, lowering and reports all ask here. Shapes are read where they are written down: run infer-shapes first.
    """
    family = family_of(unit)
    if family is None:
        return f"{unit.core.op_type} has no kernel"
    try:
        _PLANS[family](unit, arithmetic)
    except NotComputable as reason:
        return str(reason)
    except QdqError as error:  # what is stored is broken
        return error.message
    return None


def _reads_a_number(unit: Unit) -> bool:
    """Whether one of two operands is one float number, stored as such."""
    floats = [operand.value for operand in unit.operands if operand.kind == "float" and operand.constant]
    return any((array := constant_array(value)) is not None and array.size == 1 for value in floats)


def _pool(unit: Unit, arithmetic: Arithmetic) -> object:
    return (max_pool if is_standard(unit.core, "MaxPool", "GlobalMaxPool") else mean)(unit, arithmetic)


def _movement(unit: Unit, arithmetic: Arithmetic) -> object:
    if is_standard(unit.core, "Resize"):
        resized(unit)
    elif not is_standard(unit.core, *MOVING):
        rearrangement(unit)
    return movement(unit, arithmetic)


_PLANS: dict[str, Callable[[Unit, Arithmetic], object]] = {
    "convolutions": convolution,
    "products": matrix_product,
    "elementwise": elementwise,
    "pools": _pool,
    "softmax": softmax,
    "movement": _movement,
    "tables": lookup,
}
