"""Weighted layers: Conv, ConvTranspose, Gemm and MatMul of an activation and one constant, quantized or not, with its
bias."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.sizes import data_shape
from qdq_passes.graph.uses import (
    FLOAT_TYPES,
    constant_array,
    dtype_of,
    float_of,
    integer_of,
    integers_of,
    is_constant,
    is_standard,
    main_nodes,
    only_reader,
    text_of,
)
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.layer_form import LayerForm
from qdq_passes.qdq.look.pairs import Pair, pair_of

#: Operators with a weight.
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedLayer:
    """A layer.

    Args:
        node: the operator.
        data: index of the input that is an activation.
        weight: index of the input that is constant.
        form: how it multiplies.
        pair: the pair on the weight, None where it is float.
        bias: (node, index of its input) of the bias: the layer's own, or that of the Add behind a MatMul; None without one.
    """

    node: ir.Node
    data: int
    weight: int
    form: LayerForm
    pair: Pair | None
    bias: tuple[ir.Node, int] | None

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name or ""

    @property
    def data_value(self) -> ir.Value:
        """The activation."""
        value = self.node.inputs[self.data]
        assert value is not None
        return value

    @property
    def weight_value(self) -> ir.Value:
        """What the node reads as its weight: a constant, or what a DequantizeLinear writes."""
        value = self.node.inputs[self.weight]
        assert value is not None
        return value

    @property
    def stored(self) -> ir.Value:
        """The constant that holds the weight: float numbers, or integers."""
        value = self.weight_value if self.pair is None else self.pair.stored
        assert value is not None
        return value

    @property
    def float_weight(self) -> Array | None:
        """The float numbers of the weight; None where only integers are left of them."""
        is_lost = self.pair is not None and self.pair.q is None
        return None if is_lost else constant_array(self.stored)


def weighted_layer(node: ir.Node) -> WeightedLayer | str | None:
    """``node`` as a weighted layer; in words why it is none that can be taken; None where it is another operator or
    multiplies two activations."""
    if not is_standard(node, *WEIGHTED) or len(node.inputs) < 2:
        return None
    places = (1,) if node.op_type in ("Conv", "ConvTranspose") else (1, 0)
    weight = next((index for index in places if _is_weight(node.inputs[index])), None)
    if weight is None or _is_weight(node.inputs[1 - weight]) or node.inputs[1 - weight] is None:
        return None
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return "has attributes of its function"
    value = node.inputs[weight]
    assert value is not None
    producer = value.producer()
    pair = pair_of(producer) if producer is not None else None
    stored = value if pair is None else pair.stored
    assert stored is not None
    if dtype_of(value) not in (*FLOAT_TYPES, None):
        return "does not compute on floats"
    shape = data_shape(stored)
    assert shape is not None
    if not shape or 0 in shape or (len(shape) < 3 and node.op_type.startswith("Conv")):
        return f"its weight {list(shape)} is empty or no matrix"
    form = _conv_form(node, shape) if node.op_type.startswith("Conv") else _product_form(node, shape, weight)
    if form is None:
        return "its attributes do not fit its weight"
    return WeightedLayer(node=node, data=1 - weight, weight=weight, form=form, pair=pair, bias=_bias_of(node, form))


def weighted_layers(model: ir.Model) -> list[WeightedLayer]:
    """The weighted layers of the main graph that have a name, in its order."""
    found = [weighted_layer(node) for node in main_nodes(model) if node.name]
    return [layer for layer in found if isinstance(layer, WeightedLayer)]


def _is_weight(value: ir.Value | None) -> bool:
    """Whether ``value`` is a constant, or a DequantizeLinear of one."""
    if value is None or is_constant(value):
        return value is not None
    producer = value.producer()
    pair = pair_of(producer) if producer is not None else None
    return pair is not None and pair.stored is not None


def _conv_form(node: ir.Node, shape: tuple[int, ...]) -> LayerForm | None:
    spatial, groups = len(shape) - 2, integer_of(node, "group", 1)

    def per_axis(name: str, default: int, times: int = 1) -> tuple[int, ...]:
        return tuple(integers_of(node, name)) or (default,) * (spatial * times)

    is_conv = node.op_type == "Conv"
    form = LayerForm(
        kind="conv" if is_conv else "transposed",
        shape=shape,
        groups=groups,
        strides=per_axis("strides", 1),
        dilations=per_axis("dilations", 1),
        pads=per_axis("pads", 0, 2),
        output_padding=() if is_conv else per_axis("output_padding", 0),
        output_shape=() if is_conv else tuple(integers_of(node, "output_shape")),
        auto_pad=text_of(node, "auto_pad", "NOTSET"),
    )
    fits = len(form.strides) == len(form.dilations) == spatial and len(form.pads) == 2 * spatial
    return form if fits and groups > 0 and shape[0] % groups == 0 else None


def _product_form(node: ir.Node, shape: tuple[int, ...], weight: int) -> LayerForm | None:
    if node.op_type == "MatMul":
        return LayerForm(kind="product", shape=shape, turned=weight == 0, across=weight == 0, is_first=weight == 0)
    turns = (bool(integer_of(node, "transA", 0)), bool(integer_of(node, "transB", 0)))
    if len(shape) != 2:
        return None
    return LayerForm(
        kind="product",
        shape=shape,
        turned=turns[1] if weight else not turns[0],
        across=turns[0] if weight else not turns[1],
        is_first=weight == 0,
        factor=float_of(node, "alpha", 1.0),
    )


def _bias_of(node: ir.Node, form: LayerForm) -> tuple[ir.Node, int] | None:
    if node.op_type != "MatMul":
        return (node, 2) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    add = only_reader(node.outputs[0])
    if add is None or not is_standard(add, "Add") or add.graph is not node.graph or "axis" in add.attributes:
        return None
    index = 1 if add.inputs[0] is node.outputs[0] else 0
    if not _is_weight(add.inputs[index]):
        return None
    value = add.inputs[index]
    producer = value.producer() if value is not None else None
    pair = pair_of(producer) if producer is not None else None
    stored = value if pair is None else pair.stored
    assert stored is not None
    shape = data_shape(stored)
    assert shape is not None
    axis = -2 if form.is_first else -1
    is_row = bool(shape) and len(shape) >= -axis and all(n == 1 for i, n in enumerate(shape) if i - len(shape) != axis)
    return (add, index) if is_row and shape[axis] == form.channels[0] and form.sizes[0] == 1 else None
