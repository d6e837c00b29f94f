"""What `split` writes: a folder of static graphs, their weights, a manifest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.io.files.artifacts import canonical_json
from qdqtool.io.files.atomic import write_hashed
from qdqtool.io.files.folders import files_left, one_writer, remove_inside
from qdqtool.io.files.progress import Warned
from qdqtool.io.files.read import read_bytes
from qdqtool.io.models.provenance import PRODUCER, own_version
from qdqtool.io.models.shared_weights import save_shared
from qdqtool.llm.folder.decoder_config import DecoderConfig
from qdqtool.llm.folder.manifest import MANIFEST, Manifest, Part, StaticModel, read_manifest, write_manifest
from qdqtool.llm.plan.buckets import Padding
from qdqtool.llm.plan.naming import Naming
from qdqtool.llm.plan.specializations import Specialization
from qdqtool.llm.plan.splitting import Split, SplitPlan, StaticGraph

SPECIALIZATIONS = "specializations.json"


@dataclass(frozen=True, kw_only=True)
class GraphFile:
    """One graph that was written.

    Args:
        file: its name in the folder.
        nodes: of its main graph.
    """

    file: str
    nodes: int


@dataclass(frozen=True, kw_only=True)
class GraphFiles:
    """A specialization and the files that hold it.

    Args:
        specialization: its shapes.
        parts: its graphs, in the order in which they run.
    """

    specialization: Specialization
    parts: tuple[GraphFile, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        one = self.specialization
        return {
            "name": one.name,
            "phase": one.phase,
            "batch_size": one.batch_size,
            "seq_len": one.seq_len,
            "ctx_len": one.ctx_len,
            "model": self.parts[0].file,
            "parts": [{"model": part.file, "nodes": part.nodes} for part in self.parts],
        }


@dataclass(frozen=True, kw_only=True)
class SplitFolder(Warned):
    """What `split` wrote.

    Args:
        folder: where.
        plan: how it was split.
        roles: (role, name, why) of each input and output of the source.
        graphs: the graphs.
        padding: what padding costs, where lengths of prompts were given.
        weight_bytes: size of the weight file.
        files: names of all files in the folder.
    """

    folder: str
    plan: SplitPlan
    roles: tuple[tuple[str, str, str], ...]
    graphs: tuple[GraphFiles, ...]
    padding: tuple[Padding, ...]
    weight_bytes: int
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "folder": self.folder,
            "layout": self.plan.layout,
            "roles": [{"role": role, "name": name, "because": why} for role, name, why in self.roles],
            "specializations": [graph.to_json() for graph in self.graphs],
            "pipelines": self.plan.pipelines,
            "padding": [row.to_json() for row in self.padding],
            "weight_bytes": self.weight_bytes,
            "files": list(self.files),
        }


def folder_of(
    done: Split,
    cut: Sequence[tuple[StaticGraph, Sequence[ir.Model]]],
    folder: str,
    profile: Naming,
    source: str,
    beside: DecoderConfig,
    *,
    old: frozenset[str],
    padding: Sequence[Padding],
) -> SplitFolder:
    """Write the graphs ``cut`` to ``folder``; a run that fails leaves nothing there.

    Args:
        done: what `split_model` made.
        cut: each of its graphs, in parts.
        folder: where to.
        profile: names of inputs and outputs.
        source: SHA-256 of the model's file.
        beside: files of the tokenizer.
        old: what an earlier split left there, see `refuse_folder`.
        padding: what padding costs.
    """
    made: list[str] = []
    try:
        with one_writer(os.path.join(folder, MANIFEST)):
            old |= refuse_folder(folder, overwrite=bool(old))  # another run may have written meanwhile
            graphs, files, weights = _written(folder, old, profile, source, beside, cut, made)
    except BaseException:
        if not old:
            clear_folder(folder, made)
        raise
    return SplitFolder(
        folder=folder,
        plan=done.plan,
        roles=done.roles,
        graphs=graphs,
        padding=tuple(padding),
        weight_bytes=sum(os.path.getsize(os.path.join(folder, name)) for name in weights),
        files=files,
    )


def refuse_folder(folder: str, *, overwrite: bool) -> frozenset[str]:
    """The files that an earlier split left in ``folder``.

    Raises:
        UsageError: it is a file, holds a split and ``overwrite`` is off, or holds other things.
    """
    return files_left(folder, MANIFEST, lambda path: read_manifest(os.path.dirname(path)).files, overwrite=overwrite)


def clear_folder(folder: str, made: Sequence[str]) -> None:
    """Take away the files ``made`` by a run that failed, and the folders that are empty then, so that it can be run again."""
    for name in made:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    for path in sorted(
        {folder, *(os.path.dirname(os.path.join(folder, name)) for name in made)}, key=len, reverse=True
    ):
        if os.path.isdir(path) and not os.listdir(path):
            os.rmdir(path)


def _written(
    folder: str,
    old: frozenset[str],
    profile: Naming,
    source: str,
    beside: DecoderConfig,
    cut: Sequence[tuple[StaticGraph, Sequence[ir.Model]]],
    made: list[str],
) -> tuple[tuple[GraphFiles, ...], tuple[str, ...], tuple[str, ...]]:
    """Write everything, noting names in ``made``; the manifest comes last, and what an earlier split left is taken away after it.

    Returns:
        What was made of each specialization, the names of all files, those of the weight files.
    """
    models: dict[str, ir.Model] = {}
    static: list[StaticModel] = []
    graphs: list[GraphFiles] = []
    for graph, pieces in cut:
        named = dict(zip(_file_names(graph, len(pieces)), pieces, strict=True))
        models |= named
        parts = tuple(
            Part(file=file, inputs=_names(p.graph.inputs), outputs=_names(p.graph.outputs)) for file, p in named.items()
        )
        static.append(StaticModel(name=graph.specialization.name, parts=parts, decoder=graph.decoder))
        counts = tuple(GraphFile(file=file, nodes=len(piece.graph)) for file, piece in named.items())
        graphs.append(GraphFiles(specialization=graph.specialization, parts=counts))
    for model in models.values():
        model.producer_name, model.producer_version = PRODUCER, own_version()
    saved = save_shared(models, folder)
    known = {os.path.basename(path): digest for path, digest in saved.items()}
    made += known
    made += [SPECIALIZATIONS, MANIFEST, *profile.files, *(os.path.basename(path) for path in beside.files)]
    for path in beside.files:
        name = os.path.basename(path)
        known[name] = write_hashed(os.path.join(folder, name), read_bytes(path))
    manifest = Manifest(
        layout=cut[0][0].decoder.layout,
        source_sha256=source,
        models=tuple(static),
        tokenizer=tuple(os.path.basename(path) for path in beside.files),
        eos_token_ids=beside.eos_token_ids,
        bos_token_id=beside.bos_token_id,
        pad_token_id=beside.pad_token_id,
    )
    text = canonical_json([listed(model) for model in static], indent=1) + "\n"
    known[SPECIALIZATIONS] = write_hashed(os.path.join(folder, SPECIALIZATIONS), text.encode())
    extra = profile.write(folder, manifest, tuple(graph for graph, _ in cut), beside)
    weights = tuple(os.path.basename(path) for path in saved if path.endswith(".data"))
    written = write_manifest(folder, manifest, more=[*weights, SPECIALIZATIONS, *extra], known=known | extra)
    remove_inside(folder, old - set(written.files) - {MANIFEST}, where=os.path.join(folder, MANIFEST))
    return tuple(graphs), (*written.files, MANIFEST), weights


def _file_names(graph: StaticGraph, parts: int) -> list[str]:
    name = graph.specialization.name
    return [f"{name}.onnx"] if parts == 1 else [f"{name}_part{k + 1}of{parts}.onnx" for k in range(parts)]


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)


def listed(model: StaticModel) -> dict[str, Any]:
    """The entry of ``model`` in specializations.json."""
    files = [part.file for part in model.parts]
    return {
        "name": model.name,
        "phase": model.phase,
        "batch_size": model.batch_size,
        "seq_len": model.seq_len,
        "ctx_len": model.ctx_len,
        "model": files[0],
        **({"parts": files} if len(files) > 1 else {}),
    }
