"""The life of a scale: by which pass it was chosen, and by which rules it was moved since, as the model's history tells."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from qdq_passes.core.base import Change, Pass
from qdq_passes.errors import QdqError
from qdq_passes.graph.annotate import ENCODING
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import all_values
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.hooks import QuietHook
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.replaying import RANGES, Replayed
from qdqtool.io.models.provenance import history
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
    watch = _Watch({pair.tensor for pair in qdq_pairs(b)})
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
        watch.compare(_encodings(b, watch.names), ELSEWHERE, {})
    return {name: tuple(moves) for name, moves in watch.moves.items()}, []


class _Watch(QuietHook):
    """Sees who changes an encoding."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self.moves: dict[str, list[Moved]] = {}
        self._last: dict[str, Encoding] = {}

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        """Compare with what was before."""
        if any(not change.is_skip for change in changes):
            because = {change.where: change.because for change in changes if not change.is_skip}
            self.compare(_encodings(model, self.names), type(pass_).name(), because)

    def compare(self, now: Mapping[str, Encoding], by: str, because: Mapping[str, str]) -> None:
        """Note what is another encoding than before."""
        for name, encoding in now.items():
            before = self._last.get(name)
            if before != encoding:
                told = None if before is None else before.to_json()
                move = Moved(by=by, because=because.get(name, ""), before=told, after=encoding.to_json())
                self.moves.setdefault(name, []).append(move)
                self._last[name] = encoding


def _encodings(model: ir.Model, names: Collection[str]) -> dict[str, Encoding]:
    found: dict[str, Encoding] = {}
    for pair in qdq_pairs(model):
        if pair.tensor in names and pair.encoding is not None:
            found.setdefault(pair.tensor, pair.encoding)
    for value in all_values(model):
        annotated = ENCODING.get(value)
        if value.name is not None and value.name in names and annotated is not None:
            found.setdefault(value.name, annotated)
    return found
