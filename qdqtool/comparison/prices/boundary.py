"""Where operators on integers meet operators in floats: pairs that would not stand, or that nobody needs, but for the latter.

integers → t → Q → DQ → float operator        t is rounded, and nobody behind it needs that: such a pair
Conv in floats → t → Q → DQ → Relu            all on integers or all in floats, no pair would stand between: such a pair
float operator → u → Q → DQ → integers        u is rounded as what reads it computes on integers: none"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from qdq_passes.encode.edit.whole_groups import is_inside_whole
from qdq_passes.graph.operators.qdq_ops import is_quantization
from qdq_passes.graph.uses import has_body, label
from qdq_passes.npu.units.units import Unit, units_of, would_take
from qdq_passes.qdq.look.pairs import Pair, dequantizers, qdq_pairs


def boundary_tensors(model: ir.Model, floats: Collection[str] = ()) -> frozenset[str]:
    """Names of the tensors at the boundary of integers and floats: those that an operator on integers writes and operators in
    floats alone read, and those that an operator in floats writes and an activation on integers reads that is one step with it.

    An operator computes in floats if it is among ``floats``; if it reads a float, of a weight too; or if it reads one tensor
    alone and nothing that it writes is quantized. What reads a tensor from outside, as a graph output, does not count.

    Args:
        model: a quantized model, types inferred; only read.
        floats: names of nodes that were left float, or that a target does not compute on integers, whatever stands around them.
    """
    units = {node: unit for unit in units_of(model) for node in unit.nodes}
    on_integers = {node: is_on_integers(unit, floats) for node, unit in units.items()}
    found: dict[str, bool] = {}
    for pair in qdq_pairs(model):
        writer = pair.source.producer() if pair.q is not None and pair.source is not None else None
        if pair.kind != "activation" or writer not in units or is_quantization(writer):
            continue
        readers = _readers(pair)
        if on_integers[writer]:
            is_edge = bool(readers) and not any(on_integers.get(reader, True) for reader in readers)
        else:
            is_edge = len(readers) == 1 and on_integers.get(readers[0], False) and would_take(units[writer], readers[0])
        found[pair.tensor] = found.get(pair.tensor, True) and is_edge
    return frozenset(name for name, is_edge in found.items() if is_edge)


def _readers(pair: Pair) -> list[ir.Node]:
    """The nodes that read what ``pair`` rounds, whoever of its DequantizeLinear."""
    assert pair.q is not None
    return [use.node for dq in dequantizers(pair.q) or [pair.q] for use in dq.outputs[0].uses()]


def is_on_integers(unit: Unit, floats: Collection[str]) -> bool:
    """Whether a unit reads integers alone, and either several tensors or for a quantized result; see `boundary_tensors`."""
    if has_body(unit.core) or label(unit.core) in floats:
        return False
    if any(is_inside_whole(value) for value in unit.last.outputs):  # pairs stand around all of what is one operator
        return True
    read = [operand for operand in unit.operands if operand.kind not in ("control", "absent")]
    if not read or any(operand.encoding is None for operand in read):
        return False
    return len(read) > 1 or any(result.encoding is not None for result in unit.results)
