"""keep-last-logits

logits = f(h W), row for row: those of one row need one row of h. Saves (S - 1)·W·V of S·W·V multiplications."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.look.flow import depending_on
from qdq_passes.decoder.look.io import DecoderIo, decoder_io
from qdq_passes.decoder.look.logits_path import LogitsPath, gives_one_row, last_rows, logits_path
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, make_node, new_constant, replace_value
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.graph.uses import constant_array, in_order, label

#: Name of the input that tells which row is the last one.
LAST_INDEX = "last_index"
#: First opset whose GatherND takes a row of its own per batch; first whose Unsqueeze takes its axes as an input.
OPSET_OF_BATCHES, OPSET_OF_AXES = 12, 13


@dataclass(frozen=True)
class KeepLastLogits(Pass):
    """Compute the logits of one token alone: its row is gathered before the product with the words' vectors.

    Graph: ``h [B, S, W] → MatMul → logits [B, S, V]`` → ``h → Gather(last_index) → MatMul → logits [B, 1, V]``; for several
    rows of a batch GatherND, each with its own index. Casts, softcaps, biases and pairs of quantization behind the product stay
    where they are; the Gather stands before the pair on the product's input.
    Where the graph takes the last token itself, it takes the row that is told, for the last may be padding.
    Requires: a decoder that `decoder_io` finds; dynamic or static.
    Keeps: names; the input ``last_index`` int64 [B], counted from 0, is new and the last one. Numerics: each logit is computed as
    before, though a runtime may choose another kernel for one row.
    Skips: one token per run, whose logits are those of the last one; where the product of the logits cannot be found.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the logits of one token come out, not those of all")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Find the product, then insert one Gather."""
        io = decoder_io(model)
        opset, ids = model.opset_imports.get("", 1), io.ids.shape
        batch, length = (ids[0], ids[1]) if ids is not None and len(ids) > 1 else (None, None)
        is_told = any(value.name == LAST_INDEX for value in model.graph.inputs)
        if isinstance(length, int) and not is_told and gives_one_row(io.logits, length):
            yield from _told(model, io, length)
            return
        path = logits_path(io.logits)
        reason = path if isinstance(path, str) else _why_not(model, path, length, batch, opset)
        if reason or isinstance(path, str):
            yield skip(io.logits, reason)
            return
        namer, index = Namer(model), _index(model, batch)
        site = _Site(path.reader[0], path.product, opset_at(model, path.product), namer)
        gather = _gather(path.hidden, index, batch == 1, site)
        path.reader[0].replace_input_with(path.reader[1], gather.outputs[0])
        yield from _reshaped(path, namer)
        for value in path.between:
            if value.shape is not None and len(value.shape) == 3:
                value.shape = ir.Shape([value.shape[0], 1, value.shape[2]])
            elif value.shape is not None:
                value.shape = ir.Shape([batch, *list(value.shape)[1:]])
        _forget_shapes(model, path)
        yield Change("insert", gather.name or "", f"{path.product.name} computes the logits of one token")


def _forget_shapes(model: ir.Model, path: LogitsPath) -> None:
    """What else is computed of the logits, a best token or a scaled copy, is of one token too."""
    behind = depending_on(in_order(model.graph), path.between[-1:], by_shape=True) - {*path.between}
    for value in behind:
        value.shape = None
    if behind:
        infer_shapes(model)


def _why_not(model: ir.Model, path: LogitsPath, length: object, batch: object, opset: int) -> str:
    if length == 1:
        return "there is one token per run"
    if any(value.name == LAST_INDEX for value in model.graph.inputs):
        return f"there is an input {LAST_INDEX} already"
    if batch != 1 and opset < OPSET_OF_BATCHES:
        return f"a row of its own per batch needs opset {OPSET_OF_BATCHES}, this is {opset}"
    shapes = [constant_array(node.inputs[1]) for node in (path.flat, path.unflat) if node is not None]
    if any(array is None for array in shapes):
        return "the shape of a Reshape is computed; run bind-decoder first"
    return ""


def _index(model: ir.Model, batch: int | ir.SymbolicDim | None) -> ir.Value:
    """The new input, int64 [B]."""
    index = ir.Value(name=LAST_INDEX, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([batch]))
    model.graph.inputs.append(index)
    return index


def _told(model: ir.Model, io: DecoderIo, length: int) -> Iterator[Change]:
    """Where the graph itself takes the last of ``length`` tokens, take the one that is told: the last may be padding.

    Raises:
        UnsupportedError: it makes one row of logits in another way.
    """
    nodes, batch = last_rows(io.logits, length), None if io.ids.shape is None else io.ids.shape[0]
    if not nodes:
        raise UnsupportedError(
            f"gives one row of logits for {length} tokens, and no Gather or Slice of the last one is seen", where=io.logits.name,
            hint="export it with the logits of all tokens",
        )  # fmt: skip
    namer, index = Namer(model), _index(model, batch)
    for node in nodes:
        hidden, output = node.inputs[0], node.outputs[0]
        assert hidden is not None
        site = _Site(node, node, opset_at(model, node), namer)
        value = _gather(hidden, index, batch == 1, site).outputs[0]
        sizes = [] if output.shape is None else list(output.shape)
        if hidden.shape is not None and len(sizes) < len(hidden.shape):
            shape = new_constant(graph_of(node), namer, f"{node.name}_shape", np.array([-1, *sizes[1:]]))
            squeezed = _node("Reshape", [value, shape], output.name or "last", output, [], site)
            graph_of(node).insert_before(node, squeezed)
            value = squeezed.outputs[0]
            value.shape = output.shape
        read = list(node.inputs)
        replace_value(output, value, namer)
        graph_of(node).remove(node, safe=True)
        yield from drop_unread(read)
        yield Change("replace", label(node), "takes the row that is told, not the last one")


@dataclass(frozen=True)
class _Site:
    """Where a Gather is put: before ``reader``, in the place of ``old``."""

    reader: ir.Node
    old: ir.Node
    opset: int
    namer: Namer


def _gather(hidden: ir.Value, index: ir.Value, is_single: bool, site: _Site) -> ir.Node:
    """The node that takes one row of ``hidden``, put before its reader: [B, 1, W]."""
    graph, name = graph_of(site.reader), hidden.name or "hidden"
    if is_single:
        made = _node("Gather", [hidden, index], f"{name}_last", hidden, [ir.AttrInt64("axis", 1)], site)
        graph.insert_before(site.reader, made)
    else:
        inputs, attributes = [index], [ir.AttrInt64s("axes", [1, 2])]
        if site.opset >= OPSET_OF_AXES:
            inputs, attributes = [index, new_constant(graph, site.namer, f"{LAST_INDEX}_axes", np.array([1, 2]))], []
        apart = _node("Unsqueeze", inputs, f"{LAST_INDEX}_rows", index, attributes, site)
        rows = apart.outputs[0]
        rows.shape = ir.Shape([*(index.shape or [None]), 1, 1])
        made = _node("GatherND", [hidden, rows], f"{name}_last", hidden, [ir.AttrInt64("batch_dims", 1)], site)
        graph.insert_before(site.reader, [apart, made])
    if hidden.shape is not None:
        made.outputs[0].shape = ir.Shape([hidden.shape[0], 1, *list(hidden.shape)[2:]])
    return made


def _node(
    op_type: str, inputs: list[ir.Value], name: str, like: ir.Value, attributes: list[ir.Attr], site: _Site
) -> ir.Node:
    return make_node(
        op_type, inputs, name=site.namer.fresh(f"{name}_{op_type}"), output=site.namer.fresh(name), like=like,
        attributes=attributes, stands_for=[site.old],
    )  # fmt: skip


def _reshaped(path: LogitsPath, namer: Namer) -> Iterator[Change]:
    """Shapes of the Reshapes around a product of rank 2: [B · S, W] becomes [B, W], [B, S, V] becomes [B, 1, V]."""
    for node, leading in ((path.flat, [-1]), (path.unflat, [-1, 1])):
        if node is None:
            continue
        old = node.inputs[1]
        array = constant_array(old)
        assert array is not None
        sizes = np.array([*leading, array[-1]], np.int64)
        node.replace_input_with(1, new_constant(graph_of(node), namer, f"{node.name}_shape", sizes))
        yield from drop_unread([old])
        yield Change("edit", node.name or "", f"its shape is {sizes.tolist()}, of one token")
