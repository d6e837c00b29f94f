"""Models computed for several feeds, for passes that take numbers from the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from qdq_passes.numerics.arrays import Array

from qdqtool.runtime.session import open_session

#: What pipelines call `compute`: ``tabulate-rotary-angles{compute=@runtime}``.
RUNTIME = "runtime"


def compute(model: ir.Model, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """The outputs of ``model`` for each of ``feeds``, by name, in onnxruntime without optimization."""
    session = open_session(model)
    return [dict(session.run(feed)) for feed in feeds]
