"""`quantize --recipe`: a quantization made again from what a recipe says."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from qdq_passes.errors import UsageError

from qdqtool.calibrate.fingerprint import model_sha256
from qdqtool.io.models.working import opened
from qdqtool.presets.loading import load_preset
from qdqtool.presets.preset import Preset
from qdqtool.search.recipe import Recipe

if TYPE_CHECKING:
    from qdqtool.api.quantizing import Quantized


def defaults_of(verb: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of ``verb`` that have a default, with it."""
    parameters = inspect.signature(verb).parameters
    return {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}


def laid_under(verb: Callable[..., Any], recipe: Recipe, said: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``verb`` as the recipe and ``said`` give them.

    Raises:
        UsageError: something is said that contradicts the recipe.
    """
    preset = said.get("preset")
    arguments = recipe.laid_under(said, defaults_of(verb))
    same = isinstance(preset, Preset) and preset.sha256 == recipe.preset_sha256
    return {**arguments, "preset": preset} if same else arguments


def replay(
    verb: Callable[..., Quantized], recipe: Recipe | str | os.PathLike[str], said: Mapping[str, Any]
) -> Quantized:
    """Quantize by a recipe.

    Args:
        verb: `quantize`.
        recipe: the recipe, or its file.
        said: the arguments of ``verb`` beside it; None as the preset says nothing.

    Raises:
        UsageError: something is said that contradicts the recipe.
        ModelError: the file is no recipe.
    """
    if not isinstance(said["model"], ir.Model) and os.path.isdir(said["model"]):
        raise UsageError("a recipe is of one model, not of a folder", where=os.fspath(said["model"]))
    made = recipe if isinstance(recipe, Recipe) else Recipe.read(recipe)
    warn = said.get("warn") or (lambda text: None)
    arguments = laid_under(verb, made, said)
    used = arguments["preset"] if isinstance(arguments["preset"], Preset) else load_preset(arguments["preset"])
    if made.preset_sha256 and used.sha256 != made.preset_sha256:
        warn(f"the recipe is of another version of the preset {used.name}: the result differs from what was searched")
    if made.model_sha256 and model_sha256(opened(said["model"])[0]) != made.model_sha256:
        warn("the recipe is of another model: what it reached there says nothing here")
    done = verb(**arguments)
    if made.ranges_sha256 and done.quantization.ranges.sha256 != made.ranges_sha256:
        warn(
            "the ranges are not those of the recipe (other data, or another method): the bytes differ from what was searched"
        )
    return done
