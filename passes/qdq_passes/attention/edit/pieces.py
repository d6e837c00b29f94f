"""Takes an attention apart: the same operators again for each piece of its queries or heads, and a Concat behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from qdq_passes.attention.look.regions import AttentionRegion
from qdq_passes.core.base import Change
from qdq_passes.graph.build import Builder, drop_chains, take_place
from qdq_passes.graph.edit import graph_of, inherit, make_node, remove

#: First opset whose Split takes its sizes as an input.
OPSET_OF_SIZES = 13
#: Product, shares or operand of a piece: (operand, piece) → what stands for it there.
Standing = Callable[[ir.Value, int], ir.Value]


class Pieces:
    """Values in pieces along an axis, each cut once in its graph; one per run of a pass.

    Args:
        builder: the builder of the pass.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._made: dict[tuple[ir.Value, int, tuple[int, ...], ir.Graph], list[ir.Value]] = {}

    def of(self, value: ir.Value, axis: int, sizes: Sequence[int], anchor: ir.Node) -> list[ir.Value]:
        """``value`` in pieces of ``sizes`` along ``axis``: outputs of one Split behind its producer, or before ``anchor`` where
        the graph does not make it; itself where there is one."""
        key = (value, axis, tuple(sizes), graph_of(anchor))
        if len(sizes) == 1:
            return [value]
        if key not in self._made:
            self._made[key] = self._cut(value, axis, sizes, anchor)
        return self._made[key]

    def _cut(self, value: ir.Value, axis: int, sizes: Sequence[int], anchor: ir.Node) -> list[ir.Value]:
        site = self._builder.at(anchor, base=value.name)
        attributes = [ir.AttrInt64("axis", axis)]
        inputs: list[ir.Value | None] = [value]
        if site.opset < OPSET_OF_SIZES:
            attributes.append(ir.AttrInt64s("split", list(sizes)))
        else:
            inputs.append(site.constant(list(sizes), word="sizes"))
        namer = self._builder.namer
        name = namer.fresh(f"{value.name}_Split")
        outputs = [
            ir.Value(name=namer.fresh(f"{value.name}_{number}"), type=value.type) for number in range(len(sizes))
        ]
        for output, size in zip(outputs, sizes, strict=True):
            output.shape = with_size(value.shape, axis, size)
        node = ir.Node("", "Split", inputs, attributes, outputs=outputs, name=name)
        inherit(node, [anchor])
        maker = value.producer()
        if maker is not None and maker.graph is graph_of(anchor):
            graph_of(anchor).insert_after(maker, node)
        else:
            graph_of(anchor).insert_before(anchor, node)
        return outputs


def with_size(shape: ir.Shape | None, axis: int, size: int) -> ir.Shape | None:
    """``shape`` with another size along ``axis``."""
    if shape is None:
        return None
    dims = list(shape)
    dims[axis] = size
    return ir.Shape(dims)


def in_pieces(
    region: AttentionRegion, sizes: Sequence[int], axis: int, stands: Standing, word: str, builder: Builder
) -> Iterator[Change]:
    """Compute ``region`` in pieces and join them.

    Args:
        region: the attention.
        sizes: sizes of the pieces along ``axis``.
        axis: axis of scores and result that is cut, from the end.
        stands: what stands for an operand in a piece, numbered from 0: query, keys, values, masks.
        word: what a piece is called, in names.
        builder: the builder of the pass.
    """
    nodes = [region.scores, *region.between, region.sums]
    parts = [_copy(nodes, number, size, axis, stands, f"{word}_{number}", builder) for number, size in enumerate(sizes)]
    site = builder.at(region.sums)
    result = site("Concat", *parts, axis=axis + len(region.sizes))
    read = [value for node in nodes for value in node.inputs]
    yield take_place(region.sums, [result], builder.namer, f"{len(sizes)} attentions, one for each {word}")
    yield from remove(reversed(nodes[:-1]), "is computed in pieces")
    yield from drop_chains(read)


def _copy(
    nodes: Sequence[ir.Node], number: int, size: int, axis: int, stands: Standing, word: str, builder: Builder
) -> ir.Value:
    """One piece: each of ``nodes`` again; what the last one writes."""
    graph, anchor = graph_of(nodes[-1]), nodes[-1]
    twins: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        inputs = [None if v is None else twins.get(v) or stands(v, number) for v in node.inputs]
        old = node.outputs[0]
        twin = make_node(
            node.op_type, inputs, name=builder.namer.fresh(f"{node.name}_{word}"), domain=node.domain, like=old,
            output=builder.namer.fresh(f"{old.name}_{word}"), attributes=list(node.attributes.values()), stands_for=[node],
        )  # fmt: skip
        twin.outputs[0].shape = with_size(old.shape, axis, size)
        graph.insert_before(anchor, twin)
        twins[old] = twin.outputs[0]
    return twins[nodes[-1].outputs[0]]
