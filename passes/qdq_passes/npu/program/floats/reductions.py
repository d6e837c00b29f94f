"""Plans in floating point of reductions, softmax, normalizations and pools."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.uses import float_of, integer_of, integers_of
from qdq_passes.npu.formulas.floats import batch_norm_factors
from qdq_passes.npu.program.floats.steps import Constant, Handler, Handlers, Source, Steps, constant_of, type_of
from qdq_passes.npu.program.operands import NotComputable, no_other_output
from qdq_passes.npu.program.operator import floating
from qdq_passes.npu.program.softmax import softmax_axis
from qdq_passes.npu.program.windows import window_of


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
        return steps.write(node, "FloatReduce", steps.read(node, 0), **attributes)

    return handler


def _global(word: str) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        axes = list(range(2, steps.rank(node)))
        if not axes:
            raise NotComputable("has no axes behind [N, C]")
        return steps.write(node, "FloatReduce", steps.read(node, 0), function=word, keepdims=1, axes=axes)

    return handler


def _pool(word: str) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        no_other_output(node)
        window = window_of(node, integers_of(node, "kernel_shape"), steps.operand(node, 0))
        attributes = {"function": word, **window.attributes(), "ceil_mode": integer_of(node, "ceil_mode", 0)}
        if word == "Mean":
            attributes["count_include_pad"] = integer_of(node, "count_include_pad", 0)
        return steps.write(node, "FloatPool", steps.read(node, 0), **attributes)

    return handler


def _softmax(steps: Steps, node: ir.Node) -> list[Source]:
    axis = softmax_axis(node, lambda: steps.rank(node))
    return steps.write(node, "FloatSoftmax", steps.read(node, 0), axis=axis)


def _layer_norm(*, centered: bool) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        no_other_output(node)
        axis, shape = integer_of(node, "axis", -1), steps.shape(node, 0)
        inputs: list[Source] = [steps.read(node, 0)]
        for index in (1, 2):
            if steps.has(node, index):
                inputs.append(_parameter(steps, node, index, None if shape is None else shape[axis:]))
        epsilon = float_of(node, "epsilon", 1e-5)
        return steps.write(node, "FloatNorm", *inputs, axis=axis, center=int(centered), epsilon=epsilon)

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
        type_of(node)  # which may be none that kernels know
        bias = 4 if centered else 3
        total: Source = steps.read(node, 0)
        for index in (1, bias):
            if steps.has(node, index):
                total = steps.write(node, "FloatElementwise", total, steps.read(node, index), function="Add")[0]
        inputs = [total, steps.read(node, 2)]
        if centered and steps.has(node, 3):
            inputs.append(steps.read(node, 3))
        epsilon = float_of(node, "epsilon", 1e-12)
        found = steps.write(node, "FloatNorm", *inputs, axis=-1, center=int(centered), epsilon=epsilon)
        return [*found, None, None, total][: len(node.outputs)]

    return handler


def _group_norm(steps: Steps, node: ir.Node) -> list[Source]:
    groups = 0 if node.op_type == "InstanceNormalization" else integer_of(node, "num_groups", 1)
    inputs = [steps.read(node, index) for index in range(3)]
    epsilon = float_of(node, "epsilon", 1e-5)
    return steps.write(node, "FloatNorm", *inputs, num_groups=groups, center=1, epsilon=epsilon)


def _batch_norm(steps: Steps, node: ir.Node) -> list[Source]:
    """Times a, plus b: two steps."""
    no_other_output(node)
    if integer_of(node, "training_mode", 0):
        raise NotComputable("is in training mode")
    known = [constant_of(node, index) for index in range(1, 5)]
    laid = [-1, *[1] * (steps.rank(node) - 2)]
    type_of(node)  # which may be none that kernels know
    if any(array is None for array in known):
        raise NotComputable("its parameters are computed")
    numbers = [np.asarray(array, np.float32) for array in known]
    found: Source = steps.read(node, 0)
    for place, (what, word) in enumerate((("factor", "Mul"), ("offset", "Add"))):
        pair = batch_norm_factors(numbers[0], numbers[1], numbers[2], numbers[3], float_of(node, "epsilon", 1e-5))
        array = pair[place].reshape(laid)
        made = Constant(what, lambda array=array: array, ir.DataType.FLOAT)  # type: ignore[misc]
        found = steps.write(node, "FloatElementwise", found, made, function=word)[0]
    return [found]


def _lp_norm(steps: Steps, node: ir.Node) -> list[Source]:
    x, dtype = steps.read(node, 0), type_of(node)
    axis, word = integer_of(node, "axis", -1), "L2" if integer_of(node, "p", 2) == 2 else "L1"
    norm = steps.step("FloatReduce", x, dtype=dtype, attributes={"function": word, "axes": [axis], "keepdims": 1})
    return steps.write(node, "FloatElementwise", x, norm, function="DivOrZero")


ROWS = (
    floating("FloatReduce", (1, 1), function=str, axes=list, keepdims=int),
    floating("FloatSoftmax", (1, 1), axis=int),
    floating("FloatNorm", (1, 3), axis=int, num_groups=int, center=int, epsilon=float),
    floating(
        "FloatPool", (1, 1), kernel_shape=list, strides=list, pads=list, dilations=list, group=int, function=str, ceil_mode=int,
        count_include_pad=int,
    ),
)  # fmt: skip
#: Reductions, normalizations, pools.
REDUCTIONS: Handlers = {
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
