"""Parts of a model that can stand alone: which nodes stay together, and the model that some of them make.

Units are the nodes of the main graph, but for

    what is computed from constants alone    goes with whoever reads it
    the Q and the DQ of a pair               stand on a float value, and go with whoever reads or writes that: a cut
                                             through a pair would leave integers that nobody knows the meaning of

A value that the part reads and does not compute is an input of it; an integer one (a shape, indices) whose value is known is a
constant. What nothing in the part reads is an output, behind its pair where it has one, and so are those outputs of the model
that it computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import cached_property

import numpy as np
import onnx_ir as ir
from qdq_passes.clean.extract_subgraph import ExtractSubgraph
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import is_constant, is_standard, main_nodes, values_read
from qdq_passes.numerics.arrays import Array
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.qdq.look.pairs import Pair, qdq_pairs

#: Operators that compute from nothing what differs from run to run.
_RANDOM = ("RandomNormal", "RandomUniform")

Unit = tuple[ir.Node, ...]


class Parts:
    """The units of ``model``, whose nodes are in order and named, and the models that they make.

    Args:
        model: the whole model; it stays as it is.
        cuts: names of the values that may be cut; None for all. Nodes at both sides of another value are one unit.
        fine: what is computed from constants is units as well.
    """

    def __init__(self, model: ir.Model, cuts: Set[str] | None = None, *, fine: bool = False) -> None:
        self.model = model
        self._nodes = main_nodes(model)
        constants = [node for node in self._nodes if is_standard(node, "Constant")]
        self._constant = set(constants) if fine else _constant_nodes(self._nodes)
        self._pairs: dict[ir.Value, list[Pair]] = defaultdict(list)
        for pair in qdq_pairs(model):
            if pair.q is not None and pair.dq.graph is model.graph and pair.source is not None:
                self._pairs[pair.source].append(pair)
        halves = {node for pairs in self._pairs.values() for pair in pairs for node in (pair.q, pair.dq)}
        self._follow = {node for node in halves if node is not None} | self._constant
        self._readers: dict[ir.Value, list[ir.Node]] = defaultdict(list)
        for node in self._nodes:
            for value in dict.fromkeys(values_read(node)):
                self._readers[value].append(node)
        self.cuts = cuts

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The units in the order of the model; where everything is pairs and constants, these."""
        nodes = [node for node in self._nodes if node not in self._follow]
        if not nodes:
            self._follow = self._constant
            nodes = [node for node in self._nodes if node not in self._constant]
        leader = {node: node for node in nodes}

        def find(node: ir.Node) -> ir.Node:
            while leader[node] is not node:
                node = leader[node]
            return node

        for node in nodes if self.cuts is not None else ():
            for value in node.outputs:
                if self.float_name(value) not in (self.cuts or ()):
                    for reader in self._reading_units(value):
                        leader[find(reader)] = find(node)
        groups: dict[ir.Node, list[ir.Node]] = defaultdict(list)
        for node in nodes:
            groups[find(node)].append(node)
        return tuple(map(tuple, groups.values()))

    def above(self, units: Sequence[Unit]) -> list[Unit]:
        """Those of ``units`` that the last of them is computed by, and itself."""
        inside = {node: unit for unit in units for node in unit}
        if not inside:
            return []
        found, stack, seen = {units[-1]}, list(units[-1]), set(units[-1])
        while stack:
            for value in values_read(stack.pop()):
                node = value.producer()
                if node is not None and node not in seen and (node in inside or node in self._follow):
                    seen.add(node)
                    stack.append(node)
                    if node in inside:
                        found.add(inside[node])
                        stack += [other for other in inside[node] if other not in seen]
                        seen.update(inside[node])
        return [unit for unit in units if unit in found]

    def ends(self, units: Iterable[Unit]) -> tuple[list[ir.Value], list[ir.Value]]:
        """The values that the part ``units`` reads from outside, and the float values that it ends at."""
        kept = {node for unit in units for node in unit}
        ends = [value for node in self._nodes if node in kept for value in self._ending(node, kept)]
        found, stack = set(kept), [*kept]
        stack += [dq for value in ends if (dq := self._reading(value).producer()) is not None]
        read: dict[ir.Value, None] = {}
        while stack:
            node = stack.pop()
            found.add(node)
            for value in values_read(node):
                producer = value.producer()
                if producer is None and not is_constant(value):
                    read[value] = None
                elif producer is not None and producer not in found:
                    if producer in self._follow:
                        found.add(producer)
                        stack.append(producer)
                    else:
                        read[value] = None
        return sorted(read, key=lambda value: value.name or ""), ends

    def float_name(self, value: ir.Value) -> str:
        """What ``value`` is called in the float model: of a pair at a graph output, the name of that output."""
        return self._pairs[value][0].tensor if value in self._pairs else value.name or ""

    def named(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """``values`` of the float model, also by the names that they have here."""
        other = {value.name or "": self.float_name(value) for value in self._pairs}
        return {**values, **{name: values[there] for name, there in other.items() if there in values}}

    def part(self, units: Iterable[Unit], known: Mapping[str, Array] | None = None) -> ir.Model:
        """The model that ``units`` make.

        Args:
            units: some of them.
            known: name → value of what is computed outside of the part; integers among its inputs become constants.

        Raises:
            QdqError: it cannot be cut out: the type of a value is not known.
        """
        inputs, ends = self.ends(units)
        outputs = [self._reading(value).name or "" for value in ends]
        return cut(self.model, [value.name or "" for value in inputs], outputs, known or {})

    def reference(self, units: Iterable[Unit], floats: ir.Model, known: Mapping[str, Array]) -> ir.Model:
        """The same part of the float model ``floats``, its inputs called as those of `part` are.

        Raises:
            QdqError: it cannot be cut out, or the float model does not have these values.
        """
        inputs, ends = self.ends(units)
        names = {self.float_name(value): value.name or "" for value in inputs}
        found = cut(floats, list(names), [self.float_name(value) for value in ends], known)
        for value in found.graph.inputs:
            value.name = names.get(value.name or "", value.name)
        return found

    def _ending(self, node: ir.Node, kept: Collection[ir.Node]) -> list[ir.Value]:
        """Outputs of ``node`` that are the model's or that nothing of ``kept`` reads; none that nobody reads, unless all are."""
        named = [value for value in node.outputs if value.name]
        used = [v for v in named if v.is_graph_output() or self._readers[v]] or named[:1]
        return [
            v for v in used if self._reading(v).is_graph_output() or not any(r in kept for r in self._reading_units(v))
        ]

    def _reading(self, value: ir.Value) -> ir.Value:
        """What those read who read ``value``: itself, or what its pair writes."""
        if value.is_graph_output() or value not in self._pairs:
            return value
        outputs = [pair.output for pair in self._pairs[value]]
        return next((output for output in outputs if output.is_graph_output()), outputs[0])

    def _reading_units(self, value: ir.Value) -> list[ir.Node]:
        """The nodes of units that read ``value``, through pairs."""
        found: list[ir.Node] = []
        for reader in self._readers[value]:
            if reader in self._follow:
                found += [node for output in reader.outputs for node in self._reading_units(output)]
            else:
                found.append(reader)
        return found


def cut(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str], known: Mapping[str, Array]) -> ir.Model:
    """The part of ``model`` between values, as a model of its own; its integer inputs that are ``known`` become constants.

    Raises:
        QdqError: it cannot be cut out.
    """
    found = copy_model(model)
    before = {value.name for value in found.graph.inputs}
    Pipeline((ExtractSubgraph(inputs=tuple(inputs), outputs=tuple(outputs)),)).run(found)
    for value in list(found.graph.inputs):
        name = value.name or ""
        if name in known and name not in before and np.asarray(known[name]).dtype.kind in "iub":
            found.graph.inputs.remove(value)
            value.const_value = ir.tensor(np.asarray(known[name]), name=name)
            found.graph.register_initializer(value)
    return found


def _constant_nodes(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """The nodes that compute from constants alone."""
    found: set[ir.Node] = set()
    for node in nodes:
        read = values_read(node)
        if not is_standard(node, *_RANDOM) and all(is_constant(v) or v.producer() in found for v in read):
            found.add(node)
    return found
