"""Tensors of two models that play the same part, whatever they are called.

Three rules, applied until nothing new is found. *Alike*: colour refinement paints a value by its producer and its readers, a node
by its operator, its attributes and the colours of its inputs and outputs, round after round; where one value of each model has a
colour of round `MIN_RADIUS` or later, and no other has it, the two match. *Forward*: one operator on the same inputs gives the
same outputs. *Backward*: matched results of one operator have the same inputs, as far as those are made alike. What is matched
gets a colour of its own, so that matches spread from the ends of the graph and from weights. Tensors that look alike stay
unmatched."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import is_constant

#: Smallest distance up to which surroundings must agree.
MIN_RADIUS = 2
#: Largest distance that is looked at; what is alike as far as that counts as alike.
MAX_RADIUS = 64


@dataclass(frozen=True)
class Matched:
    """The tensors of two models, by name.

    Args:
        pairs: old name → new name.
        alike: old name → how many tensors of the new model look like it, for those that are not matched.
    """

    pairs: dict[str, str]
    alike: dict[str, int]


Colours = dict[ir.Value, int]


def match_structure(old: ir.Model, new: ir.Model) -> Matched:
    """Which tensor of ``new`` plays the part of each tensor of ``old``."""
    return _Matching(_Side(old), _Side(new)).run()


@dataclass
class _Side:
    """One model as two kinds of things that are connected."""

    model: ir.Model
    values: list[ir.Value] = field(init=False)
    nodes: list[ir.Node] = field(init=False)
    operators: dict[ir.Node, Hashable] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = [node for graph in self.model.graphs() for node in graph]
        self.operators = {node: _operator(node) for node in self.nodes}
        values: dict[ir.Value, None] = {}
        for graph in self.model.graphs():
            values.update(dict.fromkeys([*graph.inputs, *graph.initializers.values()]))
        values.update((value, None) for node in self.nodes for value in node.outputs)
        self.values = [value for value in values if value.name]

    def ends(self, by_name: bool) -> dict[ir.Value, Hashable]:
        """Labels of what goes in and out: of the main graph by name or by place, of bodies by place."""
        labels: dict[ir.Value, Hashable] = {}
        for number, graph in enumerate(self.model.graphs()):
            inputs = [value for value in graph.inputs if not value.is_initializer()]
            for word, ends in (("input", inputs), ("output", list(graph.outputs))):
                for index, value in enumerate(ends):
                    place = value.name if by_name and number == 0 else index
                    labels[value] = (number == 0, word, place, labels.get(value))
        return labels

    def interface(self) -> tuple[set[str | None], set[str | None]]:
        """Names of inputs and outputs of the main graph."""
        return {v.name for v in self.model.graph.inputs}, {v.name for v in self.model.graph.outputs}


@dataclass
class _Matching:
    old: _Side
    new: _Side
    partner: dict[ir.Value, ir.Value] = field(default_factory=dict)
    taken: set[ir.Value] = field(default_factory=set)
    fresh: deque[tuple[ir.Value, ir.Value]] = field(default_factory=deque)
    later: deque[tuple[ir.Value, ir.Value]] = field(default_factory=deque)
    ids: dict[Hashable, int] = field(default_factory=dict)

    def run(self) -> Matched:
        by_name = self.old.interface() == self.new.interface()
        labels = self.old.ends(by_name), self.new.ends(by_name)
        self._anchor_data()
        graphs = self.old.model.graph, self.new.model.graph
        self._anchor_ends([graph.inputs for graph in graphs], labels)
        self._spread(backward=False)
        self._anchor_ends([graph.outputs for graph in graphs], labels)
        while True:
            before = len(self.partner)
            self._spread()
            rounds = self._colour(self.old, labels[0]), self._colour(self.new, labels[1])
            last = min(map(len, rounds)) - 1
            for distance in range(last, MIN_RADIUS - 1, -1):
                if self._match_all(_unique(rounds[0][distance], rounds[1][distance])):
                    break
            if len(self.partner) == before:
                break
        count = Counter(rounds[1][last].values())
        alike = {v.name or "": count[colour] for v, colour in rounds[0][last].items() if v not in self.partner}
        return Matched({a.name or "": b.name or "" for a, b in self.partner.items()}, alike)

    def _match(self, a: ir.Value | None, b: ir.Value | None) -> bool:
        if a is None or b is None or a in self.partner or b in self.taken or not a.name or not b.name:
            return False
        self.partner[a] = b
        self.taken.add(b)
        self.fresh.append((a, b))
        return True

    def _match_all(self, pairs: Iterable[tuple[ir.Value, ir.Value]]) -> bool:
        return any([self._match(a, b) for a, b in pairs])  # noqa: C419  (all of them)

    def _anchor_data(self) -> None:
        """Weights with the same data, where one tensor of each model has it."""
        old, new = (_by_digest(side.values) for side in (self.old, self.new))
        self._match_all((values[0], new[d][0]) for d, values in old.items() if len(values) == len(new.get(d, ())) == 1)

    def _anchor_ends(
        self, ends: Sequence[Sequence[ir.Value]], labels: tuple[dict[ir.Value, Hashable], dict[ir.Value, Hashable]]
    ) -> None:
        """Inputs or outputs of one name (or place) that are made alike and have one type, where there are as many."""
        old, new = ([v for v in part if not v.is_initializer()] for part in ends)
        by_label = {(labels[1][v], v.dtype): v for v in new}
        found = [(v, by_label.get((labels[0][v], v.dtype))) for v in old if len(old) == len(new)]
        self._match_all((a, b) for a, b in found if b is not None and self._made_alike(a, b))

    def _spread(self, *, backward: bool = True) -> None:
        """Backward only where forward, which is certain, finds nothing more."""
        while self.fresh or (backward and self.later):
            if self.fresh:
                pair = self.fresh.popleft()
                self._forward(*pair)
                self.later.append(pair)
            else:
                self._backward(*self.later.popleft())

    def _forward(self, a: ir.Value, b: ir.Value) -> None:
        """The results of what reads ``a``, once all of its inputs are matched."""
        for node in dict.fromkeys(a.consumers()):
            inputs = [None if value is None else self.partner.get(value) for value in node.inputs]
            if any(mine is None and value is not None for mine, value in zip(inputs, node.inputs, strict=True)):
                continue
            operator = self.old.operators[node]
            twins = [
                n for n in a.consumers() if self.old.operators[n] == operator and list(n.inputs) == list(node.inputs)
            ]
            others = [n for n in b.consumers() if self.new.operators[n] == operator and list(n.inputs) == inputs]
            if len(set(twins)) == len(set(others)) == 1:
                self._match_all(zip(node.outputs, others[0].outputs, strict=True))

    def _backward(self, a: ir.Value, b: ir.Value) -> None:
        """The inputs of one operator that made ``a`` and ``b``, unless one of them is matched with something else."""
        left, right = a.producer(), b.producer()
        if left is None or right is None or self.old.operators[left] != self.new.operators[right]:
            return
        inputs = [
            (mine, theirs)
            for mine, theirs in zip(left.inputs, right.inputs, strict=True)
            if mine is not None and theirs is not None
        ]
        if a.index() != b.index() or any(self._is_elsewhere(mine, theirs) for mine, theirs in inputs):
            return
        self._match_all((mine, theirs) for mine, theirs in inputs if self._made_alike(mine, theirs))

    def _is_elsewhere(self, a: ir.Value, b: ir.Value) -> bool:
        """Whether one of the two is matched with something else."""
        return self.partner.get(a, b) is not b or (b in self.taken and a not in self.partner)

    def _made_alike(self, a: ir.Value, b: ir.Value) -> bool:
        left, right = a.producer(), b.producer()
        if left is None or right is None:
            return left is right and is_constant(a) == is_constant(b) and static_sizes(a) == static_sizes(b)
        return self.old.operators.get(left) == self.new.operators.get(right) and a.index() == b.index()

    def _colour(self, side: _Side, labels: dict[ir.Value, Hashable]) -> list[Colours]:
        """Colours of the values after 0, 1, 2… rounds, until nothing new is told apart."""
        back = {b: a for a, b in self.partner.items()}
        start = {node: self._id(("node", side.operators[node])) for node in side.nodes}
        fixed = {
            v: self._id(("match", (v if v in self.partner else back[v]).name))
            for v in side.values
            if v in self.partner or v in back
        }
        rounds: list[Colours] = [{v: fixed.get(v, self._id(_kind(v, labels))) for v in side.values}]
        classes = len(set(rounds[0].values()))
        for _ in range(MAX_RADIUS):
            seen = rounds[-1]
            nodes = {node: self._id(_surroundings(node, start, seen)) for node in side.nodes}
            rounds.append({v: fixed.get(v, self._id(_role(v, nodes, seen))) for v in side.values})
            count = len(set(rounds[-1].values()))
            if count == classes and len(rounds) > MIN_RADIUS:
                break
            classes = count
        return rounds

    def _id(self, key: Hashable) -> int:
        return self.ids.setdefault(key, len(self.ids))


def _by_digest(values: Iterable[ir.Value]) -> dict[str, list[ir.Value]]:
    """Initializers of more than one element by their data."""
    found: dict[str, list[ir.Value]] = {}
    for value in values:
        tensor = value.const_value
        if tensor is not None and tensor.size > 1 and tensor.dtype != ir.DataType.STRING:
            digest = hashlib.sha256(tensor.tobytes()).hexdigest()
            found.setdefault(f"{digest} {tensor.dtype} {list(tensor.shape)}", []).append(value)
    return found


def _surroundings(node: ir.Node, start: dict[ir.Node, int], seen: Colours) -> Hashable:
    inputs = tuple(-1 if value is None else seen.get(value, -1) for value in node.inputs)
    return start[node], inputs, tuple(seen.get(value, -1) for value in node.outputs)


def _role(value: ir.Value, nodes: dict[ir.Node, int], seen: Colours) -> Hashable:
    producer = value.producer()
    made = (-1, -1) if producer is None else (nodes.get(producer, -1), value.index() or 0)
    return seen[value], made, tuple(sorted((nodes.get(use.node, -1), use.idx) for use in value.uses()))


def _operator(node: ir.Node) -> Hashable:
    attributes = []
    for attribute in sorted(node.attributes.values(), key=lambda a: a.name):
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            attributes.append((attribute.name, "body"))
        elif attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            tensor = attribute.as_tensor()
            attributes.append((attribute.name, str((tensor.dtype, list(tensor.shape)))))
        else:
            attributes.append((attribute.name, repr(attribute.value)))
    domain = "" if node.domain == "ai.onnx" else node.domain
    return domain, node.op_type, len(node.inputs), len(node.outputs), tuple(attributes)


def _kind(value: ir.Value, labels: dict[ir.Value, Hashable]) -> Hashable:
    if is_constant(value) and value.producer() is None:
        return "constant", str(value.dtype), tuple(static_sizes(value) or ())
    return "value", labels.get(value)


def _unique(old: Colours, new: Colours) -> list[tuple[ir.Value, ir.Value]]:
    """Values whose colour one of each model has."""
    counts = Counter(old.values()), Counter(new.values())
    by_colour = {colour: value for value, colour in new.items() if counts[1][colour] == 1}
    return [(v, by_colour[colour]) for v, colour in old.items() if counts[0][colour] == 1 and colour in by_colour]
