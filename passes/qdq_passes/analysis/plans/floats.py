"""Plans of units in floating point: every node of a unit by its handler, then a Quantize for each QuantizeLinear behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from qdq_passes.analysis.plans.float_elementwise import ELEMENTWISE, function
from qdq_passes.analysis.plans.float_movement import MOVES
from qdq_passes.analysis.plans.float_products import PRODUCTS
from qdq_passes.analysis.plans.float_reductions import REDUCTIONS
from qdq_passes.analysis.plans.float_rotary import ROTARY
from qdq_passes.analysis.plans.float_steps import (
    FLOATS,
    Made,
    Source,
    Step,
    Steps,
    check_attributes,
    check_written,
    quantizers_of,
)
from qdq_passes.analysis.plans.operands import NotComputable
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding

Handler = Callable[[Steps, ir.Node], list[Source]]

#: (domain, operator) → what writes it down; functions of one value are looked for last.
HANDLERS: Mapping[tuple[str, str], Handler] = {**ELEMENTWISE, **MOVES, **PRODUCTS, **REDUCTIONS, **ROTARY}


@dataclass(frozen=True, eq=False, kw_only=True)
class FloatPlan:
    """A unit as steps.

    Args:
        steps: in order.
        results: for each result of the unit that stays a float, its value and what writes it now.
        quantized: each QuantizeLinear that a step takes over, and that step's output.
    """

    steps: tuple[Step, ...]
    results: tuple[tuple[ir.Value, Made], ...]
    quantized: tuple[tuple[ir.Node, Made], ...]


def float_plan(unit: Unit, arithmetic: Arithmetic) -> FloatPlan:
    """The plan of ``unit``.

    Raises:
        NotComputable: there is none.
    """
    check_attributes(unit)
    steps = Steps(unit, arithmetic)
    if unit.is_requantization:
        encoding = unit.results[0].encoding
        if encoding is None:
            raise NotComputable("its scale is computed")
        check_written(encoding, unit.results[0].value.name or "")
        made = _quantize(steps, steps.read(unit.core, 0), encoding)
        return FloatPlan(steps=tuple(steps.steps), results=(), quantized=((unit.core, made),))
    for node in unit.nodes:
        handler = HANDLERS.get((node.domain.removeprefix("ai.onnx"), node.op_type), function)
        for value, source in zip(node.outputs, handler(steps, node), strict=False):
            if source is not None:
                steps.written[value] = source
    if not unit.results:
        raise NotComputable("nothing reads what it writes")
    results, quantized = [], []
    for result in unit.results:
        source = steps.written.get(result.value)
        if not isinstance(source, Made):
            raise NotComputable(f"does not compute {result.value.name}")
        if source.dtype not in (*FLOATS, ir.DataType.BOOL):
            raise NotComputable(f"writes {source.dtype.name.lower()}")
        behind = quantizers_of(result.value)
        quantized += [(node, _quantize(steps, source, encoding)) for node, encoding in behind]
        if len(behind) < len(result.value.uses()) or result.value.is_graph_output():
            results.append((result.value, source))
    return FloatPlan(steps=tuple(steps.steps), results=tuple(results), quantized=tuple(quantized))


def _quantize(steps: Steps, source: Source, encoding: Encoding) -> Made:
    arithmetic = steps.arithmetic
    stated: dict[str, int | float | str] = {
        "rounding": arithmetic.rounding, "overflow": arithmetic.overflow, "y_zero_point": int(encoding.zero_point[0]),
        "zero_point_first": int(arithmetic.zero_point_first), "y_scale": float(encoding.scale[0]),
    }  # fmt: skip
    return steps.step("Quantize", source, dtype=encoding.dtype, attributes=stated)
