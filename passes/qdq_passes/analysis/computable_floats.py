"""What the simulated NPU can compute in floating point: units whose verdict is npu-float."""

from __future__ import annotations

from qdq_passes.analysis.plans.floats import float_plan
from qdq_passes.analysis.plans.operands import NotComputable
from qdq_passes.errors import QdqError
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic


def why_not_computable_in_float(unit: Unit, arithmetic: Arithmetic) -> str | None:
    """Why the simulated NPU does not compute ``unit`` in ``arithmetic.float_precision``, in words; None where it does."""
    try:
        float_plan(unit, arithmetic)
    except NotComputable as reason:
        return str(reason)
    except QdqError as error:  # what is stored is broken
        return error.message
    return None
