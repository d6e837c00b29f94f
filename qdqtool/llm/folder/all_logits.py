"""A folder whose graphs give the logits of all their tokens, so that a text is judged chunk by chunk, not token by token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
from qdq_passes.decoder.edit.all_logits import give_all_logits
from qdq_passes.graph.edit import copy_model

from qdqtool.llm.folder.manifest import Manifest, StaticModel
from qdqtool.llm.folder.rewriting import write_graphs


def write_with_all_logits(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    manifest: Manifest,
    models: Mapping[str, ir.Model],
    *,
    quantization: Mapping[str, str] | None = None,
) -> None:
    """As `qdqtool.llm.folder.rewriting.write_graphs`, but for what tells graphs which token's logits to give: they give all.

    A graph that takes the row in another way than `keep-last-logits` writes it stays as it is.
    """
    made = {file: copy_model(model) for file, model in models.items()}
    for model in made.values():
        give_all_logits(model)

    def told(static: StaticModel) -> StaticModel:
        names = {value.name for part in static.parts for value in made[part.file].graph.inputs}
        decoder = static.decoder
        return static if decoder.last_index in names else replace(static, decoder=replace(decoder, last_index=""))

    all_given = replace(manifest, models=tuple(map(told, manifest.models)))
    write_graphs(folder, output, all_given, made, quantization=quantization)
