"""What verbs find out of a model, as `Record`: its graph and file, what quantizing did, what a comparison measured, what a target
makes of it, how it ran, what a chip takes for it."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from qdq_passes.encode.edit.encoding_policy import histogram_of
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantization
from qdq_passes.graph.sizes import data_shape, sizes_of
from qdq_passes.graph.uses import all_values, label
from qdq_passes.npu.units.units import units_of
from qdq_passes.numerics.agreement import Agreement
from qdq_passes.numerics.histogram import Histogram as Counts
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.look.pairs import Pair, qdq_pairs

from qdqtool.comparison.cumulative import activation_pairs
from qdqtool.comparison.dumps import DumpComparison
from qdqtool.comparison.report import Comparison, LocalComparison
from qdqtool.io.models.load import data_files
from qdqtool.record.moves import encoding_json
from qdqtool.record.record import Histogram, NodeRecord, Record, TensorRecord, Whole, merged

if TYPE_CHECKING:
    from qdqtool.cost.estimating import Estimated
    from qdqtool.npu.simulated import Simulation
    from qdqtool.quantization.quantizing import Quantization
    from qdqtool.quantization.reports import TensorReport

#: Of histograms.
BINS = 64


def graph_record(model: ir.Model, path: str | os.PathLike[str] | None = None) -> Record:
    """As `named_graph_record`, with names where nodes have none and with the sizes that can be inferred.

    Args:
        model: only read.
        path: where it lies; None of one in memory.
    """
    copy = copy_model(model)
    try:
        run_pipeline(copy, "give-names,infer-shapes")
    except QdqError:  # what cannot be inferred has no bytes
        copy = copy_model(model)
        run_pipeline(copy, "give-names")
    return named_graph_record(copy, path)


def named_graph_record(model: ir.Model, path: str | os.PathLike[str] | None = None) -> Record:
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
    if path is None:
        return Record(nodes=nodes)
    files = {os.path.realpath(path), *map(os.path.realpath, data_files(os.fspath(path)).values())}
    size = sum(os.path.getsize(file) for file in files if os.path.isfile(file))
    return Record(nodes=nodes, model=os.fspath(path), whole=Whole(file_bytes=size))


def quantization_record(done: Quantization) -> Record:
    """Of each tensor the range that was seen, its encoding, who chose and who moved it, and how it lies on the grid; what stays
    float of what is touched, and why."""
    reports = {report.tensor: report for report in done.tensors}
    pairs: dict[str, Pair] = {}
    for pair in qdq_pairs(done.model):
        if pair.tensor in reports:
            pairs.setdefault(pair.tensor, pair)
    moved, kept, owner = done.watch.moves(pairs), dict(done.kept), _owners(done.model)
    tensors = [
        dataclasses.replace(
            _seen(reports[name], histogram_of(done.ranges.bound, name)),
            node=_node(pair, owner), moved=moved[name], kept=kept.get(name, ""),
        )
        for name, pair in pairs.items()
    ]  # fmt: skip
    values = {value.name: value for value in all_values(done.model)}
    for name, reason in done.refused:
        is_constant = (value := values.get(name)) is not None and value.const_value is not None
        kind = "weight" if is_constant else "activation"
        tensors.append(TensorRecord(name=name, kind=kind, excluded=reason, kept=kept.get(name, "")))
    nodes = tuple(NodeRecord(name=name, excluded=reason) for name, reason in done.excluded)
    return Record(tensors=tuple(tensors), nodes=nodes)


def _seen(report: TensorReport, counts: Counts | None) -> TensorRecord:
    fit = report.fit
    return TensorRecord(
        name=report.tensor, kind=report.kind, encoding=encoding_json(report.encoding), low=report.low, high=report.high,
        clipped=None if fit is None else fit.clipped, sqnr_db=None if fit is None else fit.sqnr_db,
        histogram=None if counts is None or report.kind != "activation" else _histogram(counts),
    )  # fmt: skip


def _histogram(counts: Counts) -> Histogram:
    """In few bins: a fine one counts where its middle lies."""
    pieces = counts.pieces()
    least = BINS * float(np.spacing(max(abs(counts.low), abs(counts.high))))  # less has no bins between its ends
    margin = max(0.5, least)
    is_wide = counts.high - counts.low > least
    ends = (counts.low, counts.high) if is_wide else (counts.low - margin, counts.low + margin)
    found = np.histogram((pieces.left + pieces.right) / 2, bins=BINS, range=ends, weights=pieces.counts)[0]
    return Histogram(low=counts.low, high=counts.high, counts=tuple(int(count) for count in found))


def comparison_record(found: Comparison | LocalComparison | DumpComparison, tested: ir.Model) -> Record:
    """Noise over signal of the outputs, and the SQNR of what stands between: of a quantized tensor as its readers read it, of
    another that of who writes it and nothing else.

    Args:
        found: of a comparison with the float model.
        tested: the quantized model.
    """
    pairs, owner = activation_pairs(tested), _owners(tested)
    tensors, nodes = list[TensorRecord](), dict[str, NodeRecord]()
    writers = {name: label(unit.core) for unit in units_of(tested) if (name := _only(unit.last))}
    is_local = isinstance(found, LocalComparison)
    for name, agreement in _compared(found):
        here, whole = (agreement.sqnr_db, None) if is_local else (None, agreement.sqnr_db)
        if name in pairs:
            encoding, node = encoding_json(pairs[name].encoding), _node(pairs[name], owner)
            tensors.append(
                TensorRecord(name=name, kind="activation", node=node, encoding=encoding, here_db=here, whole_db=whole)
            )
        elif name in writers:
            nodes[writers[name]] = NodeRecord(name=writers[name], here_db=here, whole_db=whole)
    noise = {}
    if not isinstance(found, LocalComparison):
        ends = [one for one in found.tensors if one.is_output] if isinstance(found, DumpComparison) else found.outputs
        noise = {one.name: noise_of(one.agreement) for one in ends}
    return Record(
        tensors=tuple(tensors), nodes=tuple(nodes.values()), noise=noise, samples=found.samples if noise else 0
    )


def _compared(found: Comparison | LocalComparison | DumpComparison) -> Iterable[tuple[str, Agreement]]:
    """(tensor, figures); of nodes that write several tensors there are none of each."""
    if isinstance(found, LocalComparison):
        return [(node.tensors[0], node.agreement) for node in found.nodes if len(node.tensors) == 1]
    outputs = () if isinstance(found, DumpComparison) else found.outputs
    return [(one.name, one.agreement) for one in (*outputs, *found.tensors)]


def simulation_record(found: Simulation, graph: Record, time: Estimated | None, *, is_float_given: bool) -> Record:
    """Where nodes ran, and why; the noise at the outputs as they came.

    Args:
        found: what ran.
        graph: what the model's graph tells.
        time: what it takes on a chip.
        is_float_given: whether what it was compared with is the float model, and not the quantized one without pairs.
    """
    placed = () if found.placement is None else tuple(node for node in found.placement.nodes if node.name)
    noise = {}
    if is_float_given:
        ends = ((output.name, output.against.get("npu/float")) for output in found.outputs)
        noise = {name: noise_of(agreement) for name, agreement in ends if agreement is not None}
    ran = Record(nodes=placed, noise=noise, samples=found.samples if noise else 0)
    return merged([graph, *([] if time is None else [time.record]), ran])


def noise_of(agreement: Agreement) -> float:
    """Noise over signal; 0 where nothing differs."""
    return 0.0 if agreement.sqnr_db is None else 10 ** (-agreement.sqnr_db / 10)


def _owners(model: ir.Model) -> Mapping[ir.Node, str]:
    """Node → what it and those that are computed with it are called: as their first."""
    return {node: label(unit.core) for unit in units_of(model) for node in unit.nodes}


def _node(pair: Pair, owner: Mapping[ir.Node, str]) -> str:
    """Who writes an activation, or reads a constant; "" of a graph input."""
    if pair.kind != "activation":
        return next((owner[use.node] for use in pair.output.uses() if use.node in owner), "")
    writer = pair.source.producer() if pair.source is not None else None
    return "" if writer is None or is_quantization(writer) else owner.get(writer, label(writer))


def _only(node: ir.Node) -> str | None:
    """The name of its output, where it has one."""
    names = [value.name for value in node.outputs if value.name]
    return names[0] if len(names) == 1 else None


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
