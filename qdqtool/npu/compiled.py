"""Models that hold programs already: what they were compiled for, whether that still holds, and sessions for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import onnx_ir as ir
from qdq_passes.core.findings import Finding
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.graph.uses import label, main_nodes
from qdq_passes.npu.program import DOMAIN

from qdqtool.io.models.context_files import payload_bytes
from qdqtool.io.models.load import SOURCE
from qdqtool.npu.library import library_path
from qdqtool.npu.payload import Header, read_payload, refuse_stale, staleness
from qdqtool.npu.programs import is_context
from qdqtool.runtime import provider
from qdqtool.runtime.session import Session, open_session

if TYPE_CHECKING:
    from qdqtool.targets.target import Target


def contexts(model: ir.Model) -> list[ir.Node]:
    """The EPContext nodes of the simulated NPU in ``model``."""
    return [node for node in main_nodes(model) if is_context(node) and _source(node) == provider.PROVIDER]


def headers(model: ir.Model) -> Iterator[tuple[ir.Node, Header]]:
    """`contexts`, each with what the program inside was compiled for.

    Raises:
        ModelError: a program is damaged, or its file is missing.
    """
    for node in contexts(model):
        yield node, read_payload(payload_bytes(node, model.meta.get(SOURCE)), where=node.name)[0]


def described(model: ir.Model) -> list[dict[str, str | int]]:
    """The programs in ``model``, JSON-ready: node, what it was compiled for and by, bytes; the error where it cannot be read."""
    found: list[dict[str, str | int]] = []
    for node in contexts(model):
        entry: dict[str, str | int] = {"node": label(node)}
        try:
            data = payload_bytes(node, model.meta.get(SOURCE))
            entry |= {**asdict(read_payload(data)[0]), "bytes": len(data)}
        except QdqError as error:
            entry["error"] = str(error)
        found.append(entry)
    return found


def refuse_compiled(model: ir.Model, target: Target) -> None:
    """Refuse a model that holds programs already.

    Raises:
        UsageError: it does; the message says for which target, where that is another.
    """
    for node, header in headers(model):
        stale = staleness(header, target)
        message = f"is compiled already: {stale}" if stale else "is compiled already"
        raise UsageError(message, where=node.name, hint="give the model that it was compiled from")


def refuse_stale_programs(model: ir.Model, target: Target) -> None:
    """Refuse a model with a program that was not compiled for ``target`` as it is now.

    Raises:
        ModelError: it has one, or one that is damaged or missing.
    """
    for node, header in headers(model):
        refuse_stale(header, target, where=node.name)


def findings(model: ir.Model, target: Target | None) -> list[Finding]:
    """What is wrong with the programs in ``model``: damaged, missing, or (``stale-program``) not compiled for ``target``."""
    found = []
    for node in contexts(model):
        name = label(node)
        try:
            header = read_payload(payload_bytes(node, model.meta.get(SOURCE)), where=name)[0]
        except QdqError as error:
            found.append(Finding("error", "program", name, error.message, error.hint or ""))
            continue
        stale = staleness(header, target) if target is not None else None
        if stale is not None:
            found.append(Finding("error", "stale-program", name, stale, "compile the model again"))
    return found


def needs_library(model: ir.Model) -> bool:
    """Whether only the library of the simulated NPU runs ``model``."""
    return DOMAIN in model.opset_imports or bool(contexts(model))


def open_model(model: ir.Model) -> Session:
    """A session for ``model``, on the simulated NPU or with its operators where it needs them.

    Raises:
        SetupError: the library was not built, or onnxruntime is too old or not there.
        QdqError: the session is refused.
    """
    if contexts(model):
        provider.register(library_path())
        source = model.meta.get(SOURCE)  # programs may lie beside it
        return provider.open_session(model, config={} if source is None else {"ep.context_file_path": str(source)})
    return open_session(model, operators=library_path() if DOMAIN in model.opset_imports else None)


def _source(node: ir.Node) -> object:
    attribute = node.attributes.get("source")
    return None if attribute is None else attribute.value
