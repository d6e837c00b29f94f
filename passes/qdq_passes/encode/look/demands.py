"""Demands: which values the operators to be quantized want to have an encoding, and as what."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.indices import index_nodes
from qdq_passes.graph.operators.activations import is_dpu_hard_sigmoid
from qdq_passes.graph.operators.channels import BIAS_INPUT
from qdq_passes.graph.operators.kinds import CONTROL_INPUTS
from qdq_passes.graph.operators.qdq_ops import OPSET_OF_HALF, has_pair, is_dequantize, is_qdq
from qdq_passes.graph.operators.reductions import averaged_sizes
from qdq_passes.graph.uses import (
    QUANTIZABLE_TYPES,
    SHARING,
    UNKNOWN_TYPE,
    constant_array,
    dtype_of,
    in_order,
    is_constant,
    is_standard,
    label,
    main_nodes,
    may_be_float,
    only_reader,
    readers,
)
from qdq_passes.numerics.dpu import HARD_SIGMOID_FACTOR, mean_factor, pool_factor
from qdq_passes.numerics.mapped import is_finite

#: (Mul, its constant [], its other input).
Scaling = tuple[ir.Node, npt.NDArray[Any], ir.Value]


def is_dpu_factor(node: ir.Node) -> bool:
    """Whether ``node`` is a Mul by exactly the DPU's factor of the pool, mean or hard sigmoid whose output it alone reads."""
    if not is_standard(node, "Mul") or len(node.inputs) != 2:
        return False
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if value is None or producer is None or only_reader(value) is not node:
            continue
        factor, constants = dpu_factor(producer), [constant for _, constant, _ in scalings(value, behind_pairs=False)]
        if factor is not None and any(c.dtype.kind == "f" and c == c.dtype.type(factor) for c in constants):
            return True
    return False


def dpu_factor(node: ir.Node) -> float | None:
    """The DPU's factor of a pool, mean or hard sigmoid; None for other operators, and where it has none or the file does not
    tell what is averaged over."""
    if is_standard(node, "HardSigmoid"):
        return HARD_SIGMOID_FACTOR if is_dpu_hard_sigmoid(node) else None
    if not is_standard(node, "AveragePool", "GlobalAveragePool", "ReduceMean"):
        return None
    sizes = averaged_sizes(node)
    if sizes is None:
        return None
    return mean_factor(math.prod(sizes)) if node.op_type == "ReduceMean" else pool_factor(sizes)


def scalings(value: ir.Value, *, behind_pairs: bool = True) -> list[Scaling]:
    """Every Mul by one constant number that reads ``value``, itself or behind QDQ pairs."""
    found: list[Scaling] = []
    for node, index in readers(value):
        if behind_pairs and index == 0 and is_qdq(node):
            found += scalings(node.outputs[0])
        elif is_standard(node, "Mul") and len(node.inputs) == 2:
            constant = constant_array(node.inputs[1 - index])
            if constant is not None and constant.size == 1:
                found.append((node, constant.reshape(()), value))
    return found


Role = Literal["activation", "weight", "bias"]

#: Operators quantized unless told otherwise: what integer NPUs compute (the reference quantizer's list for convolutional
#: networks, read in Quark 0.13, without ArgMax, whose result is no float, and with Flatten, which moves values as Reshape does,
#: and with what fusions make: HardSwish, RMSNormalization, Swish).
QUANTIZED_OPS = (
    "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose", "DepthToSpace", "Div", "Erf",
    "Flatten", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "HardSigmoid", "HardSwish", "InstanceNormalization",
    "LayerNormalization", "LeakyRelu", "LpNormalization", "MatMul", "Max", "MaxPool", "Min", "Mul", "PRelu", "Pad",
    "RMSNormalization", "ReduceMean", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Softmax", "SpaceToDepth", "Split",
    "Squeeze", "Sub", "Swish", "Tanh", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip

#: Inputs that `CONTROL_INPUTS` keeps float and the reference quantizes as weights all the same.
BATCH_NORM_PARAMETERS = frozenset({1, 2, 3, 4})

#: Operators of com.microsoft that are quantized where their type is listed, as those of ONNX are.
CONTRIB = frozenset({"EmbedLayerNormalization", "Gelu"})

#: Input that tells whether an operator computes on floats, where it is not the first.
FIRST_FLOAT = {"EmbedLayerNormalization": 2, "Where": 1}

#: Number of outputs that hold values of the kind of the input; the others are indices, masks or statistics.
DATA_OUTPUTS = {
    "ArgMax": 0, "ArgMin": 0, "BatchNormalization": 1, "EmbedLayerNormalization": 1, "LayerNormalization": 1, "MaxPool": 1,
    "TopK": 1,
}  # fmt: skip


#: A value, what it is, and the node that reads it as which input or (None) writes it.
Request = tuple[ir.Value, Role, ir.Node, int | None]


class Entering(Protocol):
    """A value that a group of nodes reads."""

    @property
    def value(self) -> ir.Value: ...
    @property
    def role(self) -> Role: ...
    @property
    def node(self) -> ir.Node: ...
    @property
    def index(self) -> int: ...


class OperatorGroup(Protocol):
    """Nodes that compute one operator together: what they read from outside, and what others read of what they write."""

    @property
    def operator(self) -> str: ...
    @property
    def nodes(self) -> Sequence[ir.Node]: ...
    @property
    def entering(self) -> Sequence[Entering]: ...
    @property
    def leaving(self) -> Sequence[ir.Value]: ...


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What nodes of a quantized type demand less than all their tensors, or more.

    Args:
        float_outputs: operator types that demand nothing for what they write.
        constant_b_only: a MatMul whose second input is no constant demands nothing.
        follow_input: what only moves values (`SHARING`) demands nothing unless its input has been demanded before it.
        followers: operator types that demand nothing unless an earlier node demanded their (first) input, a computed one.
        dpu_hard_sigmoid: a HardSigmoid other than x/6 + 1/2 demands nothing.
        batch_norm_parameters: the four parameters of a BatchNormalization are weights.
        constants_only: activations stay float.
    """

    float_outputs: Collection[str] = ()
    constant_b_only: bool = False
    follow_input: bool = False
    followers: Collection[str] = ()
    dpu_hard_sigmoid: bool = False
    batch_norm_parameters: bool = False
    constants_only: bool = False

    def why_idle(self, node: ir.Node, demands: Demands) -> str | None:
        """Why ``node`` demands nothing after what others have demanded; None if it does."""
        op_type, first = node.op_type, node.inputs[0] if node.inputs else None
        if self.constant_b_only and op_type == "MatMul" and not all(is_constant(v) for v in node.inputs[1:]):
            return "multiplies two activations"
        if self.follow_input and op_type in SHARING and not (is_constant(first) or _is_demanded(first, demands)):
            return "only moves values, and its input stays float"
        if op_type in self.followers and (is_constant(first) or not _is_demanded(first, demands)):
            return "follows its input, which stays float"
        if self.dpu_hard_sigmoid and op_type == "HardSigmoid" and not is_dpu_hard_sigmoid(node):
            return "is not x/6 + 1/2"
        return None


ALL_TENSORS = Rules()


@dataclass
class Demands:
    """Values that get an encoding, in the order of the graph, with the nodes that demand it; and those that cannot have one.

    Args:
        nodes: names of the demanding nodes per value.
        roles: what the value is to them.
        refused: value → why it stays float although a node demands it, or would if the policy let it.
        uses: (node, input index) of the demanding readers per value.
        silent: value → the quantized node that writes it and demands nothing for it.
        idle: node of a quantized type that demands nothing → why.
    """

    nodes: dict[ir.Value, list[str]] = field(default_factory=dict)
    roles: dict[ir.Value, Role] = field(default_factory=dict)
    refused: dict[ir.Value, str] = field(default_factory=dict)
    uses: dict[ir.Value, list[tuple[ir.Node, int]]] = field(default_factory=dict)
    silent: dict[ir.Value, str] = field(default_factory=dict)
    idle: dict[ir.Node, str] = field(default_factory=dict)

    def add(self, value: ir.Value, role: Role, node: ir.Node, index: int | None = None) -> None:
        """``node`` wants ``value`` (its input ``index``, or an output) to have an encoding; what is ever a weight is no bias."""
        self.nodes.setdefault(value, []).append(label(node))
        if index is not None:
            self.uses.setdefault(value, []).append((node, index))
        if self.roles.get(value) in (None, "bias"):
            self.roles[value] = role

    def items(self) -> list[tuple[ir.Value, tuple[str, ...]]]:
        """(value, names of the nodes that demand it)."""
        return [(value, tuple(dict.fromkeys(names))) for value, names in self.nodes.items()]

    def quantized_around(self, value: ir.Value) -> set[str]:
        """Names of the quantized nodes that write or read ``value``."""
        return {*self.nodes.get(value, ()), *([self.silent[value]] if value in self.silent else [])}

    def role(self, value: ir.Value) -> Role:
        """What the value is to those who demand it."""
        return self.roles[value]


def demands_of(
    model: ir.Model,
    ops: set[str],
    wanted: set[ir.Node],
    *,
    rules: Rules = ALL_TENSORS,
    groups: Iterable[OperatorGroup] = (),
    domain: str = "",
) -> Demands:
    """What the nodes of the main graph demand.

    Args:
        model: the model.
        ops: operator types that are quantized.
        wanted: nodes that may demand.
        rules: what they demand.
        groups: nodes that compute one operator together: they demand as one, provided that the operator or the type of one of
            them is quantized, and nothing where one of them is not wanted.
        domain: whose QuantizeLinear it will be; of another domain's, the opset says nothing.
    """
    demands, opset = Demands(), model.opset_imports.get("", 1)
    withheld: dict[ir.Value, str] = {}
    member_of = {node: group for group in groups for node in group.nodes}
    indices = index_nodes(in_order(model.graph))
    is_paired = functools.cache(has_pair)  # which looks at all readers of a value, for each of them
    for node in main_nodes(model):
        group = member_of.get(node)
        if node in indices:
            demands.idle |= {node: "computes indices alone"} if node in wanted and node.op_type in ops else {}
            continue
        if group is not None and not wanted.issuperset(group.nodes):
            if node in wanted:
                demands.idle[node] = f"is part of one {group.operator}, not all of which is wanted"
            continue
        if group is not None:
            if node is not group.nodes[0] or ops.isdisjoint({group.operator, *(n.op_type for n in group.nodes)}):
                continue
            op_type, found, outputs = group.operator, _entering(group), [v for v in group.leaving if may_be_float(v)]
        elif node in wanted and _is_known(node) and node.op_type in ops and _computes_on_floats(node):
            op_type, found, outputs = node.op_type, _inputs_of(node, rules), _outputs_of(node)
            reason = rules.why_idle(node, demands)
            if reason is not None:
                demands.idle[node] = reason
                withheld |= dict.fromkeys(outputs, f"{node.name or op_type} {reason}")
                continue
        else:
            continue
        if rules.constants_only:
            found, outputs = [request for request in found if request[1] != "activation"], []
            if not found:
                demands.idle[node] = _why_no_weight(node)
        if op_type in rules.float_outputs:
            withheld |= dict.fromkeys(outputs, f"outputs of {op_type} stay float")
            demands.silent |= {value: _writer(value, node).name or op_type for value in outputs}
        else:
            found += [(value, "activation", _writer(value, node), None) for value in outputs]
        for value, role, by, index in found:
            if is_paired(value):
                continue
            reason = why_not_quantizable(value, opset, domain)
            if reason is None:
                demands.add(value, role, by, index)
            else:
                demands.refused[value] = reason
    demands.refused |= {v: why for v, why in withheld.items() if v not in demands.nodes and not is_paired(v)}
    return demands


def _why_no_weight(node: ir.Node) -> str:
    """Why ``node`` stays float where constants alone are quantized."""
    for value in node.inputs[1:]:
        writer = value.producer() if value is not None else None
        if writer is not None and not is_dequantize(writer) and writer.inputs and all(map(is_constant, writer.inputs)):
            return f"its weight is what {label(writer)} computes; fold-constants stores it"
    return "reads no stored float weight"


def why_not_quantizable(value: ir.Value, opset: int, domain: str = "") -> str | None:
    """Why QuantizeLinear of ``opset`` (or of another ``domain``) cannot take ``value``, in words; None when it can."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return "is no tensor"
    dtype = dtype_of(value)
    if dtype is None:
        return UNKNOWN_TYPE
    if dtype not in QUANTIZABLE_TYPES:
        return f"is {dtype.name.lower()}, which QuantizeLinear does not take"
    if dtype == ir.DataType.BFLOAT16 and domain == "com.microsoft":
        return "is bfloat16, which com.microsoft does not take"
    if dtype != ir.DataType.FLOAT and domain in ("", "ai.onnx") and opset < OPSET_OF_HALF:
        return f"{dtype.name.lower()} needs opset {OPSET_OF_HALF}, the model has {opset}"
    tensor = value.const_value if is_constant(value) else None
    if tensor is not None and tensor.size == 0:
        return "is empty"
    array = constant_array(value) if tensor is None else None
    finite = is_finite(tensor) if tensor is not None else array is None or np.isfinite(array).all()
    return None if finite else "holds values that are not finite"


def sharing_outputs(model: ir.Model, op_types: Collection[str] = SHARING) -> dict[ir.Value, ir.Value]:
    """Output → input whose encoding it shares, for the operators of ``op_types`` in the main graph."""
    return {
        output: node.inputs[0]
        for node in main_nodes(model)
        if node.domain in ("", "ai.onnx") and node.op_type in op_types and node.inputs and node.inputs[0] is not None
        for output in node.outputs[: DATA_OUTPUTS.get(node.op_type)]
    }


def _is_known(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx") or (node.domain == "com.microsoft" and node.op_type in CONTRIB)


def _entering(group: OperatorGroup) -> list[Request]:
    return [(each.value, each.role, each.node, each.index) for each in group.entering if may_be_float(each.value)]


def _inputs_of(node: ir.Node, rules: Rules) -> list[Request]:
    found: list[Request] = []
    if is_dpu_factor(node):
        return found
    control = CONTROL_INPUTS.get(node.op_type, set())
    if rules.batch_norm_parameters and node.op_type == "BatchNormalization":
        control = control - BATCH_NORM_PARAMETERS
    for index, value in enumerate(node.inputs):
        if value is None or index in control or not may_be_float(value):
            continue
        if not is_constant(value):
            found.append((value, "activation", node, index))
        else:
            found.append((value, "bias" if BIAS_INPUT.get(node.op_type) == index else "weight", node, index))
    return found


def _writer(value: ir.Value, otherwise: ir.Node) -> ir.Node:
    return value.producer() or otherwise


def _outputs_of(node: ir.Node) -> list[ir.Value]:
    values = [v for v in node.outputs[: DATA_OUTPUTS.get(node.op_type)] if v.name and may_be_float(v)]
    return [v for v in values if (reader := only_reader(v)) is None or not is_dpu_factor(reader)]


def _is_demanded(value: ir.Value | None, demands: Demands) -> bool:
    """Whether ``value`` has an encoding by now."""
    return value is not None and (value in demands.nodes or has_pair(value))


def _computes_on_floats(node: ir.Node) -> bool:
    index = FIRST_FLOAT.get(node.op_type, 0)
    first = node.inputs[index] if index < len(node.inputs) else None
    return first is not None and may_be_float(first)
