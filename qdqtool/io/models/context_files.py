"""The payload of an EPContext node: in its attribute (``embed_mode`` 1), or in a file beside the model that it names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import onnx_ir as ir
from qdq_passes.errors import ModelError
from qdq_passes.graph.uses import label

from qdqtool.io.files.atomic import write_whole
from qdqtool.io.models.external import open_data

#: Attribute of an EPContext node that holds the payload, or the name of its file.
CACHE = "ep_cache_context"
#: Ending of files with payloads.
ENDING = ".qdqnpu"


def payload_bytes(node: ir.Node, source: str | None) -> bytes:
    """The payload of an EPContext node.

    Args:
        node: the node.
        source: the file of its model, None where it lies in none.

    Raises:
        ModelError: it has none, or its file is missing, a link, or outside of the model's folder.
    """
    cache, where = node.attributes.get(CACHE), label(node)
    mode = node.attributes.get("embed_mode")
    if cache is None:
        raise ModelError("is an EPContext without a payload", where=where, hint="compile the model again")
    value: str | bytes = cache.value
    if mode is None or mode.as_int() == 1:
        return value if isinstance(value, bytes) else value.encode()
    if source is None:
        raise ModelError(f"names the file {value!r} beside a model that lies in no file", where=where)
    if isinstance(value, bytes):
        raise ModelError(
            f"names a file by what is no text: {value[:40]!r}", where=where, hint="compile the model again"
        )
    handle = open_data(os.path.dirname(source), value, where)
    with os.fdopen(handle, "rb") as file:
        return file.read()


def move_payloads_out(model: ir.Model, path: str, is_ours: Callable[[ir.Node], bool]) -> tuple[str, ...]:
    """Write the payloads of EPContext nodes into files beside ``path``, ``<stem>_<node>.<first 8 of its sha256>.qdqnpu``, and let
    the nodes name them; returns the paths.

    Args:
        model: edited in place.
        path: where the model is going to be saved.
        is_ours: which nodes.

    Raises:
        UsageError: a place cannot be written.
        SetupError: the disk is full.
    """
    folder, stem = os.path.dirname(os.path.abspath(path)), os.path.splitext(os.path.basename(path))[0]
    written = []
    for node in model.graph:
        cache = node.attributes.get(CACHE)
        if cache is None or not isinstance(cache.value, bytes) or not is_ours(node):
            continue
        name = f"{stem}_{node.name}.{hashlib.sha256(cache.value).hexdigest()[:8]}{ENDING}"
        written.append(os.path.join(folder, name))
        write_whole(written[-1], cache.value)
        node.attributes[CACHE] = ir.AttrString(CACHE, name)
        node.attributes["embed_mode"] = ir.AttrInt64("embed_mode", 0)
    return tuple(written)
