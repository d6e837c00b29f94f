"""Activations whose scale is computed from themselves: DynamicQuantizeLinear with its DequantizeLinear, and the same spelt out in
standard operators: y = (clip(round(x / s) + z) − z)·s with s and z made of x, per token with one s per index of all axes but the
last.

Recognised by structure, whoever wrote the nodes and whatever they are called."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_dynamic_quantize, is_quantize
from qdq_passes.graph.sizes import rank_of
from qdq_passes.graph.uses import all_nodes, constant_array, is_constant, is_standard

#: What a scale or zero point may be computed with.
_ARITHMETIC = frozenset(
    {"Abs", "Add", "Cast", "Clip", "Div", "Identity", "Max", "Min", "Mul", "Neg", "Reciprocal", "ReduceMax", "ReduceMin",
     "Round", "Sub"}
)  # fmt: skip
_REDUCTIONS = frozenset({"ReduceMax", "ReduceMin"})

Spread = Literal["per-tensor", "per-token", "per-axis"]


@dataclass(frozen=True, eq=False)
class DynamicGroup:
    """The nodes that quantize an activation by its own range and take it back to floats.

    Args:
        source: the float activation.
        output: its quantized values, as floats.
        nodes: all nodes of the group, in the order of the data; the first ones may be shared with another group.
        spread: what one scale holds for.
        dtype: type of the integers.
    """

    source: ir.Value
    output: ir.Value
    nodes: tuple[ir.Node, ...]
    spread: Spread
    dtype: ir.DataType

    @property
    def is_spelt_out(self) -> bool:
        """Whether the group is written in operators that know nothing of quantization."""
        return not is_dequantize(self.nodes[-1])


def dynamic_groups(model: ir.Model) -> list[DynamicGroup]:
    """Every group of ``model``, bodies and functions included, in the order of the node that ends it."""
    found = (_dequantized(node) or _spelt_out(node) for node in all_nodes(model))
    return [group for group in found if group is not None]


def _dequantized(node: ir.Node) -> DynamicGroup | None:
    """The group that ends in the DequantizeLinear ``node`` behind a DynamicQuantizeLinear, or behind a QuantizeLinear with the
    scale of one: of elements that were moved in between."""
    if not is_dequantize(node) or len(node.inputs) != 3 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    quantizer, told = node.inputs[0].producer(), node.inputs[1].producer()
    if (
        quantizer is None
        or told is None
        or not is_dynamic_quantize(told)
        or list(node.inputs[1:]) != list(told.outputs[1:])
    ):
        return None
    if quantizer is not told and (not is_quantize(quantizer) or list(quantizer.inputs[1:]) != list(node.inputs[1:])):
        return None
    source = quantizer.inputs[0]
    if source is None:
        return None
    return DynamicGroup(source, node.outputs[0], (quantizer, node), "per-tensor", ir.DataType.UINT8)


def _spelt_out(node: ir.Node) -> DynamicGroup | None:
    """The group that ends in the Mul ``node``: Mul([Sub](Clip([Add](Round(Div(x, s)), z)), z), s), Casts between them allowed."""
    for integers, scale in _operands(node, "Mul"):
        path = _Path([node], integers)
        subtraction = path.step("Sub")
        zero_point = _behind_casts(subtraction.inputs[1]) if subtraction is not None else None
        clip = path.step("Clip")
        added = path.add(zero_point)
        rounding = path.step("Round")
        added = added or path.add(zero_point)
        source = path.divide(scale)
        if rounding is None or source is None or added != (zero_point is not None):
            continue
        made = _made_of(source, [scale] if zero_point is None else [scale, zero_point])
        if made is not None:
            nodes = tuple(reversed([*path.nodes, *made]))
            return DynamicGroup(source, node.outputs[0], nodes, _spread(made, source), _dtype(clip))
    return None


@dataclass
class _Path:
    """A way upwards through a graph.

    Args:
        nodes: nodes passed.
        value: where it stands.
    """

    nodes: list[ir.Node]
    value: ir.Value

    def step(self, op_type: str) -> ir.Node | None:
        """Go on through an ``op_type``, by its first input and past Casts; None when there is none."""
        casts, value = _casts(self.value)
        node = value.producer()
        if node is None or not is_standard(node, op_type) or node.inputs[0] is None:
            return None
        self.nodes += [*casts, node]
        self.value = node.inputs[0]
        return node

    def add(self, zero_point: ir.Value | None) -> bool:
        """Go on through the Add of ``zero_point``; whether there was one."""
        casts, value = _casts(self.value)
        node = value.producer()
        for other, added in _operands(node, "Add") if node is not None and zero_point is not None else []:
            if node is not None and _behind_casts(added) is zero_point:
                self.nodes += [*casts, node]
                self.value = other
                return True
        return False

    def divide(self, scale: ir.Value) -> ir.Value | None:
        """Go on through the division by ``scale``, also spelt Mul(x, Reciprocal(s)) or Mul(x, Div(1, s)); what is divided."""
        node = self.value.producer()
        if node is None:
            return None
        if is_standard(node, "Div") and len(node.inputs) == 2 and node.inputs[1] is scale:
            self.nodes.append(node)
            return node.inputs[0]
        for source, factor in _operands(node, "Mul"):
            inverse = factor.producer()
            if inverse is not None and is_standard(inverse, "Reciprocal", "Div") and inverse.inputs[-1] is scale:
                self.nodes += [node, inverse]
                return source
        return None


def _casts(value: ir.Value | None) -> tuple[list[ir.Node], ir.Value]:
    """The Casts that ``value`` comes through, and what they cast."""
    assert value is not None
    casts, node = [], value.producer()
    while node is not None and is_standard(node, "Cast") and node.inputs[0] is not None:
        casts.append(node)
        value = node.inputs[0]
        node = value.producer()
    return casts, value


def _behind_casts(value: ir.Value | None) -> ir.Value | None:
    return None if value is None else _casts(value)[1]


def _operands(node: ir.Node, op_type: str) -> list[tuple[ir.Value, ir.Value]]:
    """Both orders of the inputs of a commutative ``op_type``; none when ``node`` is something else."""
    if not is_standard(node, op_type) or len(node.inputs) != 2:
        return []
    a, b = node.inputs
    return [(a, b), (b, a)] if a is not None and b is not None else []


def _made_of(source: ir.Value, values: list[ir.Value]) -> list[ir.Node] | None:
    """The nodes that compute ``values`` from ``source`` and constants, last first, at least one of them a reduction; None when
    they are computed from anything else."""
    nodes: dict[ir.Node, None] = {}
    level = list(values)
    while level:
        value = level.pop()
        if value is source or is_constant(value):
            continue
        node = value.producer()
        if node is None or not is_standard(node, *_ARITHMETIC) or node.graph is None:
            return None
        nodes.pop(node, None)
        nodes[node] = None
        level += [v for v in node.inputs if v is not None]
    return list(nodes) if any(node.op_type in _REDUCTIONS for node in nodes) else None


def _spread(nodes: list[ir.Node], source: ir.Value) -> Spread:
    """What one scale holds for: the axes that the reductions of ``nodes`` run over."""
    reductions = [node for node in nodes if node.op_type in _REDUCTIONS]
    rank = rank_of(source)
    axes = [_axes(node) for node in reductions]
    if all(a is None or (rank is not None and len(a) == rank) for a in axes):
        return "per-tensor"
    last = {-1} if rank is None else {-1, rank - 1}
    return "per-token" if all(a is not None and len(a) == 1 and set(a) <= last for a in axes) else "per-axis"


def _axes(node: ir.Node) -> list[int] | None:
    """Axes a reduction runs over, None for all."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    array = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None or array.size == 0 else [int(a) for a in array.ravel()]


def _dtype(clip: ir.Node | None) -> ir.DataType:
    """The smallest integer type that holds what ``clip`` lets through; int8 without constant bounds."""
    bounds = [constant_array(value) for value in clip.inputs[1:3]] if clip is not None else []
    if len(bounds) < 2 or any(b is None or b.size != 1 for b in bounds):
        return ir.DataType.INT8
    low, high = (float(b.item()) for b in bounds if b is not None)
    for bits in (2, 4, 8, 16, 32):
        if low >= 0 and high <= 2**bits - 1:
            return ir.DataType[f"UINT{bits}"]
        if low < 0 and low >= -(2 ** (bits - 1)) and high <= 2 ** (bits - 1) - 1:
            return ir.DataType[f"INT{bits}"]
    return ir.DataType.INT8
