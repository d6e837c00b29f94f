"""The life of a scale: by which pass it was chosen, and by which rules it was moved since, as the model's history tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.replaying import RANGES, Replayed
from qdqtool.io.models.provenance import history
from qdqtool.record.moves import EncodingWatch, encodings_of
from qdqtool.record.record import Moved
from qdqtool.runtime.session import RUNTIME, compute

#: Who changed an encoding of which the history knows nothing.
ELSEWHERE = "elsewhere"


def lives(
    a: ir.Model,
    b: ir.Model,
    ranges: Ranges | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    past: Replayed | None = None,
) -> tuple[dict[str, tuple[Moved, ...]], list[str]]:
    """Tensor → what became of its encoding, the first choice first; and what is not known, and why. Neither model is changed.

    Args:
        a: float model.
        b: quantized model; of one without a history nothing is known.
        ranges: the ranges it was quantized with.
        inputs: other named inputs of its pipelines.
        past: what `replay` made of these, where it was asked already.
    """
    known = len(history(a.metadata_props))
    texts = [str(e["pipeline"]) for e in history(b.metadata_props)[known:] if isinstance(e, dict) and "pipeline" in e]
    bound = {RUNTIME: compute, **(inputs or {}), **({RANGES: ranges.bound} if ranges is not None else {})}
    watch = EncodingWatch()
    behind = past.behind if past is not None else ()
    model = copy_model(past.reference if past is not None and behind else a)
    for at, text in enumerate(texts):
        try:
            pipeline = Pipeline(behind) if behind and not at else parse_pipeline(text)
            missing = [name for name in pipeline.needs() if name not in bound]
            if missing:
                return {}, [f"what moved scales is not known without @{', @'.join(missing)} (--ranges)"]
            pipeline.run(model, inputs=bound, hooks=[watch])
        except QdqError as error:
            return {}, [f"what moved scales is not known: {error.message}"]
    if texts:
        watch.note(encodings_of(b), ELSEWHERE, {})
    return dict(watch.moves(dict.fromkeys(pair.tensor for pair in qdq_pairs(b)))), []
