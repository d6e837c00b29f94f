"""Whether a folder of static decoder graphs is the one that was written: every file against the hashes of its manifest."""

from __future__ import annotations

import os

from qdq_passes.core.findings import Finding
from qdq_passes.errors import ModelError

from qdqtool.io.files.artifacts import sha256_of_file
from qdqtool.io.files.progress import Progress
from qdqtool.io.models.external import extent_of
from qdqtool.io.models.parse import read_model
from qdqtool.llm.folder.manifest import MANIFEST, Manifest, read_manifest

RULE = "folder-manifest"


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
