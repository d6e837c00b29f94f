"""Units: an operator with the QDQ nodes around it, which an NPU computes in one step, or does not compute;
how units depend on each other.

DQ(x), DQ(w), DQ(b) → Conv → Relu → Q        core Conv, tail (Relu,), operands x w b, one result
DQ(x) → Q                                    a requantization: core Q, its own result
Shape → Gather → Concat                      three units; what they read steers them (``"control"``)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.look.demands import scalings
from qdq_passes.graph.indices import index_nodes
from qdq_passes.graph.operators.activations import ACTIVATIONS, AVERAGE_POOLS, BOUNDS, PRODUCERS, clip_bound
from qdq_passes.graph.operators.channels import BIAS_INPUT
from qdq_passes.graph.operators.kinds import CONTROL_INPUTS
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_qdq, is_quantize
from qdq_passes.graph.uses import (
    FLOAT_TYPES,
    dtype_of,
    has_body,
    in_order,
    is_constant,
    is_standard,
    only_reader,
    values_read,
)
from qdq_passes.npu.units.batches import batch_sizes
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import encoding_of

#: What an input is to its operator: data that flows, a constant weight, its bias, another constant stored like data (the second
#: operand of an Add), what steers it (a shape, axes, bounds), a float that nobody quantized, or left out.
OperandKind = Literal["activation", "weight", "bias", "constant", "control", "float", "absent"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Operand:
    """One input of a unit's operator.

    Args:
        kind: see `OperandKind`; ``"float"`` also for float constants.
        value: what the operator reads; None when left out.
        integers: the integers that ``dequantize`` reads; None when it is not dequantized.
        encoding: the encoding of those integers; None when it is not dequantized, or its scale is no constant.
        dequantize: the DequantizeLinear it comes from.
        quantize: the QuantizeLinear of a pair on a float constant; None for stored integers and for data that flows.
        constant: whether its data are known.
        batch: how many samples of the model's inputs it holds (`qdq_passes.npu.units.batches`), 1 where that is nothing of them.
    """

    kind: OperandKind
    value: ir.Value | None
    integers: ir.Value | None = None
    encoding: Encoding | None = None
    dequantize: ir.Node | None = None
    quantize: ir.Node | None = None
    constant: bool = False
    batch: int = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """One output of a unit.

    Args:
        value: the last float value, after the tail.
        quantize: the QuantizeLinear that reads it; None when it stays float, is read otherwise too, or is a graph output, or when
            that node's scale is computed at run time.
        encoding: of that QuantizeLinear.
        integers: what that QuantizeLinear writes.
    """

    value: ir.Value
    quantize: ir.Node | None = None
    encoding: Encoding | None = None
    integers: ir.Value | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Unit:
    """An operator and what belongs to it.

    Args:
        core: the operator; of a requantization the QuantizeLinear that reads a DequantizeLinear.
        tail: what is computed in the same step on its only output, in order, with no pair between: the average pool behind a
            Pad, the Mul of a pool, mean or hard sigmoid by a positive constant, then one of Relu, Clip with constant bounds,
            LeakyRelu, PRelu with a constant slope (which no hard sigmoid has).
        operands: inputs of the core, in their order.
        results: outputs of the last node of the tail (of the core when there is none) that something reads.
    """

    core: ir.Node
    tail: tuple[ir.Node, ...] = ()
    operands: tuple[Operand, ...] = ()
    results: tuple[Result, ...] = ()

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """Core and tail, in order."""
        return (self.core, *self.tail)

    @property
    def last(self) -> ir.Node:
        """The node that writes the results."""
        return self.nodes[-1]

    @property
    def is_requantization(self) -> bool:
        """Whether it only brings integers from one encoding to another."""
        return is_quantize(self.core)

    @property
    def is_compute(self) -> bool:
        """Whether it computes on data, moves them, or holds bodies. Not so Shape and what works on shapes, indices and masks."""
        if has_body(self.core):
            return True
        steered = all(operand.kind in ("control", "absent") for operand in self.operands)
        return not steered and not is_standard(self.core, "Shape", "Size")

    @property
    def is_quantized(self) -> bool:
        """Whether all data it reads and writes are integers behind constant encodings, and it holds no body."""
        if has_body(self.core):
            return False
        read = [o for o in self.operands if o.kind not in ("control", "absent")]
        return all(o.encoding is not None for o in read) and all(r.encoding is not None for r in self.results)


#: Inputs that are weights where their data are constant.
WEIGHT_INPUTS = {
    "BatchNormalization": {1, 3, 4}, "Conv": {1}, "ConvTranspose": {1}, "Gemm": {1}, "GroupNormalization": {1},
    "InstanceNormalization": {1}, "LayerNormalization": {1}, "MatMul": {1}, "RMSNormalization": {1},
}  # fmt: skip
#: Likewise biases.
BIAS_INPUTS = {**BIAS_INPUT, "BatchNormalization": 2, "InstanceNormalization": 2}

#: Inputs that steer an operator although they are floats: the value that a Pad writes, beside `CONTROL_INPUTS`. The parameters of
#: a BatchNormalization are data here.
_CONTROL = {**CONTROL_INPUTS, "Pad": {1, 2, 3}, "BatchNormalization": set[int]()}

#: Operators whose result is still at hand, wider than it is stored, while an activation is applied to it.
_BEFORE_ACTIVATION = frozenset({*PRODUCERS, "Mul", "ReduceMean", "Sub"})
#: Operators whose result is multiplied by a constant in the same step; on the Vitis line by the factor of what its DPU computes.
_SCALED = frozenset({*AVERAGE_POOLS, "HardSigmoid", "ReduceMean"})


def units_of(model: ir.Model) -> list[Unit]:
    """The units of the main graph, each after what it reads.

    Every node that is no QuantizeLinear, DequantizeLinear or Constant is core or in the tail of one unit; every
    QuantizeLinear that reads a DequantizeLinear is the core of one. A value whose type the model does not tell counts as
    float: run infer-shapes first.
    """
    encodings: dict[ir.Node, Encoding | None] = {}
    batches = batch_sizes(model.graph)
    units: list[Unit] = []
    tails: set[ir.Node] = set()
    nodes = in_order(model.graph)
    indices = index_nodes(nodes)
    for node in nodes:
        if node in tails or is_dequantize(node) or is_standard(node, "Constant"):
            continue
        if is_quantize(node):
            if _is_requantization(node):
                units.append(_requantization(node, encodings, batches))
            continue
        tail = _tail(node)
        tails.update(tail)
        last = tail[-1] if tail else node
        operands = operands_of(node, encodings, batches)
        if node in indices:
            operands = tuple(replace(operand, kind="control") for operand in operands)
        units.append(Unit(core=node, tail=tail, operands=operands, results=_results(last, encodings)))
    return units


def operands_of(
    node: ir.Node,
    encodings: dict[ir.Node, Encoding | None] | None = None,
    batches: Mapping[ir.Value, int] | None = None,
) -> tuple[Operand, ...]:
    """The inputs of ``node`` as operands; of a tail's PRelu the slope is among them.

    Args:
        node: an operator.
        encodings: what has been found of Q and DQ nodes so far; grows.
        batches: the batch of values that have one.
    """
    known = {} if encodings is None else encodings
    found = (_operand(node, index, value, known) for index, value in enumerate(node.inputs))
    if not batches:
        return tuple(found)
    return tuple(replace(o, batch=batches.get(o.value, 1)) if o.value is not None else o for o in found)


def _requantization(
    quantize: ir.Node, encodings: dict[ir.Node, Encoding | None], batches: Mapping[ir.Value, int]
) -> Unit:
    value, integers = quantize.inputs[0], quantize.outputs[0]
    assert value is not None
    result = Result(value=value, quantize=quantize, encoding=_encoding(quantize, encodings), integers=integers)
    return Unit(core=quantize, operands=operands_of(quantize, encodings, batches)[:1], results=(result,))


def _is_requantization(quantize: ir.Node) -> bool:
    before = quantize.inputs[0].producer() if quantize.inputs[0] is not None else None
    return before is not None and is_dequantize(before)


def _operand(node: ir.Node, index: int, value: ir.Value | None, encodings: dict[ir.Node, Encoding | None]) -> Operand:
    if value is None:
        return Operand(kind="absent", value=None)
    steers = not is_quantize(node) and index in _CONTROL.get(node.op_type, ())
    before = value.producer()
    if before is None or not is_dequantize(before):
        dtype = dtype_of(value)
        steers = steers or (dtype is not None and dtype not in FLOAT_TYPES)
        return Operand(kind="control" if steers else "float", value=value, constant=is_constant(value))
    integers = before.inputs[0]
    quantize = integers.producer() if integers is not None else None
    of_constant = quantize is not None and is_quantize(quantize) and is_constant(quantize.inputs[0])
    constant = of_constant or is_constant(integers)
    kind: OperandKind = "activation"
    if steers:
        kind = "control"
    elif constant and BIAS_INPUTS.get(node.op_type) == index:
        kind = "bias"
    elif constant:
        kind = "weight" if index in WEIGHT_INPUTS.get(node.op_type, ()) else "constant"
    return Operand(
        kind=kind,
        value=value,
        integers=integers,
        encoding=_encoding(before, encodings),
        dequantize=before,
        quantize=quantize if of_constant else None,
        constant=constant,
    )


def _results(last: ir.Node, encodings: dict[ir.Node, Encoding | None]) -> tuple[Result, ...]:
    found = []
    for value in last.outputs:
        if not value.uses() and not value.is_graph_output():
            continue
        quantize = only_reader(value)
        encoding = None
        if (
            quantize is not None
            and is_quantize(quantize)
            and quantize.graph is last.graph
            and quantize.inputs[0] is value
        ):
            encoding = _encoding(quantize, encodings)
        if quantize is None or encoding is None:
            found.append(Result(value=value))
        else:
            found.append(Result(value=value, quantize=quantize, encoding=encoding, integers=quantize.outputs[0]))
    return tuple(found)


def _tail(core: ir.Node) -> tuple[ir.Node, ...]:
    """What is computed on the only output of ``core`` in the same step."""
    tail: list[ir.Node] = []
    main = last = core
    if is_standard(core, "Pad") and (pool := _next(core)) is not None and is_standard(pool, *AVERAGE_POOLS):
        tail.append(pool)
        main = last = pool
    if is_standard(main, *_SCALED) and (factor := _next(main)) is not None and _is_factor(factor, main.outputs[0]):
        tail.append(factor)
        last = factor
    if is_standard(main, *_BEFORE_ACTIVATION):
        activation = _next(last)
        if activation is not None and activation.inputs[0] is last.outputs[0] and _is_activation(activation):
            tail.append(activation)
    return tuple(tail)


def would_take(unit: Unit, node: ir.Node) -> bool:
    """Whether ``node``, which reads the result of ``unit``, would be in its tail if no pair stood between."""
    mains = [main for main in unit.nodes if main is unit.core or is_standard(main, *AVERAGE_POOLS)]
    is_open = not is_standard(unit.last, *ACTIVATIONS) and any(is_standard(main, *_BEFORE_ACTIVATION) for main in mains)
    return is_open and _is_activation(node)


def _is_factor(node: ir.Node, value: ir.Value) -> bool:
    """Whether ``node`` multiplies ``value`` by one positive constant."""
    return any(node is mul and float(constant) > 0 for mul, constant, _ in scalings(value, behind_pairs=False))


def _next(node: ir.Node) -> ir.Node | None:
    """The only reader of the only output of ``node``, in the same graph."""
    if sum(bool(value.uses()) or value.is_graph_output() for value in node.outputs) != 1 or not node.outputs[0].uses():
        return None
    reader = only_reader(node.outputs[0])
    return reader if reader is not None and reader.graph is node.graph else None


def _is_activation(node: ir.Node) -> bool:
    """Whether ``node`` is an activation of which everything but its input is known."""
    if not is_standard(node, *ACTIVATIONS):
        return False
    if node.op_type == "Clip":
        return not any(isinstance(clip_bound(node, which), str) for which in BOUNDS)
    if node.op_type != "PRelu":
        return True
    slope = operands_of(node)[1]
    return slope.constant and (slope.dequantize is None or slope.encoding is not None)


def _encoding(node: ir.Node, encodings: dict[ir.Node, Encoding | None]) -> Encoding | None:
    if node not in encodings:
        encodings[node] = encoding_of(node)
    return encodings[node]


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """Units and the QuantizeLinear nodes that end none, each with what it reads.

    Args:
        nodes: every node of the main graph, in topological order.
        items: units, and QuantizeLinear nodes with computed scales, which belong to no unit; in topological order.
        before: per item the items that write what it reads, directly or through Q and DQ nodes.
        item_of: node → its item: core and tail of a unit, the QuantizeLinear of its results, other QuantizeLinear nodes that
            read what one of them writes with a constant scale; the rest is in no item.
    """

    nodes: list[ir.Node]
    items: list[Unit | ir.Node]
    before: list[tuple[int, ...]]
    item_of: dict[ir.Node, int]


def unit_graph(nodes: Iterable[ir.Node], units: Sequence[Unit]) -> UnitGraph:
    """The graph of ``units``, which must be all units of ``nodes``, those of a main graph."""
    at = {unit.core: unit for unit in units}
    items: list[Unit | ir.Node] = []
    before: list[tuple[int, ...]] = []
    item_of: dict[ir.Node, int] = {}
    writers: dict[ir.Value, tuple[int, ...]] = {}

    def add(item: Unit | ir.Node, nodes: Sequence[ir.Node]) -> None:
        item_of.update(dict.fromkeys(nodes, len(items)))
        read = {writer for node in nodes for value in values_read(node) for writer in writers.get(value, ())}
        before.append(tuple(sorted(read)))
        items.append(item)

    ordered = in_order(nodes)
    for node in ordered:
        unit = at.get(node)
        if unit is not None:
            add(unit, unit.nodes)
        elif is_quantize(node) and node.inputs[0] is not None and writers.get(node.inputs[0]):
            if all(value is None or is_constant(value) for value in node.inputs[1:]):
                item_of[node] = writers[node.inputs[0]][0]
            else:
                add(node, [node])
        if node in item_of:
            found: tuple[int, ...] = (item_of[node],)
        elif is_qdq(node):
            found = tuple({writer for value in values_read(node) for writer in writers.get(value, ())})
        else:
            continue
        writers |= dict.fromkeys(node.outputs, found)
    return UnitGraph(ordered, items, before, item_of)
