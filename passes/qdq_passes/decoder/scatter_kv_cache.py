"""scatter-kv-cache"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.registry import PASSES
from qdq_passes.decoder.edit.slots import Rows, Slots, ensure_positions
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.decoder.look.updates import IN_PLACE, Growth, growth_of, numbers, refuse_other_readers, way_out
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.build import Builder, attribute_of
from qdq_passes.graph.edit import drop_unread, make_node, replace_nodes
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import label

_OPERATORS = {"scatter-elements": "ScatterElements", "scatter-nd": "ScatterND", "tensor-scatter": "TensorScatter"}
#: First opset of TensorScatter; that of both others.
OPSET_OF_TENSOR_SCATTER, OPSET_OF_SCATTER = 24, 11


@dataclass(frozen=True)
class ScatterKvCache(Pass):
    """Update the KV cache in place: past has a slot for every token, new rows are written at the positions of the tokens.

    present[b, h, p(b, s), d] = new[b, h, s, d], elsewhere past[b, h, k, d]; p = ``position_ids`` [B, S], the cache [B, H, C, D]
    with the sequence on any axis. One index tensor serves all tensors of equal shape.

    Graph: ``past [B, H, C-S, D], new [B, H, S, D] → Concat → present [B, H, C, D]`` →
    ``past [B, H, C, D], indices, new → ScatterElements → present [B, H, C, D]``.
    Requires: static shapes (bind-decoder), an update that alone reads the past. TensorScatter needs opset 24: the model is
    converted to it (convert-opset).
    Keeps: names of inputs and outputs; a token's row stands in the slot of its position, where a mask of positions looks for it.
    Skips: a cache that is updated in place already. One inside an attention is refused, with the way out.

    Args:
        operator: what writes the rows; tensor-scatter writes them one behind the other from the first row's slot on.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="past has C slots, not C - S, and holds tokens at their positions")
    operator: Literal["scatter-elements", "scatter-nd", "tensor-scatter"] = "scatter-elements"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Check every tensor of the cache, then change all."""
        operator = _OPERATORS[self.operator]
        needed = OPSET_OF_TENSOR_SCATTER if operator == "TensorScatter" else OPSET_OF_SCATTER
        pairs = decoder_io(model).pairs
        if all(isinstance(growth_of(pair), Growth) for pair in pairs) and model.opset_imports.get("", 1) < needed:
            yield from PASSES.load("convert-opset")(version=needed, at_least=True).run(model)
        io, inferred, builder = decoder_io(model), Inferred(model), Builder(model)
        growths = []
        for pair in io.pairs:
            growth = growth_of(pair)
            if isinstance(growth, Growth):
                refuse_other_readers(pair)
                growths.append((growth, _rows(growth, inferred)))
            elif growth == IN_PLACE:
                yield skip(pair.update, growth)
            else:
                raise UnsupportedError(growth, where=label(pair.update), hint=way_out(pair))
        if not growths:
            return
        first = growths[0][1]
        batch, length = first.sizes[first.batch_axis], first.sizes[first.axis]
        positions, is_new = ensure_positions(model, io, builder, batch, length)
        if is_new:
            yield Change("insert", positions.name or "", "input: the position of each token")
        slots = Slots(builder, positions)
        for growth, rows in growths:
            yield _scatter(operator, growth, rows, slots, builder)


def _rows(growth: Growth, inferred: Inferred) -> Rows:
    """The new rows of ``growth``; their sizes and those of past and present must fit."""
    pair, update = growth.pair, growth.pair.update
    new = inferred.sizes(growth.new)
    if new is None:
        new = numbers(growth.new)
    past = numbers(pair.past)
    past = [past[axis] for axis in growth.passed[0].axes]
    present = inferred.sizes(update.outputs[0])
    grown = [size + (new[axis] if axis == growth.axis else 0) for axis, size in enumerate(past)]
    fits = len(new) == len(past) and all(
        a == b for i, (a, b) in enumerate(zip(past, new, strict=True)) if i != growth.axis
    )
    if not fits or (present is not None and present != grown):
        raise ModelError(
            f"sizes do not fit: past {past} and new rows {new} make {present}; the context must hold past and new rows",
            where=update.name, hint=f"bind {pair.past.name} to context - sequence",
        )  # fmt: skip
    return Rows(tuple(new), growth.axis, growth.batch_axis)


def _scatter(operator: str, growth: Growth, rows: Rows, slots: Slots, builder: Builder) -> Change:
    """Put the scatter in the place of the Concat; the past and what passes it on has a slot for every token then."""
    update = growth.pair.update
    indices = slots.indices(operator, rows, update)
    operands = [growth.past, indices, growth.new]
    if operator != "ScatterElements":
        operands = [growth.past, growth.new, indices] if operator == "TensorScatter" else operands
    attributes = [] if operator == "ScatterND" else [attribute_of("axis", growth.axis)]
    for passed in growth.passed:
        _widen(passed.value, passed.axes.index(growth.pair.axis), rows.sizes[rows.axis])
    name = builder.namer.fresh(f"{update.name}_{operator}")
    new = make_node(
        operator, operands, name=name, output=builder.namer.fresh(f"{name}_Output"), like=update.outputs[0],
        attributes=attributes, stands_for=[update],
    )  # fmt: skip
    read = list(update.inputs)
    because = f"{operator} of {rows.sizes[rows.axis]} rows along axis {growth.axis}"
    change = replace_nodes([update], [new], builder.namer, because)
    drop_unread(read)
    return change


def _widen(value: ir.Value, axis: int, count: int) -> None:
    """Tell that ``value`` has ``count`` elements more along ``axis``."""
    if value.shape is not None:
        sizes = [
            size + count if number == axis and isinstance(size, int) else size
            for number, size in enumerate(value.shape)
        ]
        value.shape = ir.Shape(sizes)
