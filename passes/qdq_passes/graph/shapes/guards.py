"""Shape functions of onnx that end the process on what a file may say, kept from it: they infer nothing then.

onnx 1.23 aborts, by an assertion of its standard library, on a Slice of a negative size (a Pad of negative pads makes one), and
on a Split into more values than ``num_outputs`` says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import cache
from typing import Any

from onnx import defs
from onnx.shape_inference import InferenceError

from qdq_passes._lazy_dataclass import dataclass

#: Of what a context holds, what is wrong with it, in words; nothing: all is well.
Guard = Callable[[Any], str]
#: Held while onnx's schemas are not its own.
LOCK = threading.RLock()


@dataclass
class _Body:
    """Of the body that runs: whether errors of functions behind guards are raised, and what was kept from onnx."""

    is_strict: bool = False
    kept: list[tuple[str, str]] = field(default_factory=list)


_body = _Body()


def _slice(context: Any) -> str:
    kind = context.get_input_type(0)
    is_bad = kind is not None and any(dim.dim_value < 0 for dim in kind.tensor_type.shape.dim)
    return "reads a tensor that comes out with a size below zero" if is_bad else ""


def _split(context: Any) -> str:
    given, outputs = context.get_attribute("num_outputs"), context.get_num_outputs()
    return f"has {outputs} outputs, and num_outputs is {given.i}" if given is not None and given.i < outputs else ""


def _reads_unknown(context: Any) -> bool:
    """Whether nothing is known of an input: what an operator gave that onnx does not know, behind which it finds no errors."""
    indices = range(context.get_num_inputs())
    return any(context.has_input(index) and context.get_input_type(index) is None for index in indices)


#: Operators whose functions must not see what a context holds where their guard says a word.
GUARDS: dict[str, Guard] = {"Slice": _slice, "Split": _split}


@cache
def guarded(op_type: str, since: int) -> defs.OpSchema:
    """The schema of the operator, of the version that began with opset ``since``, with its function behind its guard."""
    schema, guard = defs.get_schema(op_type, since), GUARDS[op_type]
    infer = schema.get_type_and_shape_inference_function()

    def infer_guarded(context: Any) -> None:
        if reason := guard(context):
            _body.kept.append((context.get_display_name(), reason))
            return
        try:
            infer(context)
        except InferenceError:  # ends the inference of the whole model, as onnx lets nothing through that Python raises
            if _body.is_strict and not _reads_unknown(context):
                raise

    schema.set_type_and_shape_inference_function(infer_guarded)
    return schema


def guarded_schema(schema: defs.OpSchema) -> defs.OpSchema:
    """``schema``, or what stands for it behind a guard."""
    return guarded(schema.name, schema.since_version) if not schema.domain and schema.name in GUARDS else schema


@contextmanager
def guarding(operators: Iterable[str], *, strict: bool = False) -> Iterator[list[tuple[str, str]]]:
    """Let onnx infer those of ``operators`` (of its own domain) that need a guard behind it, for the time of the body; what was
    kept from it is in the list. What else onnx finds wrong with them is raised if ``strict``, as by its own strict mode. One body
    at a time runs in a process."""
    with LOCK, ExitStack() as stack:
        stack.callback(vars(_body).update, vars(_body).copy())
        _body.is_strict, _body.kept = strict, []
        kept = _body.kept
        for op_type in GUARDS.keys() & set(operators):
            most = defs.onnx_opset_version()
            while defs.has(op_type, most):
                original = defs.get_schema(op_type, most)
                _replace(original, guarded(op_type, original.since_version))
                stack.callback(_replace, original, original)
                most = original.since_version - 1
        yield kept


def _replace(known: defs.OpSchema, schema: defs.OpSchema) -> None:
    defs.deregister_schema(known.name, known.since_version, known.domain)
    defs.register_schema(schema)
