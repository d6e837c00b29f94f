"""Integer tensors outside of QDQ pairs: of QLinear operators, integer products, packed weights and dynamic quantization."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import float_name
from qdq_passes.graph.operators.qdq_ops import (
    is_dequantize,
    is_dynamic_quantize,
    is_qdq,
    is_quantize,
    is_quantize_dequantize,
)
from qdq_passes.graph.operators.qoperators import (
    Parameters,
    bias_parameters,
    form_of,
    is_recurrent,
    recurrent_weights,
    storage_type,
)
from qdq_passes.graph.uses import all_nodes, input_at, is_constant
from qdq_passes.integers.look.dynamic_quantization import DynamicGroup, Spread, dynamic_groups
from qdq_passes.integers.look.integer_flow import integer_flow, moved_inputs
from qdq_passes.integers.look.integer_products import integer_product, is_integer_product
from qdq_passes.integers.look.packed_weights import PackedWeight, is_packed, packed_weight
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import Kind

Style = Literal["qoperator", "integer", "nbits", "dynamic"]

#: Products of com.microsoft that scale their int32 result themselves.
INTEGER_PRODUCTS = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"})


@dataclass(frozen=True, eq=False)
class IntegerTensor:
    """A tensor of integers that other operators than QuantizeLinear and DequantizeLinear make or read.

    Args:
        tensor: name of the float tensor it stands for.
        value: the integers; where the quantization is spelt out in other operators, the floats that they make of them.
        kind: ``"weight"``, ``"bias"`` or ``"activation"``.
        form: what holds it: ``"qoperator"`` (QLinearConv, QGemm…), ``"integer"`` (MatMulInteger, ConvInteger…), ``"nbits"``
            (packed weights) or ``"dynamic"`` (a scale computed at run time).
        stored: the constant with the integers, None for activations.
        dtype: type of the integers, as meant: uint4 for packed bits; None when nothing tells it.
        encoding: how it is to be read; None when that is computed at run time or no encoding can express it.
        spread: what one scale holds for, where it is computed at run time; None elsewhere.
        producer: the node that makes the integers, None for constants and graph inputs.
        readers: the nodes that read them.
    """

    tensor: str
    value: ir.Value
    kind: Kind
    form: Style
    stored: ir.Value | None
    dtype: ir.DataType | None
    encoding: Encoding | None
    spread: Spread | None
    producer: ir.Node | None
    readers: tuple[ir.Node, ...]

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The producer and the readers."""
        return ((self.producer,) if self.producer is not None else ()) + self.readers

    @property
    def q(self) -> ir.Node | None:
        """What quantizes: a QuantizeLinear, a DynamicQuantizeLinear or the operator that writes integers; None for constants."""
        return self.producer

    @property
    def dq(self) -> ir.Node | None:
        """The DequantizeLinear, or else the first operator that reads the integers."""
        return next((node for node in self.readers if is_dequantize(node)), next(iter(self.readers), None))


def integer_tensors(model: ir.Model) -> list[IntegerTensor]:
    """Every integer tensor of ``model`` that an operator other than Q and DQ makes or reads, each once, in the order of the file.

    A QuantizeLinear before such operators and a DequantizeLinear behind them belong to their tensor, which then is listed here
    even where both make a pair (`qdq_pairs` lists that as well).
    """
    flow = integer_flow(model)
    nodes = all_nodes(model)
    read: dict[ir.Value, tuple[Parameters | None, Kind]] = {}
    for node in nodes:
        for value, parameters, kind in _operands(node, flow):
            read.setdefault(value, (parameters, kind))
    groups = {group.nodes[-1]: group for group in dynamic_groups(model)}
    found: dict[ir.Value, IntegerTensor] = {}
    for node in nodes:
        for value in _touched(node, flow):
            parameters, kind = read.get(value) or (flow.get(value), _kind(value))
            found.setdefault(value, _tensor(value, parameters, kind))
        if is_packed(node):
            entry = _packed(node)
            if entry is not None:
                found.setdefault(*entry)
        group = groups.get(node)
        if group is not None and group.is_spelt_out:
            found.setdefault(group.output, _spelt_out(group))
    return list(found.values())


def _operands(node: ir.Node, flow: dict[ir.Value, Parameters]) -> Iterable[tuple[ir.Value, Parameters | None, Kind]]:
    """Integers that ``node`` computes on and of which `integer_flow` does not know all: biases, and weights whose scale is
    applied to the result or is part of a recurrent operator."""
    form = form_of(node)
    if form is not None and form.bias is not None:
        bias = input_at(node, form.bias)
        if bias is not None:
            yield bias, bias_parameters(node, form), "bias"
    operands: Iterable[tuple[ir.Value | None, Parameters]] = ()
    if is_integer_product(node):
        product = integer_product(node, flow)
        operands = () if isinstance(product, str) else zip(node.inputs[:2], (product.a, product.b), strict=True)
    elif is_recurrent(node):
        operands = recurrent_weights(node)
    for value, parameters in operands:
        if value is not None:
            yield value, parameters, _kind(value)


def _kind(value: ir.Value) -> Kind:
    return "weight" if is_constant(value) else "activation"


def _touched(node: ir.Node, flow: dict[ir.Value, Parameters]) -> list[ir.Value]:
    """Integers that ``node`` makes, computes on or moves, when it is neither Q nor DQ."""
    if is_qdq(node):
        return []
    form = form_of(node)
    if form is not None:
        indices = [*(operand.value for operand in form.operands), *([] if form.bias is None else [form.bias])]
    elif is_integer_product(node):
        indices = [0, 1]
    elif is_recurrent(node):
        indices = [1, 2]
    else:
        indices = [k for k in moved_inputs(node) if node.inputs[k] in flow]
    read = [value for k in indices if (value := input_at(node, k)) is not None]
    return [*read, *(value for value in node.outputs if value in flow)]


def _tensor(value: ir.Value, parameters: Parameters | None, kind: Kind) -> IntegerTensor:
    """The entry of ``value``, which is read with ``parameters``; None when nothing tells how."""
    producer, readers = value.producer(), tuple(dict.fromkeys(value.consumers()))
    stored = value if is_constant(value) else None
    encoding = parameters.encoding(value) if parameters is not None else None
    dtype = storage_type(value, parameters) if parameters is not None else value.dtype
    is_product = any(is_integer_product(node) or node.op_type in INTEGER_PRODUCTS for node in readers)
    style: Style = "integer" if is_product else "qoperator"
    if encoding is None and stored is None and parameters is not None and parameters.scales is None:
        style = "dynamic"
    return IntegerTensor(
        tensor=_float_name(value, producer, readers),
        value=value,
        kind=kind,
        form=style,
        stored=stored,
        dtype=dtype,
        encoding=encoding,
        spread="per-tensor" if style == "dynamic" else None,
        producer=None if stored is not None else producer,
        readers=readers,
    )


def _float_name(value: ir.Value, producer: ir.Node | None, readers: tuple[ir.Node, ...]) -> str:
    """Name of the float tensor: what is quantized, or the name of the integers without what says that they are integers."""
    if (
        producer is not None
        and (is_quantize(producer) or is_dynamic_quantize(producer))
        and producer.inputs[0] is not None
    ):
        name = producer.inputs[0].name or ""
        original = name.removesuffix("_QuantizeLinear_Input")
        return original if any(is_dequantize(dq) and dq.outputs[0].name == original for dq in readers) else name
    return float_name(value.name or "")


def _packed(node: ir.Node) -> tuple[ir.Value, IntegerTensor] | None:
    stored = input_at(node, 1 if node.op_type == "MatMulNBits" else 0)
    if stored is None:
        return None
    weight = packed_weight(node)
    told = weight if isinstance(weight, PackedWeight) else None
    tensor = IntegerTensor(
        tensor=float_name(stored.name or ""), value=stored, kind="weight", form="nbits",
        stored=stored if is_constant(stored) else None,
        dtype=told.dtype if told is not None else stored.dtype, encoding=told.encoding if told is not None else None,
        spread=None, producer=None if is_constant(stored) else stored.producer(),
        readers=tuple(dict.fromkeys(stored.consumers())),
    )  # fmt: skip
    return stored, tensor


def _spelt_out(group: DynamicGroup) -> IntegerTensor:
    return IntegerTensor(
        tensor=group.source.name or "", value=group.output, kind="activation", form="dynamic",
        stored=None, dtype=group.dtype, encoding=None,
        spread=group.spread, producer=group.nodes[0], readers=(group.nodes[-1],),
    )  # fmt: skip


#: Operators on stored integers that have no `qoperators.Form`.
OTHERS = frozenset({"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"})


def defaults(inputs: Iterable[ir.Value]) -> list[ir.Value]:
    """Those of the ``inputs`` of a main graph that are initializers, in their order."""
    return [value for value in inputs if value.is_initializer()]


def quantized_defaults(inputs: Iterable[ir.Value]) -> list[ir.Value]:
    """Those of `defaults` that quantization takes for constants: scales, zero points, what a DQ or an integer operator reads."""
    return [value for value in defaults(inputs) if any(_is_parameter(use.node, use.idx) for use in value.uses())]


def _is_parameter(node: ir.Node, index: int) -> bool:
    if is_quantize(node) or is_quantize_dequantize(node):
        return index > 0
    return is_dequantize(node) or form_of(node) is not None or node.op_type in OTHERS
