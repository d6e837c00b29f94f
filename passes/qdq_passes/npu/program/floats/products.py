"""Plans in floating point of sums of products: MatMul, Gemm, Conv, ConvTranspose."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.graph.uses import float_of, integer_of, integers_of
from qdq_passes.npu.program.floats.steps import Constant, Handler, Handlers, Source, Steps, type_of
from qdq_passes.npu.program.operands import sizes_of
from qdq_passes.npu.program.operator import AttributeTypes, Row, floating
from qdq_passes.npu.program.windows import window_of


def _matmul(steps: Steps, node: ir.Node) -> list[Source]:
    return steps.write(node, "FloatMatMul", steps.read(node, 0), steps.read(node, 1, what="weight"))


def _gemm(steps: Steps, node: ir.Node) -> list[Source]:
    inputs = [_turned(steps, node, index, name) for index, name in ((0, "transA"), (1, "transB"))]
    if steps.has(node, 2):
        inputs.append(steps.read(node, 2, what="bias"))
    factors = {name: float_of(node, name, 1.0) for name in ("alpha", "beta")}
    return steps.write(node, "FloatMatMul", *inputs, **factors)


def _turned(steps: Steps, node: ir.Node, index: int, attribute: str) -> Source:
    """An operand of a Gemm, transposed where it says so: a constant at once."""
    if not integer_of(node, attribute, 0):
        return steps.read(node, index)
    source = steps.read(node, index, lambda array: array.T)
    if isinstance(source, Constant):
        return source
    return steps.move("Transpose", source, dtype=type_of(node, index), attributes={"perm": (1, 0)})[0]


def _convolution(row: Row) -> Handler:
    def handler(steps: Steps, node: ir.Node) -> list[Source]:
        x, w = steps.operand(node, 0), steps.operand(node, 1)
        kernel = integers_of(node, "kernel_shape") or sizes_of(w, range(2, steps.rank(node, 1)))
        window = window_of(node, kernel, x)
        known = {**window.attributes(), "group": window.group, "output_padding": window.output_padding}
        inputs = [steps.read(node, 0), steps.read(node, 1, what="weight")]
        if steps.has(node, 2):
            inputs.append(steps.read(node, 2, what="bias"))
        return steps.write(node, row.name, *inputs, **{name: known[name] for name in row.attributes})

    return handler


_WINDOW: AttributeTypes = {"kernel_shape": list, "strides": list, "pads": list, "dilations": list, "group": int}
ROWS = (
    floating("FloatMatMul", (2, 3), alpha=float, beta=float),
    floating("FloatConv", (2, 3), **_WINDOW),
    floating("FloatConvTranspose", (2, 3), **_WINDOW, output_padding=list),
)
#: Sums of products.
PRODUCTS: Handlers = {
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Conv"): _convolution(ROWS[1]),
    ("", "ConvTranspose"): _convolution(ROWS[2]),
}
