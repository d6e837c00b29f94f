"""A folder of static graphs written again with other graphs of the same names: quantized ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
from qdq_passes.decoder.look.record import DECODER, CacheTensor, Decoder, MaskInput
from qdq_passes.errors import UsageError

from qdqtool.io.files.artifacts import canonical_json
from qdqtool.io.files.atomic import write_hashed
from qdqtool.io.files.folders import one_writer, path_inside, remove_inside
from qdqtool.io.files.read import read_bytes
from qdqtool.io.models.external import extent_of
from qdqtool.io.models.parse import read_model
from qdqtool.io.models.provenance import Provenance
from qdqtool.io.models.shared_weights import save_shared
from qdqtool.llm.folder.folders import SPECIALIZATIONS, clear_folder, listed, refuse_folder
from qdqtool.llm.folder.manifest import MANIFEST, Manifest, Part, StaticModel, write_manifest


def refuse_output(folder: str | os.PathLike[str], output: str | os.PathLike[str], *, overwrite: bool) -> frozenset[str]:
    """The files that are in ``output`` already, and will be replaced.

    Raises:
        UsageError: it is ``folder`` itself, exists without ``overwrite``, or holds other things.
    """
    if os.path.realpath(folder) == os.path.realpath(output):
        raise UsageError("is the folder that is read", where=os.fspath(output), hint="give another name for the result")
    return refuse_folder(os.path.abspath(os.fspath(output)), overwrite=overwrite)


def write_graphs(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    manifest: Manifest,
    models: Mapping[str, ir.Model],
    *,
    old: frozenset[str] = frozenset(),
    quantization: Mapping[str, str] | None = None,
    provenance: Mapping[str, Provenance] | None = None,
) -> Manifest:
    """Write ``models`` in place of the graphs of ``folder`` to ``output``, everything else as it is; the manifest comes last.

    What inputs and outputs are for is read off the annotation ``decoder`` of each graph: masks have the lowest of the values
    that graphs hide by, tensors of the cache the encoding that their graphs say.

    Args:
        folder: what `split` wrote.
        output: where to; see `refuse_output`.
        manifest: of ``folder``.
        models: file name → graph, for each file that the manifest lists.
        old: files of an earlier run in ``output``, which are taken away where they are no longer named.
        quantization: what the manifest is to say of it.
        provenance: file name → entry for the history of that graph.

    Returns:
        The manifest as it was written.

    Raises:
        UsageError: graphs that run one after the other keep the cache in different encodings.
    """
    target = os.path.abspath(os.fspath(output))
    static = tuple(_static(model, models) for model in manifest.models)
    _refuse_encodings(static)
    graphs = {part.file for model in manifest.models for part in model.parts}
    weights = _weights(folder, graphs)
    rest = [name for name in manifest.files if name not in graphs | weights | {SPECIALIZATIONS}]
    made = [*graphs, SPECIALIZATIONS, MANIFEST, *rest]
    try:
        with one_writer(os.path.join(target, MANIFEST)):
            old |= refuse_folder(target, overwrite=bool(old))  # another run may have written meanwhile
            saved = save_shared(models, target, provenance=provenance or {})
            known = {os.path.relpath(path, target): digest for path, digest in saved.items()}
            data = [name for name in known if name.endswith(".data")]
            made += data
            for name in rest:
                path = path_inside(target, name, where=os.path.join(target, MANIFEST))
                known[name] = write_hashed(path, read_bytes(os.path.join(os.fspath(folder), name)))
            text = canonical_json([listed(model) for model in static], indent=1) + "\n"
            known[SPECIALIZATIONS] = write_hashed(os.path.join(target, SPECIALIZATIONS), text.encode())
            new = replace(manifest, models=static, quantization=dict(quantization or {}))
            more = [*data, SPECIALIZATIONS, *(name for name in rest if name not in manifest.tokenizer)]
            written = write_manifest(target, new, more=more, known=known)
            remove_inside(target, old - set(written.files) - {MANIFEST}, where=os.path.join(target, MANIFEST))
    except BaseException:
        if not old:
            clear_folder(target, made)
        raise
    return written


def _static(model: StaticModel, models: Mapping[str, ir.Model]) -> StaticModel:
    """``model`` with its new graphs."""
    records = [record for part in model.parts if (record := DECODER.get(models[part.file].graph)) is not None]
    parts = tuple(
        Part(
            file=part.file,
            inputs=tuple(value.name or "" for value in models[part.file].graph.inputs),
            outputs=tuple(value.name or "" for value in models[part.file].graph.outputs),
        )
        for part in model.parts
    )
    return replace(model, parts=parts, decoder=_joined(model.decoder, records))


def _joined(decoder: Decoder, records: list[Decoder]) -> Decoder:
    """``decoder`` with what the graphs of its parts say of masks and of the cache."""

    def mask(one: MaskInput) -> MaskInput:
        return replace(one, hidden=min([m.hidden for r in records for m in r.masks if m.name == one.name], default=0.0))

    def tensor(one: CacheTensor) -> CacheTensor:
        said = [t for r in records for t in r.cache if t.past == one.past and t.scale]
        return replace(one, scale=said[0].scale, zero_point=said[0].zero_point) if said else one

    return replace(decoder, masks=tuple(map(mask, decoder.masks)), cache=tuple(map(tensor, decoder.cache)))


def _refuse_encodings(models: tuple[StaticModel, ...]) -> None:
    """Refuse graphs that would read what another wrote as other numbers."""
    known: dict[tuple[int, str], tuple[float, int]] = {}
    for model in models:
        for tensor in model.decoder.cache:
            said = tensor.scale, tensor.zero_point
            if known.setdefault((tensor.layer, tensor.part), said) != said:
                raise UsageError(
                    f"keeps the {tensor.part} of layer {tensor.layer} in another encoding than the other graphs",
                    where=model.name, hint="quantize all graphs together",
                )  # fmt: skip


def _weights(folder: str | os.PathLike[str], graphs: set[str]) -> set[str]:
    """Names of the data files that the graphs of ``folder`` read."""
    return {
        extent_of(tensor).location
        for name in graphs
        for tensor in read_model(os.path.join(os.fspath(folder), name)).graph.initializer
        if tensor.external_data
    }
