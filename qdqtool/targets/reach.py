"""Whether a target shifts between the positions of one unit (`qdq_passes.refine.look.shifts`)."""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes.graph.uses import is_standard
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.refine.look.shifts import RULES, ShiftLimits, Violation

from qdqtool.targets.unit_facts import UnitFacts


def out_of_reach(unit: Unit, limits: ShiftLimits) -> Violation | None:
    """The first rule on shifts that ``unit`` breaks; None where it breaks none, or has no positions."""
    places = _UnitPlaces(unit)
    for rule in RULES:
        if is_standard(unit.core, *rule.op_types):
            violation = rule.violation(places, unit.core, limits)
            if violation is not None:
                return violation
    return None


class _UnitPlaces:
    """Positions of a unit's operands and of its first result; a `qdq_passes.refine.look.shifts.Places`."""

    def __init__(self, unit: Unit) -> None:
        self.reference = False
        self._unit = unit
        self._positions: dict[ir.Node, int] = {}
        for operand in unit.operands:
            self._know(operand.dequantize, operand.encoding)
        for result in unit.results[:1]:
            self._know(result.quantize, result.encoding)

    def input(self, node: ir.Node, index: int, *, beyond: bool = False) -> ir.Node | None:
        """The DequantizeLinear of operand ``index``; nothing stands between, so ``beyond`` changes nothing."""
        operands = self._unit.operands if node is self._unit.core else ()
        half = operands[index].dequantize if index < len(operands) else None
        return half if half in self._positions else None

    def output(self, node: ir.Node) -> ir.Node | None:
        """The QuantizeLinear of the first result."""
        half = self._unit.results[0].quantize if node is self._unit.core and self._unit.results else None
        return half if half in self._positions else None

    def follows(self, bias: ir.Node) -> bool:
        """Whether the bias stands at s_x·s_w."""
        return bool(UnitFacts(self._unit, "").bias_is_product_scale)

    def is_zero(self, half: ir.Node) -> bool:
        """Never: the integers of the file are judged by their scales."""
        return False

    def __getitem__(self, half: ir.Node) -> int:
        """The position of ``half``."""
        return self._positions[half]

    def _know(self, half: ir.Node | None, encoding: Encoding | None) -> None:
        positions = encoding.position if encoding is not None else None
        if half is not None and positions is not None and len(positions) == 1:
            self._positions[half] = positions[0]
