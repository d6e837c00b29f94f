"""What the history of a quantized model tells: the float model that was calibrated, and the encodings that calibration chose.

A model that `quantize` wrote carries its pipeline. Run on the float model up to the choice of encodings, it gives that model
with the layers folded and fused as they were quantized; run without the passes that move scales, the encodings before these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Pass
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.errors import ModelError, QdqError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import label, main_nodes
from qdq_passes.numerics.encoding import Encoding, encoding_of_range, integer_range, is_integer_type
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline
from qdq_passes.qdq.look.pairs import qdq_pairs

from qdqtool.calibrate.ranges import Ranges
from qdqtool.comparison.regions import is_conversion
from qdqtool.io.models.provenance import history
from qdqtool.runtime.session import RUNTIME, compute

#: Family of the passes that move scales by powers of two so that shifts are in reach or operands are aligned.
MOVING = "refine"
#: What ``ranges`` are bound to in the pipeline of `quantize`.
RANGES = "ranges"


@dataclass(frozen=True, eq=False, kw_only=True)
class Replayed:
    """What is known of how a model was quantized.

    Args:
        reference: the float model whose tensors the quantized one's are compared with.
        is_prepared: whether ``reference`` was prepared as the quantized model was; else it is the float model as it is.
        moved: tensor → the encoding that calibration chose, where the model has another now; None where that is not known.
        warnings: why something is not known.
        behind: what the pipeline ran behind ``reference``, where that is exactly what stood there and this pipeline was the first
            of the history; empty where not.
        floats: names of the nodes of ``reference`` that its pipeline left float; empty where that is not known.
    """

    reference: ir.Model
    is_prepared: bool
    moved: Mapping[str, Encoding] | None
    warnings: tuple[str, ...] = field(default=())
    behind: tuple[Pass, ...] = ()
    floats: frozenset[str] = frozenset()


def replay(
    a: ir.Model,
    b: ir.Model,
    ranges: Ranges | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    is_moved: bool = True,
) -> Replayed:
    """What the history of ``b`` tells, made from the float model ``a``; neither is changed.

    Args:
        a: float model.
        b: quantized model.
        ranges: the ranges it was quantized with.
        inputs: other named inputs of its pipeline.
        is_moved: find out which encodings were moved, which runs the pipeline once more; else none is told.
    """
    warnings: list[str] = []
    bound = {RUNTIME: compute, **(inputs or {}), **({RANGES: ranges.bound} if ranges is not None else {})}
    passes, is_first = _passes(a, b, warnings)
    if passes is None:
        moved = None if ranges is None or not is_moved else _moved_from_ranges(b, ranges)
        return Replayed(reference=a, is_prepared=False, moved=moved, warnings=tuple(warnings))
    chosen = next(i for i, p in enumerate(passes) if isinstance(p, AnnotateEncodings))
    before = [(p, set(Pipeline((p,)).needs())) for p in passes[:chosen]]
    try:
        reference = _run(a, [p for p, needed in before if needed <= set(bound)], bound)
    except QdqError as error:
        warnings.append(f"the float model cannot be prepared as the quantized one was: {error.message}")
        return Replayed(reference=a, is_prepared=False, moved=None, warnings=tuple(warnings))
    lost = sorted({name for _, needed in before for name in needed - {*bound, RANGES}})
    if lost:
        warnings.append(f"it was quantized with @{', @'.join(lost)}, not at hand: what that changed counts as error")
    moved = _moved(a, b, passes, bound, warnings) if is_moved else None
    return Replayed(
        reference=reference, is_prepared=True, moved=moved, warnings=tuple(warnings),
        behind=passes[chosen:] if is_first and all(needed <= set(bound) for _, needed in before) else (),
        floats=_left_float(reference, passes[chosen]),
    )  # fmt: skip


def _left_float(reference: ir.Model, annotate: Pass) -> frozenset[str]:
    """The nodes that demanded no encoding of what they read or write."""
    assert isinstance(annotate, AnnotateEncodings)
    try:
        demands = annotate.demands(reference)
    except QdqError:  # a selector of what went since
        return frozenset()
    asked = {*demands.silent.values(), *(name for names in demands.nodes.values() for name in names)}
    return frozenset(label(node) for node in main_nodes(reference)) - asked


def _passes(a: ir.Model, b: ir.Model, warnings: list[str]) -> tuple[tuple[Pass, ...] | None, bool]:
    """The pipeline that quantized ``b``, the last of its history that is not also that of ``a``; None where there is none. And
    whether it is the first of these."""
    known = history(a.metadata_props)
    entries = history(b.metadata_props)
    texts = [str(e["pipeline"]) for e in entries[len(known) :] if isinstance(e, dict) and "pipeline" in e]
    for at, text in reversed(list(enumerate(texts))):
        try:
            passes = parse_pipeline(text).passes
        except QdqError as error:
            warnings.append(f"its pipeline cannot be read here: {error.message}")
            return None, False
        if any(isinstance(p, AnnotateEncodings) for p in passes):
            return passes, not at
    return None, False


def _run(model: ir.Model, passes: Sequence[Pass], inputs: Mapping[str, Any]) -> ir.Model:
    copy = copy_model(model)
    Pipeline(tuple(passes)).run(copy, inputs=inputs)
    return copy


def _moved(
    a: ir.Model, b: ir.Model, passes: Sequence[Pass], inputs: Mapping[str, Any], warnings: list[str]
) -> Mapping[str, Encoding] | None:
    if all(p.family() != MOVING for p in passes):
        return {}
    kept = [p for p in passes if p.family() != MOVING]
    missing = [name for name in Pipeline(tuple(kept)).needs() if name not in inputs]
    if missing:
        warnings.append(f"what refinement cost is not known without @{', @'.join(missing)} (--ranges)")
        return None
    try:
        unmoved = _run(a, kept, inputs)
    except QdqError as error:
        warnings.append(f"what refinement cost is not known: {error.message}")
        return None
    before = _encodings(unmoved)
    return {n: before[n] for n, now in _encodings(b).items() if n in before and _is_moved(before[n], now)}


def _moved_from_ranges(b: ir.Model, ranges: Ranges) -> Mapping[str, Encoding]:
    """Activations alone, by the rule that the model's own encodings show: symmetric or not, powers of two or not."""
    found = {}
    for name, now in _encodings(b, kinds=("activation",)).items():
        observed = ranges.tensors.get(name)
        if observed is None or not is_integer_type(now.dtype) or len(now.scale) != 1:
            continue
        middle = (sum(integer_range(now.dtype, symmetric=False)) + 1) // 2
        symmetric = now.zero_point[0] == middle
        try:
            chosen = encoding_of_range(
                observed.low, observed.high, dtype=now.dtype, symmetric=symmetric,
                power_of_two=symmetric and now.position is not None,
            )  # fmt: skip
        except ModelError:
            continue
        if _is_moved(chosen, now):
            found[name] = chosen
    return found


def _encodings(model: ir.Model, kinds: Sequence[str] = ("activation", "bias", "weight")) -> dict[str, Encoding]:
    found: dict[str, Encoding] = {}
    for pair in qdq_pairs(model):
        encoding = pair.encoding
        if encoding is not None and pair.kind in kinds and not is_conversion(pair):
            found.setdefault(pair.tensor, encoding)
    return found


def _is_moved(before: Encoding, now: Encoding) -> bool:
    same_form = (before.dtype, before.shape, before.axis, before.block_size) == (
        now.dtype,
        now.shape,
        now.axis,
        now.block_size,
    )
    return same_form and (before.scale, before.zero_point) != (now.scale, now.zero_point)
