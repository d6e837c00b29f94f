"""Plans in floating point of sums of products: MatMul, Gemm, Conv, ConvTranspose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from qdq_passes.analysis.plans.float_elementwise import type_of
from qdq_passes.analysis.plans.float_steps import Constant, Source, Steps
from qdq_passes.analysis.plans.operands import NotComputable, sizes_of
from qdq_passes.analysis.plans.windows import window_of
from qdq_passes.graph.uses import float_of, integer_of, integers_of

Handler = Callable[[Steps, ir.Node], list[Source]]


def _matmul(steps: Steps, node: ir.Node) -> list[Source]:
    return [
        steps.step(
            "FloatMatMul",
            steps.read(node, 0),
            steps.read(node, 1, what="weight"),
            dtype=type_of(node),
            like=node.outputs[0],
        )
    ]


def _gemm(steps: Steps, node: ir.Node) -> list[Source]:
    inputs = [_turned(steps, node, index, name) for index, name in ((0, "transA"), (1, "transB"))]
    if steps.has(node, 2):
        inputs.append(steps.read(node, 2, what="bias"))
    factors = {name: float_of(node, name, 1.0) for name in ("alpha", "beta")}
    return [steps.step("FloatMatMul", *inputs, dtype=type_of(node), attributes=factors, like=node.outputs[0])]


def _turned(steps: Steps, node: ir.Node, index: int, attribute: str) -> Source:
    """An operand of a Gemm, transposed where it says so: a constant at once."""
    if not integer_of(node, attribute, 0):
        return steps.read(node, index)
    source = steps.read(node, index, lambda array: array.T)
    if isinstance(source, Constant):
        return source
    return steps.move("Transpose", source, dtype=type_of(node, index), attributes=[ir.AttrInt64s("perm", [1, 0])])[0]


def _convolution(steps: Steps, node: ir.Node) -> list[Source]:
    x, w = steps.operand(node, 0), steps.operand(node, 1)
    kernel = integers_of(node, "kernel_shape") or sizes_of(w, range(2, steps.rank(node, 1)))
    window = window_of(node, kernel, x)
    if min(window.pads) < 0:
        raise NotComputable("takes elements away by negative pads")
    attributes: dict[str, Any] = {
        "kernel_shape": window.kernel, "strides": window.strides, "pads": window.pads, "dilations": window.dilations,
        "group": window.group,
    }  # fmt: skip
    if node.op_type == "ConvTranspose":
        attributes["output_padding"] = window.output_padding
    inputs = [steps.read(node, 0), steps.read(node, 1, what="weight")]
    if steps.has(node, 2):
        inputs.append(steps.read(node, 2, what="bias"))
    return [
        steps.step(f"Float{node.op_type}", *inputs, dtype=type_of(node), attributes=attributes, like=node.outputs[0])
    ]


#: Sums of products.
PRODUCTS: Mapping[tuple[str, str], Handler] = {
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Conv"): _convolution,
    ("", "ConvTranspose"): _convolution,
}
