"""limit-rank

Elements are moved alike whether axes that stay side by side are one or several; and any order of axes comes of a few that move
blocks of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.build import Builder, Site, take_place
from qdq_passes.graph.edit import bypass, drop_unread, remove
from qdq_passes.graph.sizes import rank_of, static_sizes
from qdq_passes.graph.uses import all_nodes, constant_array, integer_of, integers_of, is_standard
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

#: Operators whose output holds the elements of their input in the same order.
_REGROUPED = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
#: Operators along one axis.
_ALONG = ("Concat", "Gather", "Slice", "Split")
#: Operators of two tensors, element by element.
_PAIRED = ("Add", "Div", "Mul", "Sub")
#: Operators that compute element by element, along the last axis, or of matrices.
_BY_ROW = (
    "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "MatMul",
    "Neg", "RMSNormalization", "Relu", "Sigmoid", "Softmax", "Sqrt", "Tanh",
)  # fmt: skip
#: Those of them that have an axis.
_LAST_AXIS = ("LayerNormalization", "RMSNormalization", "Softmax")
#: First opset whose Slice takes its bounds as inputs, and whose constants may be integers.
_OPSET = 10
#: First opset of which a Softmax computes along the last axis by default.
_OPSET_OF_LAST = 13
#: Most blocks of axes that move by themselves: the search for steps grows with them.
_MOST_BLOCKS = 9


@dataclass(frozen=True)
class LimitRank(Pass):
    """Move tensors of more than ``rank`` dimensions with fewer, for chips that have no more.

    Graph: ``x [1,64,4,16] → Reshape [2,4,2,4,2,2,16] → Transpose → Reshape [1,64,4,16]`` → ``x → Reshape → Transpose → Reshape →
    Transpose → Reshape``, each of five dimensions at most: axes of size 1 are left out, neighbours that stay together are one, an
    order that needs more comes in steps. Concat, Gather and Split along an axis take the axes before and behind it as one;
    what is computed element by element, along the last axis, or of matrices is computed of rows, or of one run of matrices.
    Requires: opset 10; static shapes (infer-shapes); constant indices.
    Keeps: inputs, outputs and their names; numerics bit-exact (elements only move).
    Skips: other operators of so many dimensions; shapes that are not static.

    Args:
        select: the operators.
        rank: most dimensions.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    rank: int = 5

    def __post_init__(self) -> None:
        if self.rank < 4:
            raise UsageError(f"{self.rank} dimensions are too few", where=self.name(), hint="write rank=4 or more")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Operator by operator; then a Reshape behind a Reshape is one."""
        build = Builder(model)
        changed = False
        for node in nodes_of_types(model, self.select, *_REGROUPED, *_ALONG, *_BY_ROW, *_PAIRED, "Transpose"):
            data = [value for value in node.inputs if value is not None and constant_array(value) is None]
            ranks = [len(value.shape) for value in (*data, *node.outputs) if value.shape is not None]
            if max(ranks, default=0) <= self.rank:
                continue
            sizes = [static_sizes(value) for value in (*data, *node.outputs)]
            if not data or any(found is None or 0 in found for found in sizes):
                yield skip(node, "its shapes are not static, or empty")
                continue
            at = build.at(node)
            made = self._moved(node, at) if at.opset >= _OPSET else f"needs opset {_OPSET}"
            if isinstance(made, str):
                yield skip(node, made)
                continue
            parameters = list(node.inputs)
            yield take_place(node, made, build.namer, f"in {self.rank} dimensions at most")
            yield from drop_unread([value for value in parameters if value is not None and value.producer() is None])
            changed = True
        if changed:
            yield from _merge(model, build)

    def _moved(self, node: ir.Node, at: Site) -> list[ir.Value] | str:
        """What stands for the outputs of ``node``; or why nothing does."""
        first = node.inputs[0]
        assert first is not None
        before, after = _sizes(first), [_sizes(value) for value in node.outputs]
        if is_standard(node, *_REGROUPED):
            return [_shaped(at, first, after[0])]
        if is_standard(node, "Transpose"):
            order = integers_of(node, "perm") or list(range(len(before)))[::-1]
            steps = steps_of(before, order, self.rank)
            if steps is None:
                return f"more than {_MOST_BLOCKS} axes move by themselves"
            value = first
            for shape, perm in steps:
                value = _shaped(at, value, shape)
                value = at.transpose(value, *perm)
                value.shape = ir.Shape([shape[axis] for axis in perm])
            return [_shaped(at, value, after[0])]
        if is_standard(node, *_PAIRED):
            return _paired(node, at, after[0], self.rank)
        return _along(node, at, before, after) if is_standard(node, *_ALONG) else _by_row(node, at, before, after)


def steps_of(sizes: Sequence[int], order: Sequence[int], rank: int) -> list[tuple[list[int], list[int]]] | None:
    """(shape, order) of Transposes of at most ``rank`` axes that together put the axes of ``sizes`` into ``order``.

    >>> steps_of([2, 1, 3, 4], [0, 1, 3, 2], 4)
    [([2, 3, 4], [0, 2, 1])]
    """
    wanted = [axis for axis in order if sizes[axis] != 1]
    of = {place: sizes[axis] for place, axis in enumerate(wanted)}
    places = [wanted.index(axis) for axis in range(len(sizes)) if sizes[axis] != 1]
    found: list[tuple[list[int], list[int]]] = []
    while len(blocks := _blocks(places)) > 1:
        if len(blocks) > _MOST_BLOCKS:
            return None
        groups = blocks if len(blocks) <= rank else None
        if groups is None:
            groups, moved = min(_moves(blocks, rank), key=lambda move: len(_blocks([p for b in move[1] for p in b])))
        else:
            moved = sorted(blocks)
        found.append(([math.prod(of[p] for p in group) for group in groups], [groups.index(group) for group in moved]))
        places = [place for group in moved for place in group]
    return found


def _blocks(places: Sequence[int]) -> list[list[int]]:
    """Runs of ``places`` in which each is followed by the next."""
    found: list[list[int]] = []
    for place in places:
        if found and found[-1][-1] + 1 == place:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _moves(blocks: Sequence[list[int]], rank: int) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Ways to join ``blocks`` into ``rank`` groups of neighbours, and to order those."""
    for cuts in itertools.combinations(range(1, len(blocks)), rank - 1):
        ends = (0, *cuts, len(blocks))
        groups = [[p for block in blocks[a:b] for p in block] for a, b in itertools.pairwise(ends)]
        for moved in itertools.permutations(groups):
            yield groups, list(moved)


def _along(node: ir.Node, at: Site, before: list[int], after: list[list[int]]) -> list[ir.Value] | str:
    """Of Concat, Gather, Slice and Split, with the axes before and behind theirs as one each."""
    cut = _one_slice(node, before) if is_standard(node, "Slice") else None
    if cut is None and is_standard(node, "Slice"):
        return "it cuts along several axes, backwards, or where is computed"
    axis = cut[0] if cut is not None else integer_of(node, "axis", 0) % len(before)
    outer, inner = math.prod(before[:axis]), math.prod(before[axis + 1 :])

    def flat(value: ir.Value | None) -> ir.Value:
        assert value is not None
        return _shaped(at, value, [outer, _sizes(value)[axis], inner])

    if cut is not None:
        part = at.slice(flat(node.inputs[0]), 1, *cut[1:])
        part.shape = ir.Shape([outer, after[0][axis], inner])
        return [_shaped(at, part, after[0])]
    if is_standard(node, "Gather"):
        indices = constant_array(node.inputs[1])
        if indices is None:
            return "its indices are computed"
        taken = at(
            "Gather", flat(node.inputs[0]), at.constant(indices.reshape(-1).astype(np.int64), word="indices"), axis=1
        )
        taken.shape = ir.Shape([outer, indices.size, inner])
        return [_shaped(at, taken, after[0])]
    if is_standard(node, "Concat"):
        if any(constant_array(value) is not None for value in node.inputs):
            return "it joins a constant"
        joined = at("Concat", *map(flat, node.inputs), axis=1)
        joined.shape = ir.Shape([outer, after[0][axis], inner])
        return [_shaped(at, joined, after[0])]
    parts, start = [], 0
    for sizes in after:
        part = at.slice(flat(node.inputs[0]), 1, start, start + sizes[axis])
        part.shape = ir.Shape([outer, sizes[axis], inner])
        parts.append(_shaped(at, part, sizes))
        start += sizes[axis]
    return parts


def _one_slice(node: ir.Node, sizes: list[int]) -> tuple[int, int, int, int] | None:
    """(axis, start, end, step) of a Slice that cuts along one axis, forwards, by constants."""
    given = [constant_array(value) for value in node.inputs[1:]]
    if len(given) < 3 or any(array is None or array.size != 1 for array in given):
        return None
    start, end, axis, *steps = (int(array.reshape(-1)[0]) for array in given if array is not None)
    step, size = steps[0] if steps else 1, sizes[axis]
    if step < 1:
        return None
    start, end = (min(max(place + size if place < 0 else place, 0), size) for place in (start, end))
    return axis % len(sizes), start, end, step


def _by_row(node: ir.Node, at: Site, before: list[int], after: list[list[int]]) -> list[ir.Value] | str:
    """Of operators whose rows, or matrices, are computed alike."""
    first, rest, rank = node.inputs[0], list(node.inputs[1:]), len(before)
    last = 2 if is_standard(node, "MatMul") else 1
    default = 1 if is_standard(node, "Softmax") and at.opset < _OPSET_OF_LAST else -1
    if is_standard(node, *_LAST_AXIS) and integer_of(node, "axis", default) not in (-1, rank - 1):
        return "it computes along another axis than the last"
    if is_standard(node, *_LAST_AXIS) and any(value is not None and rank_of(value) not in (0, 1) for value in rest):
        return "its gain or shift has axes of its own"
    if len(after) != 1 or len(before) != len(after[0]) or before[:-last] != after[0][:-last]:
        return "its first input is broadcast, or it has more outputs"
    if last == 2 and rest[0] is not None:
        sizes = static_sizes(rest[0])
        if sizes is not None and len(sizes) == rank and sizes[:-2] == before[:-2]:
            rest[0] = _shaped(at, rest[0], [math.prod(sizes[:-2]), *sizes[-2:]])
        elif sizes is None or len(sizes) != 2:
            return "its second input is broadcast"
        else:
            last = 1  # rows times one matrix
    assert first is not None
    inner = after[0][-last:]
    made = at(node.op_type, _shaped(at, first, [math.prod(before[:-last]), *before[-last:]]), *rest)
    producer = made.producer()
    assert producer is not None
    for name, attribute in node.attributes.items():
        producer.attributes[name] = ir.AttrInt64("axis", -1) if name == "axis" else attribute
    made.shape = ir.Shape([math.prod(after[0][:-last]), *inner])
    return [_shaped(at, made, after[0])]


def _paired(node: ir.Node, at: Site, out: list[int], rank: int) -> list[ir.Value] | str:
    """Of two tensors, with neighbours that both have, or that one of them repeats, as one axis."""
    pair = [value for value in node.inputs if value is not None]
    padded = []
    for value in pair:
        sizes = static_sizes(value)
        if sizes is None:
            return "its shapes are not static, or empty"
        padded.append([1] * (len(out) - len(sizes)) + sizes)
    groups: list[list[int]] = []
    kinds: list[tuple[bool, ...]] = []
    for axis, size in enumerate(out):
        if size == 1:
            continue
        kind = tuple(sizes[axis] == size for sizes in padded)
        if kinds and kinds[-1] == kind:
            groups[-1].append(axis)
        else:
            groups.append([axis])
            kinds.append(kind)
    if len(groups) > rank:
        return f"it repeats along {len(groups)} runs of axes"
    shapes = [[math.prod(sizes[axis] for axis in group) for group in groups] or [1] for sizes in padded]
    made = at(node.op_type, *(_regrouped(at, value, shape) for value, shape in zip(pair, shapes, strict=True)))
    made.shape = ir.Shape([math.prod(out[axis] for axis in group) for group in groups] or [1])
    return [_shaped(at, made, out)]


def _regrouped(at: Site, value: ir.Value, shape: list[int]) -> ir.Value:
    array = constant_array(value)
    if array is None or value.dtype is None:
        return _shaped(at, value, shape)
    return at.constant(array.reshape(shape), value.dtype, "regrouped")


def _shaped(at: Site, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
    made = at.reshape(value, list(sizes))
    made.shape = ir.Shape(list(sizes))
    return made


def _sizes(value: ir.Value) -> list[int]:
    found = static_sizes(value)
    assert found is not None
    return found


def _merge(model: ir.Model, build: Builder) -> Iterator[Change]:
    """Let a Reshape behind a Reshape read what that reads, and take away those that nobody needs then."""
    for node in [node for node in all_nodes(model) if is_standard(node, "Reshape")]:
        first = node.inputs[0].producer() if node.inputs[0] is not None else None
        sizes = static_sizes(node.outputs[0])
        if (
            first is None
            or sizes is None
            or 0 in sizes
            or not is_standard(first, "Reshape")
            or first.graph is not node.graph
        ):
            continue
        shape = node.inputs[1]
        node.replace_input_with(0, first.inputs[0])
        node.replace_input_with(1, build.at(node).constant(sizes, word="shape"))
        yield from drop_unread([shape])
        yield Change("edit", node.name or "", f"reads what {first.name} reads")
        if not first.outputs[0].uses() and not first.outputs[0].is_graph_output():
            parameters = list(first.inputs)
            yield from remove(first, "is a Reshape before a Reshape")
            yield from drop_unread(parameters[1:])
    for node in [node for node in all_nodes(model) if is_standard(node, "Reshape")]:
        same = static_sizes(node.inputs[0]) == static_sizes(node.outputs[0]) is not None
        if same and not node.outputs[0].is_graph_output():
            parameters = list(node.inputs)
            yield bypass(node, build.namer, "changes nothing")
            yield from drop_unread(parameters[1:])
