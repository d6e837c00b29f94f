"""What the simulated NPU can compute: for what a target takes there must also be a kernel, and constants that its arithmetic has.

A unit that the target takes and that is not computable keeps its verdict, and runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from qdq_passes.analysis.computable_floats import why_not_computable_in_float
from qdq_passes.analysis.plans.blocked_products import blocked_product, is_blocked
from qdq_passes.analysis.plans.einsums import einsum
from qdq_passes.analysis.plans.elementwise import elementwise
from qdq_passes.analysis.plans.movement import MOVING, check_carried, max_pool, movement, rearrangement
from qdq_passes.analysis.plans.norms import NORMS, norm
from qdq_passes.analysis.plans.operands import NotComputable
from qdq_passes.analysis.plans.pools import mean, reduced_extremes
from qdq_passes.analysis.plans.products import convolution, matrix_product
from qdq_passes.analysis.plans.quotients import extreme, quotient
from qdq_passes.analysis.plans.resizing import interpolates, resampling, resized
from qdq_passes.analysis.plans.rotary import is_rotary, rotary
from qdq_passes.analysis.plans.softmax import softmax
from qdq_passes.analysis.plans.tables import is_function, lookup
from qdq_passes.errors import QdqError
from qdq_passes.graph.uses import constant_array, is_standard
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic

#: What a unit is lowered as: by the pass ``lower-<family>``.
FAMILIES: dict[str, tuple[str, ...]] = {
    "convolutions": ("Conv", "ConvTranspose"),
    "products": ("MatMul", "Gemm"),
    "elementwise": ("Add", "Sub", "Mul", "Div", "Min", "Max"),
    "pools": (
        "AveragePool", "GlobalAveragePool", "ReduceMean", "MaxPool", "GlobalMaxPool", "ReduceSum", "ReduceMax", "ReduceMin",
    ),
    "softmax": ("Softmax",),
    "norms": NORMS,
    "movement": (*MOVING, "Resize", "DepthToSpace", "SpaceToDepth"),
    "rotary-embeddings": ("RotaryEmbedding",),
    "einsums": ("Einsum",),
}  # fmt: skip


def family_of(unit: Unit) -> str | None:
    """The family of `FAMILIES` that lowers ``unit``, ``"tables"`` for functions of one value; None where none does.

    A Pad is lowered with the average pool behind it; an operator of two values with one float number is a function.
    """
    if is_standard(unit.core, "Pad") and unit.tail:
        return "pools"
    if is_rotary(unit.core):
        return "rotary-embeddings"
    for family, types in FAMILIES.items():
        if is_standard(unit.core, *types) and not (family == "elementwise" and _reads_a_number(unit)):
            return family
    return "tables" if is_function(unit) else None


def why_not_computable(unit: Unit, arithmetic: Arithmetic, *, in_float: bool = False) -> str | None:
    """Why the simulated NPU does not compute ``unit`` under ``arithmetic``, in words; None where it does.

    With ``in_float`` the unit is computed in floating point (verdict npu-float). Partitioning, lowering and reports all ask here.
    Shapes are read where they are written down: run infer-shapes first.
    """
    if in_float:
        return why_not_computable_in_float(unit, arithmetic)
    family = family_of(unit)
    if family is None:
        if is_standard(unit.core, "Pow"):
            return "Pow has no kernel but for an exponent that is one constant number"
        return f"{unit.core.op_type} has no kernel"
    try:
        _PLANS[family](unit, arithmetic)
    except NotComputable as reason:
        return str(reason)
    except QdqError as error:  # what is stored is broken
        return error.message
    return None


def why_not_moved(unit: Unit) -> str | None:
    """Why no program holds ``unit``, which works on shapes, indices, masks or bare integers alone (a cache that the graph reads
    as integers), in words; None where one may."""
    try:
        check_carried(unit.core)
    except NotComputable as reason:
        return str(reason)
    return None


def _reads_a_number(unit: Unit) -> bool:
    """Whether one of two operands is one float number, stored as such."""
    floats = [operand.value for operand in unit.operands if operand.kind == "float" and operand.constant]
    return any((array := constant_array(value)) is not None and array.size == 1 for value in floats)


def _elementwise(unit: Unit, arithmetic: Arithmetic) -> object:
    kind = unit.core.op_type
    return (quotient if kind == "Div" else extreme if kind in ("Min", "Max") else elementwise)(unit, arithmetic)


def _pool(unit: Unit, arithmetic: Arithmetic) -> object:
    if is_standard(unit.core, "ReduceMax", "ReduceMin"):
        return reduced_extremes(unit)
    return (max_pool if is_standard(unit.core, "MaxPool", "GlobalMaxPool") else mean)(unit, arithmetic)


def _matrix_product(unit: Unit, arithmetic: Arithmetic) -> object:
    return (blocked_product if is_blocked(unit) else matrix_product)(unit, arithmetic)


def _movement(unit: Unit, arithmetic: Arithmetic) -> object:
    if interpolates(unit):
        return resampling(unit, arithmetic)
    if is_standard(unit.core, "Resize"):
        resized(unit)
    elif not is_standard(unit.core, *MOVING):
        rearrangement(unit)
    return movement(unit, arithmetic)


_PLANS: dict[str, Callable[[Unit, Arithmetic], object]] = {
    "convolutions": convolution,
    "products": _matrix_product,
    "elementwise": _elementwise,
    "pools": _pool,
    "softmax": softmax,
    "norms": norm,
    "movement": _movement,
    "tables": lookup,
    "rotary-embeddings": rotary,
    "einsums": einsum,
}
