"""`quantize --recipe`: a quantization made again from what a recipe says."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir
from qdq_passes.errors import UsageError

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.io.files.progress import pass_on
from qdqtool.io.models.working import opened
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.search.recipe import Recipe

if TYPE_CHECKING:
    from qdqtool.verbs.quantize import Quantize
    from qdqtool.verbs.work.quantizing import Quantized


def laid_under(asked: Quantize, recipe: Recipe | str | os.PathLike[str]) -> Quantize:
    """``asked`` with what ``recipe`` says, and without a recipe.

    Raises:
        UsageError: something is said that contradicts the recipe.
        ModelError: the file is no recipe.
    """
    made = recipe if isinstance(recipe, Recipe) else Recipe.read(recipe)
    found = replace(made.laid_under(asked), recipe=None)
    is_same = isinstance(asked.preset, Preset) and asked.preset.sha256 == made.preset_sha256
    return replace(found, preset=asked.preset) if is_same else found


def replayed(asked: Quantize, recipe: Recipe | str | os.PathLike[str]) -> Quantized:
    """Quantize by a recipe.

    Raises:
        UsageError: something is said that contradicts the recipe.
        ModelError: the file is no recipe.
    """
    if not isinstance(asked.model, ir.Model) and os.path.isdir(asked.model):
        raise UsageError("a recipe is of one model, not of a folder", where=os.fspath(asked.model))
    made = recipe if isinstance(recipe, Recipe) else Recipe.read(recipe)
    again = laid_under(asked, made)
    used = again.preset if isinstance(again.preset, Preset) else load_preset(again.preset or made.preset)
    differences = []
    if made.preset_sha256 and used.sha256 != made.preset_sha256:
        differences.append(
            f"the recipe is of another version of the preset {used.name}: the result differs from what was searched"
        )
    if made.model_sha256 and model_sha256(opened(asked.model)[0]) != made.model_sha256:
        differences.append("the recipe is of another model: what it reached there says nothing here")
    pass_on(differences, asked.warn)
    done = again.run()
    if made.ranges_sha256 and done.quantization.ranges.sha256 != made.ranges_sha256:
        why = "(other data, or another method): the bytes differ from what was searched"
        pass_on([f"the ranges are not those of the recipe {why}"], asked.warn)
    return done
