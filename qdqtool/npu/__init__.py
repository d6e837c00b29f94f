"""The simulated NPU: what a target takes of a model, the programs it becomes, and the provider that runs them."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdqtool.npu.jit import JitCompiler


def register(library: str | os.PathLike[str] | None = None) -> None:
    """Make the simulated NPU known to onnxruntime, in this process; again is no harm.

    After it ``onnxruntime.get_ep_devices()`` has a device of ``NpuSimExecutionProvider``, and a session on it compiles QDQ
    models.

    Args:
        library: another build of its library than the one that is installed.

    Raises:
        UsageError: there is no such ``library``, or another one was registered before.
        SetupError: the library was not built, or onnxruntime is older than 1.23.
    """
    from qdqtool.npu.library import library_path
    from qdqtool.runtime import provider

    provider.register(library_path() if library is None else library, _compiler())


@functools.cache
def _compiler() -> JitCompiler:
    from qdqtool.npu.jit import JitCompiler

    return JitCompiler()
