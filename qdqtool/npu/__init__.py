"""The simulated NPU: what a target takes of a model, the programs it becomes, and the provider that runs them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdqtool.npu.jit import JitCompiler


def register() -> None:
    """Make the simulated NPU known to onnxruntime, in this process; again is no harm.

    After it ``onnxruntime.get_ep_devices()`` has a device of ``NpuSimExecutionProvider``, and a session on it compiles QDQ
    models.

    Raises:
        SetupError: the library was not built, or onnxruntime is older than 1.23.
    """
    from qdqtool.npu.library import library_path
    from qdqtool.runtime import provider

    provider.register(library_path(), _compiler())


@functools.cache
def _compiler() -> JitCompiler:
    from qdqtool.npu.jit import JitCompiler

    return JitCompiler()
