"""``--annotate module:function``: a function of the user's own that says what encodings single tensors get.

It is called with the prepared model, before anything is observed, and returns ``{tensor name: {key: value}}`` with the keys of an
override of `annotate-encodings` (axis, dtype, high, low, reduced, scale, symmetric, zero_point):

    def annotate(model):                      # an onnx_ir.Model; changes to it are not kept
        return {node.outputs[0].name: {"dtype": "uint16"} for node in model.graph if node.op_type == "Softmax"}

What it returns becomes part of the pipeline's text, so that the printed pipeline replays without the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from qdq_passes.clean.convert_opset import ConvertOpset
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.operators.qdq_ops import FIRST_OPSET
from qdq_passes.numerics.override import Override, format_overrides, parse_overrides
from qdq_passes.pipeline.pipeline import Pipeline

from qdqtool.foreign.values import to_type
from qdqtool.io.files.python_objects import import_object

#: What the user writes, a name or the function itself.
Annotator: TypeAlias = "str | Callable[[ir.Model], Mapping[str, Mapping[str, object]]]"


def annotated(materialise: Pipeline, model: ir.Model, annotators: tuple[Annotator, ...]) -> Pipeline:
    """``materialise`` with what ``annotators`` say of the prepared ``model`` laid over its overrides, key by key, in their order.

    Args:
        materialise: a pipeline that chooses encodings.
        model: stays as it is.
        annotators: ``module:function`` or functions; each gets a copy of the model.

    Raises:
        UsageError: a function cannot be imported, fails, or returns something else; it names a tensor that there is not.
    """
    for annotator in annotators:
        own = getattr(annotator, "option", None)
        where = own or f"--annotate {annotator if isinstance(annotator, str) else _name(annotator)}"
        function = import_object(annotator, where=where) if isinstance(annotator, str) else annotator
        said = _said(function, copy_model(model), where)
        materialise = Pipeline(
            tuple(
                _overridden(p, model, said, where) if isinstance(p, AnnotateEncodings) else p
                for p in materialise.passes
            )
        )
    return materialise


def _said(function: object, model: ir.Model, where: str) -> dict[str, dict[str, object]]:
    if not callable(function):
        raise UsageError(f"is {type(function).__name__}, no function", where=where)
    try:
        returned = function(model)
    except QdqError:
        raise
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"calling it fails: {type(error).__name__}: {said}", where=where) from error
    fits = isinstance(returned, Mapping) and all(
        isinstance(name, str) and isinstance(entry, Mapping) for name, entry in returned.items()
    )
    if not fits:
        shown = " ".join(repr(returned).split())[:60]
        raise UsageError(
            f"it returns {type(returned).__name__} {shown}", where=where, hint='return {"tensor": {"dtype": "uint16"}}'
        )
    return {
        name: {key: _type(value) if key == "dtype" else _plain(value) for key, value in entry.items()}
        for name, entry in returned.items()
    }


def _overridden(
    policy: AnnotateEncodings, model: ir.Model, said: Mapping[str, Mapping[str, object]], where: str
) -> AnnotateEncodings:
    """``policy`` with the overrides ``said``, tried on ``model``."""
    overrides = parse_overrides(policy.overrides)
    for name, entry in said.items():
        before = overrides[name].to_json() if name in overrides else {}
        try:
            overrides[name] = Override.from_json({**before, **entry})
        except UsageError as error:
            raise UsageError(f"{name}: {error.message}", where=where, hint=error.hint) from error
    found = replace(policy, overrides=format_overrides(overrides))
    try:
        found.policy(model)
    except UsageError as error:
        error.where = error.where or where
        raise
    return found


def opset_of_overrides(policy: AnnotateEncodings, model: ir.Model) -> ConvertOpset | None:
    """The conversion to an opset whose QuantizeLinear takes the types that overrides ask for; None where ``model`` has one."""
    asked = [override.dtype for override in parse_overrides(policy.overrides).values()]
    needed = max((FIRST_OPSET.get(dtype, 0) for dtype in asked if dtype is not None), default=0)
    is_old = policy.domain == "onnx" and model.opset_imports.get("", needed) < needed
    return ConvertOpset(version=needed, at_least=True) if is_old else None


def _type(value: object) -> object:
    """The name of a storage type, however Python spells it: a type of numpy, a number of onnx, a QuantType of onnxruntime."""
    if isinstance(value, Enum) and not isinstance(value, ir.DataType):
        return to_type("dtype", value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if type(value) is int and value in set(ir.DataType):
        return ir.DataType(value).name.lower()
    return value.name.lower() if isinstance(value, ir.DataType) else value


def _plain(value: object) -> object:
    """Arrays and numbers of numpy as the JSON of an override has them."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
