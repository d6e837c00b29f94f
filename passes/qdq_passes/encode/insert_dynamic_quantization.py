"""insert-dynamic-quantization"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, insert_after, make_node, new_constant
from qdq_passes.graph.operators.kinds import CONTROL_INPUTS
from qdq_passes.graph.operators.qdq_ops import OPSET_OF_BFLOAT16, has_pair, is_dequantize, opset_at
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import FLOAT_TYPES, all_values, dtype_of, input_at, is_constant, is_standard, readers
from qdq_passes.integers.edit.flow import OPSET_OF_DYNAMIC, dynamic_pair
from qdq_passes.integers.look.dynamic_quantization import dynamic_groups
from qdq_passes.select.selectors import ALL, Selector, is_weight_of, select_values

#: Operators whose first input is quantized while they run.
LINEAR = ("Conv", "Gemm", "MatMul")
#: Largest int8 of a symmetric grid.
QMAX = 127
#: Smallest normal number 2^e of a type.
SMALLEST_NORMAL = {
    ir.DataType.FLOAT: -126, ir.DataType.FLOAT16: -14, ir.DataType.BFLOAT16: -126, ir.DataType.DOUBLE: -1022,
}  # fmt: skip
#: First opset whose ReduceMax has its axes as an input.
OPSET_OF_AXES_INPUT = 18

Use = tuple[ir.Node, int]


@dataclass(frozen=True)
class InsertDynamicQuantization(Pass):
    """Quantize activations with a scale that is computed from them while the model runs.

    Per tensor: s = (max(x, 0) − min(x, 0)) / 255, uint8. Per token: s = max(max|x| / 127, ε) over the last axis, one s per index
    of all other axes, y = clip(round(x / s), −127, 127)·s; ε is the smallest normal number of the type: a row of zeros stays one.

    Graph: ``x → MatMul`` → ``x → DynamicQuantizeLinear → DequantizeLinear → MatMul``; per token
    ``x → Abs → ReduceMax → Div(127) → Max(ε) = s``, ``x → Div(s) → Round → Clip → Mul(s) → MatMul``: standard operators, as no
    QuantizeLinear takes such scales.
    Requires: opset 11.
    Keeps: names of inputs and outputs, graph outputs and other readers of x; the numbers are quantized.
    Skips: values that are quantized already; per tensor, types other than float32, and what a MatMul multiplies by a weight of
    more than two axes with many scales (onnxruntime fails there); per token, values without a last axis, readers that sum over
    another axis than the last one (Conv, Gemm with transA), and bfloat16 below opset 22, where Round does not take it.

    Args:
        select: the activations; all by default.
        granularity: ``per-tensor`` or ``per-token``.
        readers: who reads the quantized values: ``linear``, Conv, Gemm and MatMul with a stored weight by their first input, or
            ``all``.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="activations are rounded to the grid of their own range")
    select: Selector = ALL
    granularity: Literal["per-tensor", "per-token"] = "per-tensor"
    readers: Literal["linear", "all"] = "linear"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Insert in the order of the graph."""
        selected, namer = select_values(model, self.select), Namer(model)
        groups = dynamic_groups(model)
        outputs, inside = {group.output for group in groups}, {node for group in groups for node in group.nodes}
        constants = _Constants(model, namer)
        for value in all_values(model):
            if value not in selected or is_constant(value):
                continue
            uses = [use for use in readers(value) if use[0] not in inside and self._takes(use)]
            reason = "is quantized already" if value in outputs or has_pair(value) else self._why_not(value, uses)
            if reason is not None:
                if uses or not self.select.is_all:
                    yield skip(value, reason)
                continue
            opset = opset_at(model, uses[0][0])
            if dtype_of(value) == ir.DataType.BFLOAT16 and opset < OPSET_OF_BFLOAT16:
                yield skip(
                    value, f"is bfloat16, which Round takes from opset {OPSET_OF_BFLOAT16} on; the model has {opset}"
                )
                continue
            if opset < OPSET_OF_DYNAMIC:
                raise UnsupportedError(
                    f"dynamic quantization needs opset {OPSET_OF_DYNAMIC}, the model has {opset}",
                    where=value.name,
                    hint=f"run convert-opset{{version={OPSET_OF_DYNAMIC}}} first",
                )
            near = [producer] if (producer := value.producer()) is not None else [uses[0][0]]
            per_tensor = self.granularity == "per-tensor"
            nodes = dynamic_pair(value, namer, near) if per_tensor else _per_token(value, near, opset, constants)
            insert_after(model, value, nodes)
            for node, index in uses:
                node.replace_input_with(index, nodes[-1].outputs[0])
            yield Change("insert", value.name or "", f"{nodes[0].name} … {nodes[-1].name}, {self.granularity}")

    def _takes(self, use: Use) -> bool:
        """Whether this reader is to read the quantized values. Bounds, sizes and the like are no activations."""
        node, index = use
        if self.readers == "all":
            return index not in CONTROL_INPUTS.get(node.op_type, set())
        weight = input_at(node, 1)
        return index == 0 and is_standard(node, *LINEAR) and weight is not None and is_weight_of(weight)

    def _why_not(self, value: ir.Value, uses: list[Use]) -> str | None:
        """Why ``value`` is not quantized for ``uses``, in words."""
        dtype, shape = dtype_of(value), static_sizes(value)
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return "is no tensor"
        if not uses:
            linear = self.readers == "linear"
            return "no Conv, Gemm or MatMul with a stored weight reads it first" if linear else "no node reads it"
        if dtype is None:
            return "its type is not known; run infer-shapes first"
        if dtype not in FLOAT_TYPES:
            return f"is {dtype.name.lower()}"
        if shape is not None and 0 in shape:
            return "is empty"
        if self.granularity == "per-token":
            return _why_not_per_token(value, uses, is_linear=self.readers == "linear")
        if dtype != ir.DataType.FLOAT:
            return f"is {dtype.name.lower()}, DynamicQuantizeLinear takes float32; use granularity=per-token"
        return _why_not_per_tensor(uses)


def _why_not_per_tensor(uses: list[Use]) -> str | None:
    """Why the readers of a value that is quantized per tensor cannot run.

    Source of the rule: onnxruntime makes DynamicQuantizeMatMul of such a MatMul and then ends in an error (1.31)."""
    for node, _ in uses:
        weight = input_at(node, 1)
        pair = weight.producer() if weight is not None and is_standard(node, "MatMul") else None
        if pair is None or not is_dequantize(pair) or pair.inputs[1] is None:
            continue
        shape, scale = static_sizes(pair.inputs[0]), static_sizes(pair.inputs[1])
        if shape is not None and scale is not None and len(shape) > 2 and math.prod(scale) > 1:
            return "its MatMul has a weight of more than two axes with many scales, at which onnxruntime fails"
    return None


def _why_not_per_token(value: ir.Value, uses: list[Use], *, is_linear: bool) -> str | None:
    """Why no scale per index of all axes but the last can stand on ``value``."""
    for node, _ in uses:
        transposed = node.attributes.get("transA") if is_standard(node, "Gemm") else None
        if is_standard(node, "Conv") or (transposed is not None and transposed.as_int()):
            return "is read by an operator that sums over another axis than the last one"
    if value.shape is None:
        return None if is_linear else "its rank is not known; run infer-shapes first"
    return "has no last axis" if len(value.shape) == 0 else None


class _Constants:
    """The constants of per-token groups, made once per graph and type in one run."""

    def __init__(self, model: ir.Model, namer: Namer) -> None:
        self.model, self.namer = model, namer
        self._made: dict[tuple[ir.Graph, str, ir.DataType], ir.Value] = {}

    def get(self, graph: ir.Graph | None, what: str, dtype: ir.DataType, near: list[ir.Node]) -> ir.Value:
        """``"qmax"``, ``"qmin"``, ``"epsilon"`` or ``"axes"`` in ``graph``."""
        home = self.model.graph if graph is None else graph
        if (home, what, dtype) not in self._made:
            numbers = {"qmax": QMAX, "qmin": -QMAX, "epsilon": 2.0 ** SMALLEST_NORMAL[dtype], "axes": [-1]}
            data = np.array(numbers[what], np.int64 if what == "axes" else dtype.numpy())
            self._made[home, what, dtype] = new_constant(home, self.namer, f"per_token_{what}", data, near)
        return self._made[home, what, dtype]


def _per_token(value: ir.Value, near: list[ir.Node], opset: int, constants: _Constants) -> list[ir.Node]:
    """The nodes of a per-token group on ``value``, not yet in a graph; the last one writes the quantized values."""
    dtype, base, namer = dtype_of(value) or ir.DataType.FLOAT, value.name or "value", constants.namer
    columns = None if value.shape is None else ir.Shape([*value.shape[:-1], 1])

    def constant(what: str) -> ir.Value:
        return constants.get(value.graph, what, dtype, near)

    def step(
        op_type: str, what: str, *inputs: ir.Value, attributes: tuple[ir.Attr, ...] = (), column: bool = False
    ) -> ir.Value:
        node = make_node(
            op_type, inputs, name=namer.fresh(f"{base}_{what}"), output=namer.fresh(f"{base}_{what}_output"), like=value,
            attributes=attributes, stands_for=near, dtype=dtype,
        )  # fmt: skip
        if column:
            node.outputs[0].shape = columns.copy() if columns is not None else None
        nodes.append(node)
        return node.outputs[0]

    nodes: list[ir.Node] = []
    keep = ir.AttrInt64("keepdims", 1)
    magnitude = step("Abs", "per_token_Abs", value)
    if opset >= OPSET_OF_AXES_INPUT:
        largest = step("ReduceMax", "per_token_ReduceMax", magnitude, constant("axes"), attributes=(keep,), column=True)
    else:
        axes = ir.AttrInt64s("axes", [-1])
        largest = step("ReduceMax", "per_token_ReduceMax", magnitude, attributes=(axes, keep), column=True)
    scale = step("Div", "per_token_step", largest, constant("qmax"), column=True)
    scale = step("Max", "per_token_scale", scale, constant("epsilon"), column=True)
    rounded = step("Round", "per_token_Round", step("Div", "per_token_Div", value, scale))
    step("Mul", "per_token_Mul", step("Clip", "per_token_Clip", rounded, constant("qmin"), constant("qmax")), scale)
    return nodes
