"""Sessions on plugin execution providers: libraries that onnxruntime loads at run time, ours and those of chip makers.

A session on a provider is never one on the CPU in disguise: onnxruntime's Python class would print an error and try again on the
CPU; here the error is raised. Nodes that a provider declines run on onnxruntime's CPU provider, and `assignment` says which."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import SetupError, UsageError

from qdqtool.runtime.refusals import one_line, refusal
from qdqtool.runtime.session import Session, _onnxruntime, prepared, version

#: onnxruntime's name of what runs the nodes that no other provider takes.
CPU_PROVIDER = "CPUExecutionProvider"
#: Libraries registered by this process: registration name → absolute path.
_registered: dict[str, str] = {}


@dataclass(frozen=True)
class Assigned:
    """A node as onnxruntime placed it.

    Args:
        provider: name of the execution provider.
        name: of the node; empty where it has none.
        op: its operator.
        group: nodes of one number were handed over together.
    """

    provider: str
    name: str
    op: str
    group: int


def register_library(name: str, path: str | os.PathLike[str]) -> None:
    """Have onnxruntime load the provider library at ``path`` under ``name``; nothing happens when it has been done.

    Raises:
        UsageError: there is no such file, or the name stands for another.
        SetupError: onnxruntime cannot load it, or is older than 1.23.
    """
    where = os.path.abspath(os.fspath(path))
    if _registered.get(name) == where:
        return
    if not os.path.isfile(where):
        raise UsageError("there is no such library", where=os.fspath(path), hint="give the path of the shared library")
    if name in _registered:
        raise UsageError(f"the name {name!r} stands for {_registered[name]}", where=where, hint="register it once")
    ort = _onnxruntime()
    if not hasattr(ort, "register_execution_provider_library"):
        raise SetupError(f"onnxruntime {version()} knows no plugin providers", hint="install onnxruntime 1.23 or newer")
    try:
        ort.register_execution_provider_library(name, where)
    except Exception as error:
        raise SetupError(
            f"onnxruntime {version()} cannot load it as a provider: {one_line(str(error))}",
            where=os.fspath(path),
            hint="it must export CreateEpFactories, and its own libraries must be found",
        ) from error
    _registered[name] = where


def provider_names() -> list[str]:
    """Names of the providers that have a device, sorted."""
    return sorted({device.ep_name for device in _onnxruntime().get_ep_devices()})


def open_on(
    model: ir.Model | str | os.PathLike[str],
    provider: str,
    options: Mapping[str, str] | None = None,
    *,
    optimize: bool = False,
    threads: int = 1,
    config: Mapping[str, str] | None = None,
) -> Session:
    """A session on ``provider``, with onnxruntime's CPU provider behind it.

    Args:
        model: the model (which is not changed), or its file.
        provider: name of a provider that has a device: of a library registered before.
        options: the provider's own options.
        optimize: let onnxruntime optimize the graph first: the provider then sees another one.
        threads: threads inside an operator; 0 leaves the choice to onnxruntime.
        config: further entries of the session's configuration.

    Raises:
        UsageError: no device is of this provider.
        UnsupportedError: onnxruntime has no such operator, kernel, opset or IR version.
        ModelError: onnxruntime or the provider refuses the model.
    """
    ort = _onnxruntime()
    devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]
    if not devices:
        known = ", ".join(provider_names())
        raise UsageError(f"no device of a provider {provider!r}", hint=f"there is {known or 'none'}")
    source, session_options, weights = prepared(model, optimize=optimize, threads=threads)
    if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        session_options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in (config or {}).items():
        session_options.add_session_config_entry(key, value)
    try:
        session_options.add_provider_for_devices(devices[:1], dict(options or {}))
        return Session(lambda: _without_fallback(ort, source.data, session_options), weights, size=source.size)
    except Exception as error:
        raise refusal(str(error), version=version()) from error


def _without_fallback(ort: Any, data: bytes, options: Any) -> Any:
    handle = ort.InferenceSession(data, options, enable_fallback=0)
    handle.disable_fallback()
    return handle


def assignment(session: Session) -> tuple[Assigned, ...] | None:
    """Where onnxruntime placed the nodes of ``session``; None before onnxruntime 1.24, which does not tell."""
    found = _groups(session)
    if found is None:
        return None
    return tuple(
        Assigned(group.ep_name, node.name, node.op_type, number)
        for number, group in enumerate(found)
        for node in group.get_nodes()
    )


def _groups(session: Session) -> Sequence[Any] | None:
    ask = getattr(session._handle, "get_provider_graph_assignment_info", None)
    return None if ask is None else ask()
