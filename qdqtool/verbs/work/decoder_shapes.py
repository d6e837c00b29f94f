"""The shape of a decoder, by what a person has: a name, numbers, a config.json, a graph, or what `split` wrote."""

from __future__ import annotations

import os

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.cost.model_shape import shape_of_model
from qdqtool.cost.shapes import DecoderShape, read_shape
from qdqtool.io.models.load import load
from qdqtool.llm.folder.manifest import MANIFEST, Manifest, StaticModel, read_manifest
from qdqtool.llm.plan.cut_graphs import joined

#: What a folder of an exporter calls the model, and what tells a model's shape beside it.
MODEL, CONFIG = "model.onnx", "config.json"


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """What the graphs of a folder that `split` wrote are compiled for.

    Args:
        chunks: tokens of its prefill graphs, ascending; () without such a graph.
        contexts: slots of the cache, ascending.
        rows: of a batch; where there are several, the fewest.
    """

    chunks: tuple[int, ...]
    contexts: tuple[int, ...]
    rows: int = 1

    @classmethod
    def of(cls, manifest: Manifest) -> Lengths:
        """Those of ``manifest``'s graphs."""
        models = manifest.models
        return cls(
            chunks=tuple(sorted({one.seq_len for one in models if one.phase == "prefill"})),
            contexts=tuple(sorted({one.ctx_len for one in models})),
            rows=min(one.batch_size for one in models),
        )


def graph_of(text: str) -> str | None:
    """The graph that ``text`` names: a .onnx file, or that of an exporter's folder; None of anything else."""
    if os.path.isdir(text):
        path = os.path.join(text, MODEL)
        return path if os.path.isfile(path) and not is_split(text) else None
    return text if text.endswith(".onnx") else None


def is_split(text: str) -> bool:
    """Whether ``text`` is a folder that `split` wrote."""
    return os.path.isfile(os.path.join(text, MANIFEST))


def decoder_of(text: str) -> str:
    """The folder that `split` wrote, where ``text`` is one of its graphs, or a part of one, which is none; else ``text``."""
    folder, file = os.path.split(text)
    if not (file.endswith(".onnx") and is_split(folder)):
        return text
    files = {part.file for model in read_manifest(folder).models for part in model.parts}
    return folder if file in files else text


def decoder_shape(text: str) -> DecoderShape:
    """The shape of the decoder that ``text`` is: a config.json beside the graph comes before the graph. No weight is read.

    Raises:
        UsageError: there is no such decoder, or its numbers make no sense.
        UnsupportedError: the graph is no decoder, or does not tell its shape.
    """
    graph, split = graph_of(text), is_split(text)
    folder = text if os.path.isdir(text) else os.path.dirname(text)
    config = os.path.join(folder, CONFIG)
    if graph is None and not split:
        if folder == text and not os.path.isfile(config):
            hint = f"give a folder with {CONFIG} or {MODEL}, what `split` wrote, or a name (qdqtool list shapes)"
            raise UsageError("has no decoder in it", where=text, hint=hint)
        return read_shape(text)
    if os.path.isfile(config):
        return read_shape(config)
    name = os.path.basename(os.path.abspath(folder))
    model = graph_without_weights(text)
    assert model is not None
    if graph is None or os.path.basename(graph) == MODEL:
        return shape_of_model(model, name)
    return shape_of_model(model, os.path.splitext(os.path.basename(graph))[0])


def lengths_of(text: str) -> Lengths | None:
    """What the graphs of the decoder that ``text`` is are compiled for; None of what is not split."""
    return Lengths.of(read_manifest(text)) if is_split(text) else None


def decoder_precision(text: str) -> str:
    """That of the pairs and packed weights of a quantized graph; "" of a float one, or of a shape alone."""
    from qdqtool.verbs.estimate import precision_of

    graph = graph_without_weights(text)
    found = "float" if graph is None else precision_of(graph)
    return "" if found == "float" else found


def graph_without_weights(text: str) -> ir.Model | None:
    """A graph of the decoder that ``text`` is, its parts joined; None of a shape alone."""
    if is_split(text):
        return whole_graph(text, least_of(read_manifest(text)))
    path = graph_of(text)
    return None if path is None else load(path, weights=False)


def least_of(manifest: Manifest) -> StaticModel:
    """The graph of the fewest tokens in the shortest context: they all have the same shape."""
    return min(manifest.models, key=lambda model: (model.seq_len, model.ctx_len, model.batch_size, model.name))


def whole_graph(folder: str, model: StaticModel) -> ir.Model:
    """A graph of a folder without weights, its parts joined."""
    return joined([load(os.path.join(folder, part.file), weights=False) for part in model.parts])
