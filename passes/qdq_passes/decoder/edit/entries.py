"""Edits of a decoder's inputs: a name made free, the one input of positions."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.decoder.edit.slots import POSITIONS
from qdq_passes.decoder.look.io import DecoderIo
from qdq_passes.graph.build import Builder
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.uses import all_values


def free_name(model: ir.Model, holder: ir.Value | None, name: str, instead: str, namer: Namer) -> Iterator[Change]:
    """Let the value called ``name`` be called ``instead``, if there is one that is no output; ``holder`` is looked at first."""
    values = [holder] if holder is not None and holder.name == name else all_values(model)
    for value in values:
        if value.name == name and not value.is_graph_output() and value.const_value is None:
            value.name = namer.fresh(instead)
            namer.release(name)
            yield Change("rename", name, f"{value.name}; the name is that of the mask of scores")


def canonical_positions(io: DecoderIo) -> ir.Value | None:
    """The input of positions if it is int64 [batch, sequence], one row of a batch each."""
    own = io.positions
    is_canonical = own is not None and own.dtype == ir.DataType.INT64 and own.shape is not None and len(own.shape) == 2
    return own if is_canonical else None


def position_input(model: ir.Model, io: DecoderIo, builder: Builder) -> ir.Value:
    """The input of positions, int64 [batch, sequence]: that of ``model``, or a new one called ``position_ids``."""
    canonical = canonical_positions(io)
    if canonical is not None:
        return canonical
    own, ids = io.positions, io.ids.shape
    shape = ir.Shape([ids[0], ids[1]] if ids is not None and len(ids) > 1 else [None, None])
    if own is not None and own.name == POSITIONS:
        own.name = builder.namer.fresh(f"{POSITIONS}_as_exported")
        builder.namer.release(POSITIONS)
    made = ir.Value(name=builder.namer.fresh(POSITIONS), type=ir.TensorType(ir.DataType.INT64), shape=shape)
    model.graph.inputs.insert(list(model.graph.inputs).index(io.ids) + 1, made)
    return made
