"""Operators that stay float behind one that a target declines, where no layer follows: pairs beside them would join their region
to the declined one, and gain nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdq_passes.graph.operators.macs import macs_in
from qdq_passes.npu.units.units import Unit, UnitGraph
from qdq_passes.npu.units.verdict import NOTHING_TO_MEND, UNQUANTIZED, Verdict


def behind_declined(graph: UnitGraph, verdicts: Mapping[Unit, Verdict]) -> dict[Unit, Verdict]:
    """``verdicts`` that say of float operators behind a declined one that there is nothing to mend at them.

    Args:
        graph: the units.
        verdicts: what the target says to each.
    """
    units = {number: item for number, item in enumerate(graph.items) if isinstance(item, Unit)}
    declined: dict[int, Unit] = {}
    for number, unit in units.items():
        if verdicts[unit].is_npu or not unit.is_compute:
            continue
        if verdicts[unit].rule != UNQUANTIZED:
            declined[number] = unit
            continue
        read = {operand.value.producer() for operand in unit.operands if operand.value and operand.encoding is None}
        before = [n for n in graph.before[number] if n in declined and not read.isdisjoint(units[n].nodes)]
        if before:
            declined[number] = declined[before[0]]
    costly = _costly(graph)
    return {
        unit: replace(verdicts[unit], suggestion=_behind(declined[number]))
        for number, unit in units.items()
        if number in declined and declined[number] is not unit and number not in costly
    }


def _costly(graph: UnitGraph) -> set[int]:
    """Items that multiply and accumulate, and what they hang on: a layer on the NPU runs there alone behind floats."""
    found: set[int] = set()
    for number in reversed(range(len(graph.items))):
        item = graph.items[number]
        if isinstance(item, Unit) and macs_in(item.nodes):
            found.add(number)
        if number in found:
            found.update(graph.before[number])
    return found


def _behind(culprit: Unit) -> str:
    shown = f"{culprit.core.name} ({culprit.core.op_type})" if culprit.core.name else culprit.core.op_type
    return f"{NOTHING_TO_MEND}it stays float behind {shown}, which the NPU does not take, and no layer follows"
