"""What verbs find out of a model, as `Record`: its graph and file, what a target makes of it, what a chip takes for it."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantization
from qdq_passes.graph.sizes import data_shape, sizes_of
from qdq_passes.graph.uses import label
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.models.load import data_files
from qdqtool.record.record import NodeRecord, Record, Whole

if TYPE_CHECKING:
    from qdqtool.cost.estimating import Estimated
    from qdqtool.npu.report import Analysis


def graph_record(model: ir.Model, path: str | os.PathLike[str]) -> Record:
    """As `named_graph_record`, with names where nodes have none and with the sizes that can be inferred.

    Args:
        model: only read.
        path: where it lies.
    """
    copy = copy_model(model)
    try:
        run_pipeline(copy, "give-names,infer-shapes")
    except QdqError:  # what cannot be inferred has no bytes
        copy = copy_model(model)
        run_pipeline(copy, "give-names")
    return named_graph_record(copy, path)


def named_graph_record(model: ir.Model, path: str | os.PathLike[str]) -> Record:
    """The nodes of the main graph in their order, pairs and Constants left out, with the bytes of what they read and write; the
    size of the file. A size that is no number counts as 1.

    Args:
        model: its nodes have names.
        path: where it lies.
    """
    nodes = tuple(
        NodeRecord(
            name=label(node), op=node.op_type if not node.domain else f"{node.domain}::{node.op_type}",
            tensors=tuple(value.name for value in node.outputs if value.name), bytes=_bytes(node),
        )
        for node in model.graph
        if not is_quantization(node) and node.op_type != "Constant"
    )  # fmt: skip
    files = {os.path.realpath(path), *map(os.path.realpath, data_files(os.fspath(path)).values())}
    size = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
    return Record(nodes=nodes, model=os.fspath(path), whole=Whole(file_bytes=size))


def analysis_record(found: Analysis) -> Record:
    """The verdict, its reason and the device of each node but the pairs; how much is on the NPU."""
    nodes = tuple(
        NodeRecord(
            name=node.name, op=node.op, verdict=node.placement.verdict, device=node.placement.device,
            reason=node.placement.reason or ("" if node.is_npu else node.placement.rule),
        )
        for node in found.nodes
        if node.kind != "pair"
    )  # fmt: skip
    whole = Whole(
        target=found.target, operators=found.compute_nodes, npu_operators=found.npu_compute_nodes, macs=found.macs,
        npu_macs=found.npu_macs,
    )  # fmt: skip
    return Record(nodes=nodes, whole=whole)


def chip_record(found: Estimated) -> Record:
    """The time of each node, or of each group by its first, and that of a run; a node's interval is as wide as the run's."""
    span, choice = found.prediction.span, found.choice
    low, high = (span.low / span.ms, span.high / span.ms) if span.ms > 0 else (1.0, 1.0)
    nodes = tuple(
        NodeRecord(name=name, us=1000 * ms, low_us=1000 * ms * low, high_us=1000 * ms * high)
        for name, _, ms, _ in found.nodes
        if math.isfinite(ms)
    )
    whole = Whole(
        chip=choice.chip.name, stack=choice.profile.stack, us=1000 * span.ms, low_us=1000 * span.low,
        high_us=1000 * span.high, notes=found.notes,
    )  # fmt: skip
    return Record(nodes=nodes, whole=whole)


def _bytes(node: ir.Node) -> int | None:
    """Of what ``node`` reads and writes, integers where a pair stands; None where a rank or a type is not known."""
    sizes = [_stored(value) for value in node.inputs if value is not None]
    sizes += [_written(value) for value in node.outputs if value.name]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _stored(value: ir.Value) -> int | None:
    """Bytes of a value that is read: those of the integers before a DequantizeLinear."""
    producer = value.producer()
    if producer is not None and is_dequantize(producer) and producer.inputs[0] is not None:
        return _size(value, producer.inputs[0].dtype)
    return _size(value, value.dtype)


def _written(value: ir.Value) -> int | None:
    """Bytes of a value that is written: those of the integers behind a QuantizeLinear."""
    quantize = next((use.node for use in value.uses() if is_quantization(use.node) and use.idx == 0), None)
    return _size(value, quantize.outputs[0].dtype if quantize is not None else value.dtype)


def _size(value: ir.Value, dtype: ir.DataType | None) -> int | None:
    sizes = data_shape(value) if value.const_value is not None else sizes_of(value)
    if sizes is None or dtype is None or dtype == ir.DataType.STRING:
        return None
    return -(-math.prod(size if isinstance(size, int) else 1 for size in sizes) * dtype.bitwidth // 8)
