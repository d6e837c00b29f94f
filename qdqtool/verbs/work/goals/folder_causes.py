"""What costs most in a folder of graphs: the record of the graphs for most tokens, and the nodes of them that may be raised."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from qdq_passes.decoder.edit.all_logits import give_all_logits
from qdq_passes.graph.edit import copy_model

from qdqtool.comparison.prices.pricing import priced
from qdqtool.comparison.prices.subjects import record_of, subjects_of
from qdqtool.comparison.sides import Sides
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.llm.folder.manifest import read_manifest
from qdqtool.llm.run.calibration import Windows
from qdqtool.quantization.plan import Plan
from qdqtool.record.record import Record
from qdqtool.search.node_groups import NodeGroup, node_groups, weight_sizes
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.work.folder_calibration import GraphFeeds
from qdqtool.verbs.work.quantizing_decoders import graphs_of, prepared_graphs
from qdqtool.verbs.work.token_ids import texts_of

#: Runs of a graph, or samples, that causes are priced on.
PRICED = 8


def widest(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """The graphs of ``folder`` for most tokens, one a part; of several the first."""
    best = max(read_manifest(folder).models, key=lambda model: model.seq_len)
    return tuple(part.file for part in best.parts)


def record_of_folder(asked: Quantize, quantized: Mapping[str, ir.Model], count: int = PRICED) -> Record:
    """What each rounding costs at the outputs of its graph, by cause; of the graphs for most tokens.

    Args:
        asked: the command.
        quantized: what it makes, by file.
        count: runs of a graph.

    Raises:
        UsageError: the data hold too few tokens.
    """
    assert not isinstance(asked.model, ir.Model)
    folder, manifest = asked.model, read_manifest(asked.model)
    graphs = graphs_of(folder, manifest)
    texts = texts_of(asked.data, manifest, graphs, asked.tokenizer or folder, samples=asked.samples, seed=asked.seed)
    windows, found = Windows(folder, texts), Record(tensors=(), nodes=())
    for file in widest(folder):
        logits = manifest.models[0].decoder.logits
        reference, tested = (_judged_by(logits, copy_model(model)) for model in (graphs[file], quantized[file]))
        sides, specs = Sides.of(reference, tested), input_specs(reference)
        names = {spec.name for spec in specs}
        runs = itertools.islice(GraphFeeds(windows, file), count)
        few = [{name: array for name, array in feed.items() if name in names} for feed in runs]
        prices = priced(sides, open_feeds(few, specs), threads=1)
        one = record_of(sides, prices, subjects_of(sides, prices), file, {})
        found = Record(
            tensors=(*found.tensors, *one.tensors), nodes=(*found.nodes, *one.nodes), noise={**found.noise, **one.noise},
            samples=one.samples, model=found.model or file,
        )  # fmt: skip
    return found


def _judged_by(logits: str, model: ir.Model) -> ir.Model:
    """``model``, edited, with the logits of all its tokens as its only output; as it is where another part gives them."""
    found = [value for value in model.graph.outputs if value.name == logits]
    if found:
        model.graph.outputs[:] = found
        give_all_logits(model)
        RemoveUnusedNodesPass()(model)
    return model


def groups_of_folder(asked: Quantize, job: Plan) -> tuple[list[NodeGroup], dict[str, int]]:
    """The groups of nodes that ``job`` quantizes in the graphs for most tokens; how many numbers the weight of a layer has, by
    the name of its node."""
    assert not isinstance(asked.model, ir.Model)
    graphs = graphs_of(asked.model, read_manifest(asked.model))
    plans, prepared = prepared_graphs({file: graphs[file] for file in widest(asked.model)}, job, allow_empty=True)
    groups = [group for file, model in prepared.items() for group in node_groups(model, plans[file], follow=True)]
    return groups, {name: size for model in prepared.values() for name, size in weight_sizes(model).items()}
