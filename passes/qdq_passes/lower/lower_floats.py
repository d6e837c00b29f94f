"""lower-floats

Every operator is float32 on numbers that are rounded to the target's precision, and so is its result: docs/npu_program.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.analysis.plans.float_steps import Constant, Made, Source, Step
from qdq_passes.analysis.plans.floats import float_plan
from qdq_passes.analysis.program_operators import DOMAIN
from qdq_passes.core.base import Change
from qdq_passes.core.program_edit import Replacement, attributes_of
from qdq_passes.graph.annotate import TARGET
from qdq_passes.lower._lowering import Lowering
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True)
class LowerFloats(Lowering):
    """Turn what the NPU computes in floating point into operators that round what they read and what they write.

    Graph: ``DQ(x), DQ(w) → MatMul → Q`` → ``DQ(x), weight → ai.qdqtool::FloatMatMul → ai.qdqtool::Quantize``; constants are
    stored as numbers of the target's precision. ``x → Sigmoid`` → ``x, table [65536] → ai.qdqtool::FloatLookup``. What moves
    elements stays a standard operator, behind an ``ai.qdqtool::FloatCast`` where its input is not rounded yet.
    Requires: assign-targets.
    Keeps: inputs, outputs and all names; numerics become the target's floating point.
    Skips: what its annotation leaves to the CPU or to integers; what has no kernel, with the reason.
    """

    lowers: ClassVar[str] = "floats"

    def _assigned(self, model: ir.Model) -> list[Unit]:
        """The units that the NPU computes in floating point."""
        placed = ((unit, TARGET.get(unit.core)) for unit in units_of(model))
        return [unit for unit, p in placed if p is not None and p.partition is not None and p.verdict == "npu-float"]

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """The steps of the plan, one after the other."""
        plan = float_plan(unit, arithmetic)
        made: list[tuple[ir.Value, ...]] = []
        for step in plan.steps:
            made.append(_written(step, made, into))
        pairs = [(value, made[result.step][result.index]) for value, result in plan.results]
        pairs += [(quantize.outputs[0], made[result.step][result.index]) for quantize, result in plan.quantized]
        quantizers = [quantize for quantize, _ in plan.quantized if quantize is not unit.core]
        return into.handed_over(pairs, quantizers)


def _written(step: Step, made: list[tuple[ir.Value, ...]], into: Replacement) -> tuple[ir.Value, ...]:
    inputs = [_input(source, made, into) for source in step.inputs]
    first = inputs[0]
    if step.op_type == "FloatCast" and first is not None and _is_rounded(first, step):
        return (first,)
    return into.nodes(
        step.op_type,
        inputs,
        count=step.count,
        dtype=step.dtype,
        attributes=step.standard or attributes_of(step.attributes),
        like=step.like,
        helps=step.op_type in ("FloatCast", "Quantize"),
    )


def _input(source: Source, made: list[tuple[ir.Value, ...]], into: Replacement) -> ir.Value | None:
    if isinstance(source, Made):
        return made[source.step][source.index]
    return into.constant(source.what, source.make()) if isinstance(source, Constant) else source


def _is_rounded(value: ir.Value, step: Step) -> bool:
    """Whether an operator of a program wrote ``value`` with the precision and type of ``step``, a FloatCast."""
    producer = value.producer()
    if producer is None or producer.domain != DOMAIN or value.dtype != step.dtype:
        return False
    precision = producer.attributes.get("precision")
    return precision is not None and precision.as_string() == step.attributes["precision"]
