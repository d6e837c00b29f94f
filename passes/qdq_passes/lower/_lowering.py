"""What the lowering passes share: which units they take, and the attributes of arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.computable import FAMILIES, family_of
from qdq_passes.analysis.plans.operands import NotComputable, step, zero
from qdq_passes.analysis.plans.products import Scaling
from qdq_passes.analysis.plans.tails import Tail
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.core.program_edit import Replacement, Surgery
from qdq_passes.errors import QdqError
from qdq_passes.graph.annotate import TARGET
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.npu.units.verdict import TargetRules
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding

Attributes = dict[str, int | float | str | list[int]]

CHANGES = Keeps("changes", why="the target's integer arithmetic takes the place of float32 between integers")


@dataclass(frozen=True)
class Lowering(Pass):
    """Base of the passes that lower one family of `computable.FAMILIES`.

    Args:
        target: whose arithmetic is written down.
    """

    keeps: ClassVar[Keeps] = CHANGES
    #: What subclasses lower.
    lowers: ClassVar[str] = ""
    target: TargetRules | Named

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Unit by unit; those that run on the CPU are left alone."""
        assert not isinstance(self.target, Named)
        arithmetic, surgery = self.target.arithmetic, None
        for unit in self._assigned(model):
            surgery = surgery or Surgery(model)
            try:
                yield self.lower(unit, arithmetic, surgery.replace(unit))
            except NotComputable as reason:
                yield skip(unit.core, str(reason))
            except QdqError as error:  # what is stored is broken
                yield skip(unit.core, error.message)

    def _assigned(self, model: ir.Model) -> list[Unit]:
        """The units of the family that the NPU computes; few models have all families, so nodes are looked at first."""
        types = FAMILIES.get(self.lowers, ())
        if types and not any(node.op_type in (*types, "Pad") for node in model.graph):
            return []
        placed = ((unit, TARGET.get(unit.core)) for unit in units_of(model))
        taken = [unit for unit, placement in placed if placement is not None and placement.partition is not None]
        return [unit for unit in taken if _is_integer(unit) and family_of(unit) == self.lowers]

    def lower(self, unit: Unit, arithmetic: Arithmetic, into: Replacement) -> Change:
        """Write ``unit`` down as operators.

        Raises:
            NotComputable: there is no plan; nothing was changed.
        """
        raise NotImplementedError


def _is_integer(unit: Unit) -> bool:
    placement = TARGET.get(unit.core)
    return placement is not None and placement.verdict != "npu-float"


def output_attributes(
    output: Encoding,
    tail: Tail,
    arithmetic: Arithmetic,
    *,
    mode: str | None = None,
    sums: bool = True,
    wide: bool = False,
) -> Attributes:
    """How an exact sum becomes integers of ``output``; ``mode`` where it is not that of the arithmetic, ``wide`` where an operand
    has 16 bits."""
    chosen = mode or ("float" if arithmetic.requantize == "float" else "integer")
    found: Attributes = {
        "mode": chosen,
        "rounding": arithmetic.rounding,
        "overflow": arithmetic.overflow,
        "zero_point_first": int(arithmetic.zero_point_first),
        "y_type": int(output.dtype),
        "y_zero_point": zero(output),
    }
    if sums:
        found |= {
            "accumulator_bits": arithmetic.wide_accumulator if wide else arithmetic.accumulator,
            "accumulator_overflow": arithmetic.accumulator_overflow,
        }
    if chosen == "float":
        found["y_scale"] = step(output)
    bounds = {"y_low": tail.low, "y_high": tail.high}
    return found | {name: bound for name, bound in bounds.items() if bound is not None}


def scaling_inputs(scaling: Scaling, into: Replacement) -> list[ir.Value | None]:
    """The inputs of a sum of products behind its bias: multiplier and shift, and those of sums below 0."""
    if scaling.scale is not None:
        slope = None if scaling.slope is None else into.constant("slope", scaling.slope)
        return [into.constant("scale", scaling.scale), None, slope]
    found: list[ir.Value | None] = []
    for prefix, multiplier in (("", scaling.multiplier), ("negative_", scaling.negative)):
        if multiplier is not None:
            found.append(into.constant(f"{prefix}multiplier", multiplier.value.astype(np.int32)))
            found.append(into.constant(f"{prefix}shift", multiplier.shift.astype(np.int32)))
    return found
