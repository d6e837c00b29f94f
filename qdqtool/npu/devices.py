"""What a model is simulated on: our provider, or one that the user has."""

from __future__ import annotations

import os
from collections.abc import Mapping

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import SetupError, UsageError
from qdq_passes.npu.units.verdict import Boundary

import qdqtool.npu
from qdqtool.npu.library import NAME
from qdqtool.runtime.plugin import open_on, provider_names, register_library
from qdqtool.runtime.provider import PROVIDER, open_session
from qdqtool.runtime.session import Session


@dataclass(frozen=True, kw_only=True)
class Device:
    """A session on a provider.

    Args:
        description: what it is.
        session: None where the library of the simulated NPU is missing.
        notes: what else is to be said.
    """

    description: str
    session: Session | None
    notes: tuple[str, ...] = ()


def is_simulated_npu(library: str | os.PathLike[str] | None, name: str | None) -> bool:
    """Whether a provider that a user names is the simulated NPU itself: by its name, or else by that of its file."""
    if name is not None:
        return name == PROVIDER
    return library is not None and os.path.basename(os.fspath(library)) == NAME


def simulated_npu(
    model: ir.Model,
    target: str | os.PathLike[str] | None,
    boundary: Boundary | None,
    *,
    options: Mapping[str, str] | None = None,
    library: str | os.PathLike[str] | None = None,
    optimize: bool = False,
    threads: int = 1,
) -> Device:
    """The simulated NPU; without a session where its library is missing, or onnxruntime is too old for it.

    Args:
        model: QDQ, or compiled.
        target: name or file of the target; None for a compiled model, which says it itself.
        boundary: where not as the target says.
        options: further ones of the provider (``isa``).
        library: another build of its library than the one that is installed.
        optimize: let onnxruntime optimize the graph first.
        threads: threads inside an operator.

    Raises:
        QdqError: the model cannot be partitioned, lowered or opened; or ``library`` is none.
    """
    try:
        qdqtool.npu.register(library)
    except SetupError as error:
        if library is not None:
            raise
        return Device(
            description="none", session=None, notes=(f"{error.message}; {error.hint}" if error.hint else error.message,)
        )
    given = {key: value for key, value in (("target", _found(target)), ("boundary", boundary)) if value is not None}
    session = open_session(model, {**(options or {}), **given}, optimize=optimize, threads=threads)
    return Device(description="the simulated NPU", session=session)


def other_provider(
    model: ir.Model,
    library: str | os.PathLike[str] | None,
    name: str | None,
    options: Mapping[str, str],
    *,
    optimize: bool = False,
    threads: int = 1,
) -> Device:
    """The provider ``name`` of ``library``; nodes that it declines run on the CPU. Arguments else as `simulated_npu`.

    Args:
        library: registered with onnxruntime under the provider's name (or its own); None for one that is registered.
        name: of the provider; None where ``library`` brings just one that was not there.
        options: the provider's.

    Raises:
        UsageError: there is no such library or provider, or no telling which.
        SetupError: onnxruntime cannot load it.
    """
    if library is not None:
        before = set(provider_names())
        register_library(name or os.path.splitext(os.path.basename(os.fspath(library)))[0], library)
        if name is None:
            new = sorted(set(provider_names()) - before)
            if len(new) != 1:
                hint = f"give --ep-name: {', '.join(new or provider_names())}"
                raise UsageError("which of its providers is not clear", where=os.fspath(library), hint=hint)
            (name,) = new
    if name is None:
        raise UsageError("no provider", hint="give --ep-library, --ep-name or both")
    session = open_on(model, name, options, optimize=optimize, threads=threads)
    return Device(description=name, session=session)


def _found(target: str | os.PathLike[str] | None) -> str | None:
    """A name as it is; the file of another target from the root, as the compiler may be asked from elsewhere."""
    if target is None:
        return None
    text = os.fspath(target)
    return os.path.abspath(text) if text.endswith(".toml") else text
