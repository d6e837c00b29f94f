"""Regions: the nodes of a quantized model between tensors that the float model has too.

x → Q → DQ → Conv → Relu → y → Q → DQ        one region, as Conv and Relu are one unit; x and y are in the float model
            HardSigmoid → h → Mul → y         one region as well: the float model has a Sigmoid there, and no h"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.edit.whole_groups import is_inside_whole
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantization
from qdq_passes.graph.uses import is_constant, is_standard, label, may_be_float, values_read
from qdq_passes.npu.units.units import Unit, units_of
from qdq_passes.qdq.look.pairs import Pair, dequantizers, half_pairs, pair_of

#: Shapes by tensor: a number or a name per dimension; None where the rank is not known.
Shapes = Mapping[str, tuple[int | str | None, ...] | None]


@dataclass(frozen=True, eq=False, kw_only=True)
class Region:
    """Nodes that are measured together.

    Args:
        name: the first node of the unit that writes the results.
        op: its operator.
        nodes: names of all its nodes, in the order of the graph.
        results: what it writes, float values before any pair, by the tensor's name.
        reads: tensors of the borders that it computes them from, in the order of the graph's inputs and nodes.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    results: dict[str, ir.Value]
    reads: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Regions:
    """The regions of a model.

    Args:
        regions: in the order of the graph.
        borders: tensor → the float value in the model at which regions are cut: results of regions, graph inputs, and what a
            DequantizeLinear makes of integers from outside.
        unmatched: (node, reason).
    """

    regions: list[Region]
    borders: dict[str, ir.Value]
    unmatched: list[tuple[str, str]]

    def on(self, copy: ir.Model) -> Regions:
        """The same of a copy of the model, whose values have the same names."""
        there = {value.name: value for value in _candidates(copy)}
        borders = {name: there[value.name] for name, value in self.borders.items()}
        regions = [
            replace(region, results={name: there[value.name] for name, value in region.results.items()})
            for region in self.regions
        ]
        return Regions(regions=regions, borders=borders, unmatched=self.unmatched)


def regions_of(model: ir.Model, known: Shapes) -> Regions:
    """The regions of the quantized ``model``, whose types are known as far as inference goes.

    Args:
        model: only read.
        known: float tensors of the float model, with their shapes.
    """
    units = units_of(model)
    inside = {v for unit in units for node in unit.nodes[:-1] for v in node.outputs}
    borders: dict[str, ir.Value] = {}
    for value in _candidates(model):
        name = tensor_name(value)
        if name in known and value not in inside and not is_inside_whole(value) and fits(value, known[name]):
            borders.setdefault(name, value)
    at_border = set(borders.values())
    found, absorbed = list[Region](), list[tuple[Unit, str]]()
    owner: dict[ir.Node, str] = {}
    for unit in units:
        if unit.is_requantization or is_quantization(unit.core) or not unit.is_compute:
            continue
        results = {tensor_name(v): v for v in unit.last.outputs if v in at_border}
        if results:
            region = _region(model, unit, results, borders)
            owner |= dict.fromkeys(_nodes_behind(results, at_border), region.name)
            found.append(region)
        elif any(may_be_float(v) for v in unit.last.outputs):
            absorbed.append((unit, tensor_name(unit.last.outputs[0])))
    unmatched = [(label(u.core), _why(u, written, owner, known)) for u, written in absorbed]
    return Regions(regions=found, borders=borders, unmatched=unmatched)


def tensor_name(value: ir.Value) -> str:
    """The name of the tensor that ``value`` holds: that of its pair, of a graph output the output's."""
    for use in value.uses():
        if use.idx == 0 and is_quantization(use.node) and not is_dequantize(use.node):
            for dq in dequantizers(use.node) or [use.node]:
                pair = pair_of(dq)
                if pair is not None and pair.q is use.node and not is_conversion(pair):
                    return pair.tensor
    return value.name or ""


def fits(value: ir.Value, shape: tuple[int | str | None, ...] | None) -> bool:
    """Whether ``value`` may have ``shape``, by the dimensions that both tell."""
    if value.shape is None or shape is None:
        return True
    pairs = zip(value.shape.dims, shape, strict=False)
    known = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    return len(value.shape) == len(shape) and all(a == b for a, b in known)


def _candidates(model: ir.Model) -> list[ir.Value]:
    """Float values at which may be cut: graph inputs, what operators write, and dequantized integers from outside."""
    found = [v for v in model.graph.inputs if not v.is_initializer() and may_be_float(v)]
    halves = {half.node for half in half_pairs(model) if not half.is_q}
    for node in model.graph:
        if node in halves or not (is_standard(node, "Constant") or is_quantization(node)):
            found += [v for v in node.outputs if may_be_float(v)]
    return found


def _region(model: ir.Model, unit: Unit, results: dict[str, ir.Value], borders: Mapping[str, ir.Value]) -> Region:
    read = set[ir.Value]()
    members = _nodes_behind(results, set(borders.values()), read)
    names = tuple(label(node) for node in model.graph if node in members)
    reads = tuple(name for name, value in borders.items() if value in read)
    return Region(name=label(unit.core), op=unit.core.op_type, nodes=names, results=results, reads=reads)


def _nodes_behind(
    results: Mapping[str, ir.Value], borders: Collection[ir.Value], read: set[ir.Value] | None = None
) -> set[ir.Node]:
    """The operators that compute ``results`` from borders, constants and values that are no floats; borders go to ``read``."""
    found: set[ir.Node] = set()
    todo = [node for v in results.values() if (node := v.producer()) is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if not is_quantization(node):
            found.add(node)
        for value in values_read(node):
            before = value.producer()
            if value in borders and read is not None:
                read.add(value)
            if value in borders or before is None or before in seen or is_constant(value):
                continue
            if not may_be_float(value) and not is_quantization(before):
                continue
            seen.add(before)
            todo.append(before)
    return found


def _why(unit: Unit, written: str, owner: Mapping[ir.Node, str], known: Shapes) -> str:
    if unit.core in owner:
        return f"the float model has no tensor {written!r}: measured together with {owner[unit.core]}"
    if written in known:
        return f"{written!r} has another shape in the float model"
    near = difflib.get_close_matches(written, list(known), n=3)
    return f"the float model has no tensor {written!r}" + (f"; nearest: {', '.join(near)}" if near else "")


def is_conversion(pair: Pair) -> bool:
    """Whether ``pair`` stands behind another one: it brings integers from one type to another."""
    before = pair.q.inputs[0] if pair.q is not None else None
    producer = before.producer() if before is not None else None
    return producer is not None and is_dequantize(producer)
