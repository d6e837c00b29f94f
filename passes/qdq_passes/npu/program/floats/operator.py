"""What is computed in floating point: every node of a unit by its handler, then a Quantize for each QuantizeLinear behind."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change
from qdq_passes.npu.program import DOMAIN
from qdq_passes.npu.program.edit import Replacement
from qdq_passes.npu.program.floats import elementwise, movement, products, reductions, rotary, steps
from qdq_passes.npu.program.floats.steps import (
    FLOATS,
    Constant,
    Handlers,
    Made,
    Source,
    Step,
    Steps,
    check_attributes,
    check_written,
    quantizers_of,
)
from qdq_passes.npu.program.operands import NotComputable
from qdq_passes.npu.program.operator import ProgramOperator
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding

#: Functions of one value are looked for last.
HANDLERS: Handlers = {
    **elementwise.ELEMENTWISE, **movement.MOVES, **products.PRODUCTS, **reductions.REDUCTIONS, **rotary.ROTARY,
}  # fmt: skip


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


class Floats(ProgramOperator[FloatPlan]):
    """Whatever the target computes in floating point."""

    family = "floats"
    rows = (*steps.ROWS, *elementwise.ROWS, *products.ROWS, *reductions.ROWS)

    def accepts(self, unit: Unit) -> bool:
        """Nothing by itself: the target's verdict decides."""
        return False

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> FloatPlan:
        """The steps, one after the other."""
        check_attributes(unit)
        taken = Steps(unit, arithmetic)
        if unit.is_requantization:
            encoding = unit.results[0].encoding
            if encoding is None:
                raise NotComputable("its scale is computed")
            check_written(encoding, unit.results[0].value.name or "")
            made = _quantize(taken, taken.read(unit.core, 0), encoding)
            return FloatPlan(steps=tuple(taken.steps), results=(), quantized=((unit.core, made),))
        for node in unit.nodes:
            handler = HANDLERS.get((node.domain.removeprefix("ai.onnx"), node.op_type), elementwise.function)
            for value, source in zip(node.outputs, handler(taken, node), strict=False):
                if source is not None:
                    taken.written[value] = source
        if not unit.results:
            raise NotComputable("nothing reads what it writes")
        results, quantized = [], []
        for result in unit.results:
            source = taken.written.get(result.value)
            if not isinstance(source, Made):
                raise NotComputable(f"does not compute {result.value.name}")
            if source.dtype not in (*FLOATS, ir.DataType.BOOL):
                raise NotComputable(f"writes {source.dtype.name.lower()}")
            behind = quantizers_of(result.value)
            quantized += [(node, _quantize(taken, source, encoding)) for node, encoding in behind]
            if len(behind) < len(result.value.uses()) or result.value.is_graph_output():
                results.append((result.value, source))
        return FloatPlan(steps=tuple(taken.steps), results=tuple(results), quantized=tuple(quantized))

    def lower(self, unit: Unit, into: Replacement) -> Change:
        """Write the steps; what is still read as a float keeps its name."""
        plan = self.plan(unit, into.arithmetic)
        made: list[tuple[ir.Value, ...]] = []
        for step in plan.steps:
            made.append(_written(step, made, into))
        pairs = [(value, made[result.step][result.index]) for value, result in plan.results]
        pairs += [(quantize.outputs[0], made[result.step][result.index]) for quantize, result in plan.quantized]
        return into.handed_over(pairs, [quantize for quantize, _ in plan.quantized if quantize is not unit.core])


def _quantize(steps: Steps, source: Source, encoding: Encoding) -> Made:
    arithmetic = steps.arithmetic
    stated: dict[str, int | float | str] = {
        "rounding": arithmetic.rounding, "overflow": arithmetic.overflow, "y_zero_point": int(encoding.zero_point[0]),
        "zero_point_first": int(arithmetic.zero_point_first), "y_scale": float(encoding.scale[0]),
    }  # fmt: skip
    return steps.step("Quantize", source, dtype=encoding.dtype, attributes=stated)


def _written(step: Step, made: list[tuple[ir.Value, ...]], into: Replacement) -> tuple[ir.Value, ...]:
    inputs = [_input(source, made, into) for source in step.inputs]
    first = inputs[0]
    if step.op_type == "FloatCast" and first is not None and _is_rounded(first, step, into):
        return (first,)
    return into.nodes(
        step.op_type,
        inputs,
        count=step.count,
        dtype=step.dtype,
        attributes=step.attributes,
        like=step.like,
        helps=step.op_type in ("FloatCast", "Quantize"),
    )


def _input(source: Source, made: list[tuple[ir.Value, ...]], into: Replacement) -> ir.Value | None:
    if isinstance(source, Made):
        return made[source.step][source.index]
    return into.constant(source.what, source.make()) if isinstance(source, Constant) else source


def _is_rounded(value: ir.Value, step: Step, into: Replacement) -> bool:
    """Whether an operator of a program wrote ``value`` with the precision and type of ``step``, a FloatCast."""
    producer = value.producer()
    if producer is None or producer.domain != DOMAIN or value.dtype != step.dtype:
        return False
    precision = producer.attributes.get("precision")
    return precision is not None and precision.as_string() == into.arithmetic.float_precision
