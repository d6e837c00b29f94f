"""DIR/manifest.json: which static graphs a folder holds, what each input is for, and the SHA-256 of every file that is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Finding
from qdq_passes.decoder.look.record import Decoder, Layout, Phase
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.documents import typed

from qdqtool.io.files.artifacts import read_json, write_json
from qdqtool.io.files.folders import refuse_outside
from qdqtool.io.files.progress import Progress
from qdqtool.io.files.read import sha256_of_file
from qdqtool.io.models.external import extent_of
from qdqtool.io.models.parse import read_model

RULE = "folder-manifest"
MANIFEST = "manifest.json"
KIND, VERSION = "decoder", 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """One graph of a static model; the parts of a model run one after the other.

    Args:
        file: name of the model file in the folder.
        inputs: names of its inputs; what an earlier part gives is found by name.
        outputs: names of its outputs.
    """

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"file": self.file, "inputs": list(self.inputs), "outputs": list(self.outputs)}


@dataclass(frozen=True, kw_only=True)
class StaticModel:
    """A decoder for fixed lengths.

    Args:
        name: such as ``prefill_b1_s128_c1024``.
        parts: its graphs, in the order in which they run; mostly one.
        decoder: what inputs and outputs are for; the names may be those of any part.
    """

    name: str
    parts: tuple[Part, ...]
    decoder: Decoder

    @property
    def phase(self) -> Phase:
        """For several tokens, or for one."""
        return self.decoder.phase

    @property
    def batch_size(self) -> int:
        """Rows."""
        return self.decoder.batch_size

    @property
    def seq_len(self) -> int:
        """Tokens of a run."""
        return self.decoder.seq_len

    @property
    def ctx_len(self) -> int:
        """Slots of the cache."""
        return self.decoder.ctx_len

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; the dimensions stand beside the name for whoever reads the file."""
        return {
            "name": self.name,
            "phase": self.phase,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "ctx_len": self.ctx_len,
            "parts": [part.to_json() for part in self.parts],
            "decoder": self.decoder.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is in a folder of static decoder graphs.

    Args:
        layout: where the cache is updated, the same in all graphs.
        source_sha256: of the dynamic model.
        models: the graphs.
        files: name → hex SHA-256 of each file that is read, without the manifest.
        tokenizer: names of the tokenizer's files.
        eos_token_ids: tokens that end a text.
        bos_token_id: token that begins one.
        pad_token_id: token that fills up.
        quantization: how the graphs were quantized: preset, method, ``ranges_sha256``, ``kv_cache``; empty where they are float.
    """

    layout: Layout
    source_sha256: str
    models: tuple[StaticModel, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    tokenizer: tuple[str, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    quantization: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; what `write_manifest` writes."""
        return {
            "layout": self.layout,
            "source_sha256": self.source_sha256,
            "models": [model.to_json() for model in self.models],
            "files": dict(self.files),
            "tokenizer": list(self.tokenizer),
            "eos_token_ids": list(self.eos_token_ids),
            "bos_token_id": self.bos_token_id,
            "pad_token_id": self.pad_token_id,
            **({"quantization": dict(self.quantization)} if self.quantization else {}),
        }


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of ``folder``; no other file is opened.

    Raises:
        UsageError: ``folder`` is a file.
        ModelError: there is none, or it is damaged.
    """
    where = os.path.join(os.fspath(folder), MANIFEST)
    if os.path.isfile(folder):
        raise UsageError("is a file", where=os.fspath(folder), hint="give the folder that `qdqtool split` wrote")
    if os.path.isdir(folder) and not os.path.exists(where):
        raise ModelError(
            f"has no {MANIFEST}", where=os.fspath(folder), hint="give the folder that `qdqtool split` wrote"
        )
    data = read_json(where, kind=KIND, max_version=VERSION)
    try:
        found = typed(Manifest, data)
    except ValueError as error:
        hint = "write the folder again with `qdqtool split`"
        raise ModelError(f"holds what it should not: {error}", where=where, hint=hint) from error
    if not found.models:
        raise ModelError("lists no model", where=where, hint="write the folder again with `qdqtool split`")
    for name in (*found.files, *found.tokenizer, *(part.file for model in found.models for part in model.parts)):
        refuse_outside(name, where=where)
    return found


def write_manifest(
    folder: str | os.PathLike[str],
    manifest: Manifest,
    *,
    more: Iterable[str] = (),
    known: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Hash the files of ``folder`` that ``manifest`` names, and write the manifest there.

    Args:
        folder: where the files are.
        manifest: its ``files`` are made anew.
        more: names of the files that are read beside the models and the tokenizer: weights.
        known: hashes that need not be computed again.
        progress: told (files done, files in all).

    Returns:
        The manifest as it was written.

    Raises:
        ModelError: a file is missing.
        UsageError: a file is not in the folder.
    """
    known = known or {}
    names = {*(p.file for model in manifest.models for p in model.parts), *manifest.tokenizer, *more}
    hashes: dict[str, str] = {}
    for done, name in enumerate(sorted(names)):
        if os.path.normpath(name) != name or os.path.isabs(name) or name.startswith(os.pardir):
            raise UsageError("is not in the folder", where=name, hint="copy it there first")
        hashes[name] = known[name] if name in known else sha256_of_file(os.path.join(folder, name))
        if progress is not None:
            progress(done + 1, len(names))
    written = Manifest(**{**vars(manifest), "files": hashes})
    write_json(os.path.join(folder, MANIFEST), kind=KIND, version=VERSION, payload=written.to_json())
    return written


def verify_folder(folder: str | os.PathLike[str], *, progress: Progress | None = None) -> list[Finding]:
    """What is wrong with the files of ``folder``; nothing when it is as it was written.

    Args:
        folder: what `split` wrote.
        progress: told (files done, files in all); a large weight file is one.

    Raises:
        ModelError: the manifest itself is missing or damaged.
    """
    manifest = read_manifest(folder)
    found = []
    for done, (name, digest) in enumerate(sorted(manifest.files.items())):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            found.append(_finding(path, "is missing, the manifest lists it", "copy the whole folder again"))
        elif sha256_of_file(path) != digest:
            hint = "copy the folder again, or write it again with `qdqtool split`"
            found.append(_finding(path, "differs from what was written (SHA-256)", hint))
        if progress is not None:
            progress(done + 1, len(manifest.files))
    return found or _unlisted(folder, manifest)


def refuse_damaged(folder: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """Refuse a folder that is not as it was written, before anything of it runs.

    Raises:
        ModelError: a file is missing or differs.
    """
    found = verify_folder(folder, progress=progress)
    if found:
        first, others = found[0], len(found) - 1
        more = f" ({others} more like it)" if others else ""
        raise ModelError(f"{first.message}{more}", where=first.where, hint=first.hint)


def _unlisted(folder: str | os.PathLike[str], manifest: Manifest) -> list[Finding]:
    """Files that are read, and that no hash holds."""
    read: dict[str, str] = {}
    for model in manifest.models:
        for part in model.parts:
            read.setdefault(part.file, part.file)
            for tensor in read_model(os.path.join(folder, part.file)).graph.initializer:
                if tensor.external_data:
                    read.setdefault(extent_of(tensor).location, part.file)
    for name in manifest.tokenizer:
        read.setdefault(name, MANIFEST)
    return [
        _finding(os.path.join(folder, name), f"is read by {reader}, the manifest does not list it", "write it again")
        for name, reader in sorted(read.items())
        if name not in manifest.files
    ]


def _finding(where: str, message: str, hint: str) -> Finding:
    return Finding(level="error", rule=RULE, where=where, message=message, hint=hint)
