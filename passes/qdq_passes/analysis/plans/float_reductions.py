"""Plans in floating point of reductions, softmax, normalizations and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes.analysis.plans.float_elementwise import type_of
from qdq_passes.analysis.plans.float_steps import Attributes, Constant, Source, Steps, constant_of
from qdq_passes.analysis.plans.operands import NotComputable, no_other_output
from qdq_passes.analysis.plans.softmax import softmax_axis
from qdq_passes.analysis.plans.windows import window_of
from qdq_passes.graph.uses import float_of, integer_of, integers_of
from qdq_passes.npu.formulas.floats import batch_norm_factors

Handler = Callable[[Steps, ir.Node], list[Source]]


def _reduction(word: str) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        if steps.has(node, 1):
            given = constant_of(node, 1)
            if given is None:
                raise NotComputable("the axes that it reduces are computed")
            axes = [int(axis) for axis in given.ravel()]
        else:
            axes = integers_of(node, "axes")
        if not axes and integer_of(node, "noop_with_empty_axes", 0):
            raise NotComputable("reduces no axis")
        attributes: dict[str, Any] = {"function": word, "keepdims": integer_of(node, "keepdims", 1)}
        if axes:
            rank = steps.rank(node)
            if not all(-rank <= axis < rank for axis in axes):
                raise NotComputable(f"reduces the axes {axes} of {rank}")
            attributes["axes"] = sorted({axis % rank for axis in axes})
        sizes = steps.shape(node, 0) or []
        if 0 in (sizes[axis] for axis in attributes.get("axes", range(len(sizes)))):
            raise NotComputable("reduces an axis without elements")
        return [
            steps.step(
                "FloatReduce", steps.read(node, 0), dtype=type_of(node), attributes=attributes, like=node.outputs[0]
            )
        ]

    return handler


def _global(word: str) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        axes = list(range(2, steps.rank(node)))
        if not axes:
            raise NotComputable("has no axes behind [N, C]")
        attributes: Attributes = {"function": word, "keepdims": 1, "axes": axes}
        return [
            steps.step(
                "FloatReduce", steps.read(node, 0), dtype=type_of(node), attributes=attributes, like=node.outputs[0]
            )
        ]

    return handler


def _pool(word: str) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        no_other_output(node)
        window = window_of(node, integers_of(node, "kernel_shape"), steps.operand(node, 0))
        if min(window.pads) < 0:
            raise NotComputable("takes elements away by negative pads")
        attributes: dict[str, Any] = {
            "function": word, "kernel_shape": window.kernel, "strides": window.strides, "pads": window.pads,
            "dilations": window.dilations, "ceil_mode": integer_of(node, "ceil_mode", 0),
        }  # fmt: skip
        if word == "Mean":
            attributes["count_include_pad"] = integer_of(node, "count_include_pad", 0)
        return [
            steps.step(
                "FloatPool", steps.read(node, 0), dtype=type_of(node), attributes=attributes, like=node.outputs[0]
            )
        ]

    return handler


def _softmax(steps: Steps, node: ir.Node) -> list[Source]:
    axis = softmax_axis(node, lambda: steps.rank(node))
    return [
        steps.step(
            "FloatSoftmax", steps.read(node, 0), dtype=type_of(node), attributes={"axis": axis}, like=node.outputs[0]
        )
    ]


def _layer_norm(*, centered: bool) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        no_other_output(node)
        axis, shape = integer_of(node, "axis", -1), steps.shape(node, 0)
        inputs: list[Source] = [steps.read(node, 0)]
        for index in (1, 2):
            if steps.has(node, index):
                inputs.append(_parameter(steps, node, index, None if shape is None else shape[axis:]))
        attributes = {"axis": axis, "center": int(centered), "epsilon": float_of(node, "epsilon", 1e-5)}
        return [steps.step("FloatNorm", *inputs, dtype=type_of(node), attributes=attributes, like=node.outputs[0])]

    return handler


def _parameter(steps: Steps, node: ir.Node, index: int, shape: list[int | None] | None) -> Source:
    """A scale or bias with an entry per element of a group."""
    known = [] if shape is None else [size for size in shape if size is not None]
    whole = shape is not None and len(known) == len(shape)
    source = steps.read(node, index, (lambda array: np.broadcast_to(array, known)) if whole else lambda array: array)
    own = steps.shape(node, index)
    if not (whole and isinstance(source, Constant)) and (
        own is None or shape is None or len(own) != len(shape) or 1 in own
    ):
        raise NotComputable("its scale or bias may differ in shape from what it normalizes; run infer-shapes first")
    return source


def _skip_norm(*, centered: bool) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        no_other_output(node, 0, 3)
        dtype, bias = type_of(node), 4 if centered else 3
        total: Source = steps.read(node, 0)
        for index in (1, bias):
            if steps.has(node, index):
                attributes: dict[str, Any] = {"function": "Add"}
                total = steps.step(
                    "FloatElementwise",
                    total,
                    steps.read(node, index),
                    dtype=dtype,
                    attributes=attributes,
                    like=node.outputs[0],
                )
        inputs = [total, steps.read(node, 2)]
        if centered and steps.has(node, 3):
            inputs.append(steps.read(node, 3))
        attributes = {"axis": -1, "center": int(centered), "epsilon": float_of(node, "epsilon", 1e-12)}
        found = steps.step("FloatNorm", *inputs, dtype=dtype, attributes=attributes, like=node.outputs[0])
        return [found, None, None, total][: len(node.outputs)]

    return handler


def _group_norm(steps: Steps, node: ir.Node) -> list[Source]:
    groups = 0 if node.op_type == "InstanceNormalization" else integer_of(node, "num_groups", 1)
    inputs = [steps.read(node, index) for index in range(3)]
    attributes = {"num_groups": groups, "center": 1, "epsilon": float_of(node, "epsilon", 1e-5)}
    return [steps.step("FloatNorm", *inputs, dtype=type_of(node), attributes=attributes, like=node.outputs[0])]


def _batch_norm(steps: Steps, node: ir.Node) -> list[Source]:
    """Times a, plus b: two steps."""
    no_other_output(node)
    if integer_of(node, "training_mode", 0):
        raise NotComputable("is in training mode")
    known = [constant_of(node, index) for index in range(1, 5)]
    laid, dtype = [-1, *[1] * (steps.rank(node) - 2)], type_of(node)
    if any(array is None for array in known):
        raise NotComputable("its parameters are computed")
    numbers = [np.asarray(array, np.float32) for array in known]
    found: Source = steps.read(node, 0)
    for place, (what, word) in enumerate((("factor", "Mul"), ("offset", "Add"))):
        pair = batch_norm_factors(numbers[0], numbers[1], numbers[2], numbers[3], float_of(node, "epsilon", 1e-5))
        array = pair[place].reshape(laid)
        made = Constant(what, lambda array=array: array, ir.DataType.FLOAT)  # type: ignore[misc]
        found = steps.step(
            "FloatElementwise", found, made, dtype=dtype, attributes={"function": word}, like=node.outputs[0]
        )
    return [found]


def _lp_norm(steps: Steps, node: ir.Node) -> list[Source]:
    x, dtype = steps.read(node, 0), type_of(node)
    axis, word = integer_of(node, "axis", -1), "L2" if integer_of(node, "p", 2) == 2 else "L1"
    norm = steps.step("FloatReduce", x, dtype=dtype, attributes={"function": word, "axes": [axis], "keepdims": 1})
    return [
        steps.step("FloatElementwise", x, norm, dtype=dtype, attributes={"function": "DivOrZero"}, like=node.outputs[0])
    ]


#: Reductions, normalizations, pools.
REDUCTIONS: Mapping[tuple[str, str], Handler] = {
    **{("", f"Reduce{word}"): _reduction(word) for word in ("Sum", "Mean", "Max", "Min", "SumSquare", "L1", "L2")},
    ("", "GlobalAveragePool"): _global("Mean"),
    ("", "GlobalMaxPool"): _global("Max"),
    ("", "AveragePool"): _pool("Mean"),
    ("", "MaxPool"): _pool("Max"),
    ("", "Softmax"): _softmax,
    ("", "LayerNormalization"): _layer_norm(centered=True),
    ("", "RMSNormalization"): _layer_norm(centered=False),
    ("", "SimplifiedLayerNormalization"): _layer_norm(centered=False),
    ("com.microsoft", "SkipLayerNormalization"): _skip_norm(centered=True),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_norm(centered=False),
    ("", "InstanceNormalization"): _group_norm,
    ("", "GroupNormalization"): _group_norm,
    ("", "BatchNormalization"): _batch_norm,
    ("", "LpNormalization"): _lp_norm,
}
