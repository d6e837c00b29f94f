"""Precision of single nodes in a plan: what the user says of them, then what the preset says, as passes of its pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import onnx_ir as ir
from qdq_passes.clean.convert_opset import ConvertOpset
from qdq_passes.clean.inline_functions import InlineFunctions
from qdq_passes.core.base import Pass
from qdq_passes.encode.set_precision import SetPrecision
from qdq_passes.errors import UsageError
from qdq_passes.graph.operators.qdq_ops import FIRST_OPSET, OPSET_OF_HALF
from qdq_passes.numerics.encoding import integer_format, parse_dtype
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.select.selectors import Selector

from qdqtool.presets.precision import KINDS, PrecisionRules, Rules
from qdqtool.presets.preset import Preset
from qdqtool.quantization.options import PlanOptions

OPSET_OF_16_BITS = FIRST_OPSET[ir.DataType.INT16]
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOAT_TYPES = {"fp16": "float16", "bf16": "bfloat16", "float": "float"}


def said_by_user(options: PlanOptions) -> Rules:
    """The rules that ``options`` make up."""
    found = {kind: tuple(getattr(options, kind)) for kind in KINDS}
    return {kind: texts for kind, texts in found.items() if texts}


def switched_on(rules: PrecisionRules, options: PlanOptions) -> list[Rules]:
    """The rules of the switches that are on, in their order.

    Raises:
        UsageError: there is no such switch, or it is turned on and off at once.
    """
    names = list(rules.switches)
    for name in (*options.switch, *options.no_switch):
        if name not in rules.switches:
            known = f"it has {', '.join(names)}" if names else "it has none; see `qdqtool list presets NAME`"
            raise UsageError(f"the preset has no switch {name!r}", hint=known)
    if both := sorted(set(options.switch) & set(options.no_switch)):
        raise UsageError(f"switch {both[0]} is turned on and off", hint="leave one of them out")
    on = {name for name, switch in rules.switches.items() if switch.on}
    return [rules.switches[n].rules for n in names if n in (on | set(options.switch)) - set(options.no_switch)]


def precision_passes(preset: Preset, options: PlanOptions) -> Pipeline:
    """The passes that say which precision nodes and values have; they run on the prepared model, before anything is quantized.

    What the user says comes first and must not contradict itself; what switches and then the rules of the preset say holds where
    nothing was said, and where there is anything that it is about.
    """
    rules = preset.precision
    passes = _set(preset, said_by_user(options))
    for each in (*switched_on(rules, options), rules.rules):
        passes += _set(preset, each, default=True)
    return Pipeline(tuple(passes))


def with_precision(
    preset: Preset, options: PlanOptions, prepare: Pipeline, materialise: Pipeline
) -> tuple[Pipeline, Pipeline]:
    """Both halves of a plan with what `precision_passes` asks for: the opset of 16-bit integers before, conversions behind."""
    asked = precision_passes(preset, options)
    if not asked.passes:
        return prepare, materialise
    types = {p.dtype for p in asked.passes if isinstance(p, SetPrecision)}
    if preset.insert.domain == "onnx" and types & {"int16", "uint16"}:
        prepare = _raised(prepare)
    behind: list[Pass] = []
    if preset.precision.convert and not all(dtype in _FLOAT_TYPES.values() for dtype in types):
        behind.append(make_pass("convert-boundaries", {"select": list(preset.precision.convert)}))
    if types & {"float16", "bfloat16"}:
        behind.append(make_pass("convert-precision", {}))
    return prepare, materialise + Pipeline(tuple(behind))


def raised_for_half(prepare: Pipeline, dtypes: Collection[ir.DataType | None], opset: int | None) -> Pipeline:
    """``prepare`` with an opset whose operators quantize float16 and bfloat16, where a model holds such and has an older one.

    Args:
        prepare: passes before calibration.
        dtypes: of the model's values.
        opset: of the model; None where it has none of ONNX's own operators.
    """
    is_old = opset is not None and opset < OPSET_OF_HALF
    return _raised(prepare, OPSET_OF_HALF) if is_old and not set(_HALF).isdisjoint(dtypes) else prepare


def texts_of(precision: Pipeline) -> list[str]:
    """The selectors of the user in ``precision``, each once."""
    passes = [p for p in precision.passes if isinstance(p, SetPrecision) and not p.default]
    return list(dict.fromkeys(text for p in passes for text in p.select.texts))


def without(precision: Pipeline, texts: Collection[str]) -> Pipeline:
    """``precision`` without the selectors ``texts`` of the user."""
    kept: list[Pass] = []
    for each in precision.passes:
        if isinstance(each, SetPrecision) and not each.default:
            left = tuple(t for t in each.select.texts if t not in texts)
            kept += [replace(each, select=Selector(left))] if left else []
        else:
            kept.append(each)
    return Pipeline(tuple(kept))


def _set(preset: Preset, rules: Rules, **options: Any) -> list[Pass]:
    return [
        make_pass("set-precision", {"select": list(texts), "dtype": _dtype(preset, kind), **options})
        for kind, texts in rules.items()
    ]


def _dtype(preset: Preset, kind: str) -> str:
    if kind in _FLOAT_TYPES:
        return _FLOAT_TYPES[kind]
    if not preset.is_calibrated:
        raise UsageError(
            f"{preset.name} leaves activations float, none can be {kind}", hint="take one that quantizes them"
        )
    signed = integer_format(parse_dtype(preset.annotate.activations))[0]
    return kind if signed else f"u{kind}"


def _raised(prepare: Pipeline, opset: int = OPSET_OF_16_BITS) -> Pipeline:
    """``prepare`` with at least that opset: where it converts anyway, or once functions are inlined."""
    passes = list(prepare.passes)
    for index, each in enumerate(passes):
        if isinstance(each, ConvertOpset):
            passes[index] = dataclasses.replace(each, version=max(each.version, opset))
            return Pipeline(tuple(passes))
    behind = next((i for i, p in enumerate(passes, 1) if isinstance(p, InlineFunctions)), 0)
    passes.insert(behind, ConvertOpset(version=opset, at_least=True))
    return Pipeline(tuple(passes))
