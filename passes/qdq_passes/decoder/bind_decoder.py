"""bind-decoder

With past = C - S every size that an exporter computes of the past and the new tokens, past + S, comes out as C."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.decoder.edit.static import DecoderSizes, refuse_dynamic, write_shapes
from qdq_passes.decoder.look.io import DecoderIo, decoder_io
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.graph.build import drop_input
from qdq_passes.graph.edit import drop_unread
from qdq_passes.graph.evaluate.apply import fold_walked, open_branches
from qdq_passes.graph.evaluate.walk import StaticWalk, walk
from qdq_passes.graph.uses import label


@dataclass(frozen=True)
class BindDecoder(Pass):
    """Give a dynamic decoder the static sizes B, S, C by the roles of its inputs, and compute all that follows from them.

    Graph: ids [B, S]; positions [B, S] or [S]; masks [B, C] or [B, 1, S, C]; past [B, H, C - S, D], and [B, H, C, D] where an
    operator such as GroupQueryAttention updates it in place; present [B, H, C, D]; logits [B, S, V]. Other inputs follow by the
    names of their dims, also ``past + sequence``. What of the graph is constant then is an initializer: no Shape, Size, Range,
    ConstantOfShape or NonZero is left in the main graph, and no dynamic shape.
    Requires: `inline-functions`; a cache that `decoder_io` finds.
    Keeps: inputs, outputs and their names, but for inputs without a role whose size alone is read: they go; numerics
    bit-exact for these sizes (arithmetic of floats is only computed where IEEE 754 leaves one result). Weights are not read.
    Shapes that the file declares inside are replaced, as exporters err.
    Skips: nothing. Sizes that are none of a decoder, and what stays dynamic, are refused: the node and what it depends on.

    Args:
        batch: rows, B.
        sequence: new tokens of one run, S.
        context: tokens that the cache holds after a run, C.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the model takes inputs of these shapes only")
    batch: int = 1
    sequence: int = 1
    context: int = 1024

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Bind, walk, fold."""
        if min(self.batch, self.sequence) < 1 or self.context < self.sequence:
            raise UsageError(
                f"batch={self.batch} sequence={self.sequence} context={self.context} are no sizes of a decoder",
                hint="each is at least 1, and the context holds the sequence",
            )
        io = decoder_io(model)
        yield from _unused_results(model)
        sized = [value for value in io.others if value.uses()]
        shapes = DecoderSizes(batch=self.batch, sequence=self.sequence, context=self.context).shapes(io)
        walked = walk(model, shapes)
        while opened := list(open_branches(model, walked)):
            yield from opened
            walked = walk(model, shapes)
        if _completed(io, walked, shapes):
            walked = walk(model, shapes)
        for value, sizes in shapes.items():
            before, value.shape = value.shape, ir.Shape(sizes)
            if before != value.shape:
                yield Change("edit", value.name or "", f"{before} → {value.shape}")
        yield from fold_walked(model, walked)
        for value in sized:
            yield from drop_input(model, value)
        write_shapes(model, walked)
        refuse_dynamic(model, walked)
        _check_presents(io, walked, self.sequence, self.context)


def _unused_results(model: ir.Model) -> Iterator[Change]:
    """Take away what nobody reads: its shape may never be known."""
    for node in reversed(list(model.graph)):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            parameters = list(node.inputs)
            model.graph.remove(node, safe=True)
            yield Change("remove", label(node), "nobody reads it")
            yield from drop_unread(parameters)


def _completed(io: DecoderIo, walked: StaticWalk, shapes: dict[ir.Value, list[int | None]]) -> bool:
    """Fill in sizes of caches that no name tells, heads and head size: those of the present, or of the rows that are added."""
    changed = False
    for pair in io.pairs:
        sizes = shapes[pair.past]
        if None not in sizes:
            continue
        sources = [
            pair.present,
            *(v for v in pair.update.outputs if v.name),
            *(v for v in pair.update.inputs if v is not None),
        ]
        for source in sources:
            known = _dims(walked, source)
            if len(known) == len(sizes) and source is not pair.past:
                for axis, size in enumerate(sizes):
                    if size is None and known[axis] is not None:
                        sizes[axis], changed = known[axis], True
        if None in sizes:
            raise UnsupportedError(
                f"axis {sizes.index(None)} of {pair.past.shape} is not known, nor told by {pair.update.name}",
                where=pair.past.name,
                hint="bind it first with fix-shapes",
            )
    return changed


def _dims(walked: StaticWalk, value: ir.Value) -> list[int | None]:
    proto = walked.types.get(value)
    if proto is None or not proto.tensor_type.HasField("shape"):
        return []
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in proto.tensor_type.shape.dim]


def _check_presents(io: DecoderIo, walked: StaticWalk, sequence: int, context: int) -> None:
    for pair in io.pairs:
        shape = walked.shape(pair.present)
        if shape is not None and shape[pair.axis] != context:
            raise UnsupportedError(
                f"comes out with {shape[pair.axis]} tokens where the context is {context}",
                where=pair.present.name,
                hint="it gives out its new rows alone: export it with past and new rows together"
                if shape[pair.axis] == sequence
                else f"{pair.update.op_type} updates it in a way that is not known",
            )
