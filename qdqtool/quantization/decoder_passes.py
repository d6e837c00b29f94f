"""What quantizing a decoder adds to a plan: bounded masks, a cache of integers, integers at the ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

import onnx_ir as ir
from qdq_passes.core.base import Named, Pass
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.uses import label
from qdq_passes.numerics.encoding import integer_format, parse_dtype
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass

from qdqtool.calibrate.observer import Range
from qdqtool.presets.preset import Preset
from qdqtool.presets.recovery import Clips
from qdqtool.quantization.eight_bit_weights import LM_HEAD
from qdqtool.quantization.options import PlanOptions

if TYPE_CHECKING:
    from qdq_passes.decoder.bound_attention_mask import BoundAttentionMask

#: Names of passes: a plan without them does not import them.
_BOUND, _CACHE = "bound-attention-mask", "annotate-kv-cache"
#: What the pipelines call the ranges.
_RANGES = Named("ranges")


def with_decoder_passes(materialise: Pipeline, options: PlanOptions) -> Pipeline:
    """``materialise`` with the passes that ``options`` asks for around its `annotate-encodings`."""
    found: list[Pass] = []
    for step in materialise.passes:
        if isinstance(step, AnnotateEncodings) and step.encodings is not None and options.bound_masks:
            found.append(make_pass(_BOUND, {"ranges": _RANGES, **_width(step)}))
        found.append(step)
        if isinstance(step, AnnotateEncodings) and options.kv_cache != "float":
            said = {"dtype": options.kv_cache, "scales": step.scales, "domain": step.domain}
            found.append(make_pass(_CACHE, {"ranges": _RANGES, **said}))
    if options.kv_cache != "float":
        found.append(make_pass("scatter-integers", {}))
        if not options.integer_io:
            found.append(make_pass("integer-io", {"of": "cache"}))
    if options.integer_io:
        found.append(make_pass("integer-io", {}))
    return Pipeline(tuple(found))


def _width(policy: AnnotateEncodings) -> dict[str, int]:
    """The width of activations, and so of shares, where that needs less of a margin than 16 bit."""
    bits = integer_format(parse_dtype(policy.activations))[1]
    return {"bits": bits} if bits < 16 else {}


def with_finite_masks(
    prepare: Pipeline, materialise: Pipeline, options: PlanOptions, taken: Collection[str]
) -> Pipeline:
    """``prepare`` with the passes that leave nothing infinite of masks, where ``materialise`` bounds them, or where a target that
    computes the operators ``taken`` has no test for NaN."""
    is_bounding = any(step.name() == _BOUND for step in materialise.passes)
    is_guarded = bool(taken) and "IsNaN" not in taken and options.bound_masks
    if not is_bounding and not is_guarded:
        return prepare
    return prepare + Pipeline((make_pass("finite-masks", {}), make_pass("remove-nan-guards", {})))


def has_infinite_masks(model: ir.Model) -> bool:
    """Whether `with_finite_masks` would change masks of ``model``."""
    from qdq_passes.legalize.finite_masks import FiniteMasks

    return any(change.kind == "edit" for change in FiniteMasks().run(copy_model(model)))


def decoder_equalize(preset: Preset, options: PlanOptions) -> Clips | Literal[False] | None:
    """What is said of `equalize-layers`; of a language model it runs where nothing is said and activations have 16 bit.

    Those have room for the channels that are large behind a norm; 8-bit weights have none for the small weights that read them
    (measured on the sample decoder with outliers, `16a8w`: 1.4 % of perplexity, 0.2 % when equalized). The factors are powers of
    two: the float model computes the same.
    """
    recovery = options.over(preset.recovery)
    has_room = preset.annotate.activations in ("int16", "uint16")
    is_silent = recovery.equalize is None and recovery.smooth is None
    return "keep" if options.bound_masks and has_room and is_silent else options.equalize


def float_head(options: PlanOptions) -> tuple[str, ...]:
    """The selectors of what stays float because of ``lm_head``."""
    return (LM_HEAD,) if options.lm_head == "float" else ()


def cache_names(model: ir.Model, materialise: Pipeline) -> list[str]:
    """The tensors of the cache of the prepared ``model`` whose ranges `annotate-kv-cache` needs; none where it does not run.

    Raises:
        UsageError: an operator keeps the cache itself, or there is none.
    """
    if not any(step.name() == _CACHE for step in materialise.passes):
        return []
    from qdq_passes.decoder.look.cache_tensors import CacheValues, cache_values

    found = cache_values(model)
    kept = [each for each in found if isinstance(each, tuple)]
    if kept:
        node, reason = kept[0]
        raise UsageError(
            reason, where=label(node),
            hint="split with --decompose, or leave out --kv-cache",
        )  # fmt: skip
    values = [value for each in found if isinstance(each, CacheValues) for value in each.values]
    return [value.name for value in values if value.name]


def masks(model: ir.Model, ranges: Mapping[str, Range]) -> set[str]:
    """The names of masks of attentions, and of the scores behind them, that `bound-attention-mask` gives other ranges."""
    from qdq_passes.decoder.bound_attention_mask import BoundAttentionMask

    return {value.name or "" for value in BoundAttentionMask(ranges=ranges).bounded(model)}


def unbounded(model: ir.Model, materialise: Pipeline, ranges: Mapping[str, Range], names: Iterable[str]) -> list[str]:
    """Those of ``names`` that no `bound-attention-mask` gives another range."""
    step = next((p for p in materialise.passes if p.name() == _BOUND), None)
    if step is None:
        return list(names)
    bounded = {value.name for value in replace(cast("BoundAttentionMask", step), ranges=ranges).bounded(model)}
    return [name for name in names if name not in bounded]
