"""Surgery on QDQ pairs: make them, and give those that exist another encoding. What passes do with pairs, they do through this.

Names: of a pair on ``t`` they are ``t_scale``, ``t_zero_point``, ``t_QuantizeLinear``, ``t_QuantizeLinear_Output``,
``t_DequantizeLinear``, ``t_DequantizeLinear_Output``; stored integers are ``t_quantized``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.errors import ModelError
from qdq_passes.graph.edit import (
    Namer,
    drop_unread,
    graph_of,
    insert_after,
    make_node,
    new_constant,
    put_first,
    set_constant,
)
from qdq_passes.graph.operators.kinds import steers
from qdq_passes.graph.operators.qdq_ops import OPERATORS, is_quantize
from qdq_passes.graph.uses import constant_array, dtype_of, is_constant, is_standard, readers
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.edit.integers import integers_of
from qdq_passes.qdq.edit.streamed import blocked_weight, streamed_integers, streamed_scales, streamed_zeros
from qdq_passes.qdq.look.pairs import Pair, dequantizers, encoding_of

Use = tuple[ir.Node, int]
#: Scale and zero point of a pair.
Parameters = tuple[ir.Value, ir.Value]


def encoding_attributes(encoding: Encoding) -> list[ir.Attr]:
    """``axis`` and ``block_size`` of a Q or DQ with ``encoding``; none per-tensor."""
    attributes = [] if encoding.axis is None else [ir.AttrInt64("axis", encoding.axis)]
    return [*attributes, *([ir.AttrInt64("block_size", encoding.block_size)] if encoding.block_size else [])]


def parameters(graph: ir.Graph, value: ir.Value, encoding: Encoding, namer: Namer, base: str) -> Parameters:
    """New constants ``<base>_scale`` (in the float type of ``value``) and ``<base>_zero_point`` in ``graph``."""
    near = neighbour(value)
    float_type = dtype_of(value) or ir.DataType.FLOAT
    if (weight := blocked_weight(value.const_value, encoding)) is not None:
        return (
            new_constant(graph, namer, f"{base}_scale", streamed_scales(weight, float_type, f"{base}_scale"), near),
            new_constant(graph, namer, f"{base}_zero_point", streamed_zeros(encoding, f"{base}_zero_point"), near),
        )
    scale = new_constant(graph, namer, f"{base}_scale", encoding.scale_array().astype(float_type.numpy()), near)
    tensor = ir.Tensor(encoding.zero_point_array(), dtype=encoding.dtype)
    return scale, new_constant(graph, namer, f"{base}_zero_point", tensor, near)


def quantize_node(
    value: ir.Value, scale: ir.Value, zero_point: ir.Value, encoding: Encoding, namer: Namer,
    *, base: str, domain: str = "", stands_for: Sequence[ir.Node] | None = None,
) -> ir.Node:  # fmt: skip
    """A QuantizeLinear of ``value``, named after ``base`` and not yet in a graph."""
    return make_node(
        OPERATORS[domain][0], [value, scale, zero_point], name=namer.fresh(f"{base}_QuantizeLinear"), domain=domain,
        output=namer.fresh(f"{base}_QuantizeLinear_Output"), like=value, dtype=encoding.dtype,
        attributes=encoding_attributes(encoding), stands_for=neighbour(value) if stands_for is None else stands_for,
    )  # fmt: skip


def dequantize_node(
    integers: ir.Value, scale: ir.Value, zero_point: ir.Value, encoding: Encoding, namer: Namer,
    *, base: str, like: ir.Value, domain: str = "", stands_for: Sequence[ir.Node] | None = None,
) -> ir.Node:  # fmt: skip
    """A DequantizeLinear of ``integers`` whose output is typed like ``like``, named after ``base`` and not yet in a graph."""
    return make_node(
        OPERATORS[domain][1], [integers, scale, zero_point], name=namer.fresh(f"{base}_DequantizeLinear"), domain=domain,
        output=namer.fresh(f"{base}_DequantizeLinear_Output"), like=like,
        attributes=encoding_attributes(encoding), stands_for=neighbour(like) if stands_for is None else stands_for,
    )  # fmt: skip


def insert_pairs(
    model: ir.Model, value: ir.Value, encoding: Encoding, namer: Namer,
    *, domain: str = "", dedicated: bool = False, uses: Sequence[Use] | None = None, given: Parameters | None = None,
) -> list[Change]:  # fmt: skip
    """Put a pair behind ``value``: ``t → A`` → ``t → Q → DQ → A``; a graph output is then what a DQ writes, under the old name.

    Args:
        model: the model.
        value: what is quantized.
        encoding: how.
        namer: names of this run.
        domain: domain of the operators.
        dedicated: a pair per reader (and one for the graph output) instead of one for all; they share scale and zero point.
        uses: the readers that get the pair; by default the graph output and all of them, but for those that a constant steers
            while others compute with it: the bound of a Clip is no data.
        given: scale and zero point, which say ``encoding``, of another pair to share; new ones by default.
    """
    base = value.name or "value"
    scale, zero_point = given or parameters_in_place(model, value, encoding, namer)
    if domain:
        model.opset_imports.setdefault(domain, 1)
    near, is_output = neighbour(value), uses is None and can_hand_over(value)
    behind = _behind(value) if uses is None else list(uses)
    groups = _by_reader(behind) if dedicated else [behind]
    if dedicated and (is_output or not groups):
        groups.insert(0, [])
    changes, made = [], []
    for group in groups:
        q = quantize_node(value, scale, zero_point, encoding, namer, base=base, domain=domain, stands_for=near)
        dq = dequantize_node(
            q.outputs[0], scale, zero_point, encoding, namer, base=base, like=value, domain=domain, stands_for=near
        )
        made.append((q, dq))
        for node, index in group:
            node.replace_input_with(index, dq.outputs[0])
        changes.append(Change("insert", base, f"{q.name}, {dq.name}"))
    insert_after(model, value, [node for pair in made for node in pair])
    if is_output:
        hand_over_output(value, made[0][1].outputs[0], namer)
    return changes


def store_integers(
    model: ir.Model, value: ir.Value, encoding: Encoding, namer: Namer,
    *, domain: str = "", dedicated: bool = False, narrow: bool = False,
) -> list[Change]:  # fmt: skip
    """Turn the constant ``value`` into its integers and a DequantizeLinear: ``w → A`` → ``w_quantized → DQ → A``.

    The arguments are those of `insert_pairs`; ``dedicated`` gives every reader a DequantizeLinear of its own, ``narrow`` leaves
    out the most negative integer.
    """
    graph = value.graph
    assert graph is not None
    base = value.name or "weight"
    scale, zero_point = parameters(graph, value, encoding, namer, base)
    if domain:
        model.opset_imports.setdefault(domain, 1)
    near = neighbour(value)
    integers: ir.TensorProtocol | None = streamed_integers(
        value.const_value, encoding, f"{base}_quantized", narrow=narrow
    )
    if integers is None:
        array = constant_array(value)
        assert array is not None
        integers = ir.tensor(integers_of(value, array, encoding, narrow=narrow), dtype=encoding.dtype)
    stored = new_constant(graph, namer, f"{base}_quantized", integers, near)
    behind = _behind(value)
    groups = _by_reader(behind) if dedicated and behind else [behind]
    changes, made = [], []
    for group in groups:
        dq = dequantize_node(
            stored, scale, zero_point, encoding, namer, base=base, like=value, domain=domain, stands_for=near
        )
        made.append(dq)
        for node, index in group:
            node.replace_input_with(index, dq.outputs[0])
        changes.append(Change("insert", base, f"{stored.name}, {dq.name}"))
    put_first(graph, made)
    drop_unread([value])
    return changes


def _behind(value: ir.Value) -> list[Use]:
    """The uses of ``value`` that read its pair; of a constant that is data somewhere, those as data."""
    uses = [(use.node, use.idx) for use in value.uses()]
    return [use for use in uses if not (is_constant(value) and steers(*use))] or uses


def _by_reader(uses: Iterable[Use]) -> list[list[Use]]:
    """The uses of each node together: a node that reads a value twice is one reader."""
    groups: dict[ir.Node, list[Use]] = {}
    for node, index in uses:
        groups.setdefault(node, []).append((node, index))
    return list(groups.values())


def neighbour(value: ir.Value) -> list[ir.Node]:
    """The node whose scope a pair on ``value`` belongs to: its producer, or the first reader of an input or weight."""
    producer = value.producer()
    return [producer] if producer is not None and producer.op_type != "Constant" else list(value.consumers())[:1]


def parameters_in_place(model: ir.Model, value: ir.Value, encoding: Encoding, namer: Namer) -> Parameters:
    """New scale and zero point for a pair on ``value``, where its readers see them."""
    return parameters(_home(model, value, namer), value, encoding, namer, value.name or "value")


def _home(model: ir.Model, value: ir.Value, namer: Namer) -> ir.Graph:
    """Where the parameters of a pair on ``value`` live: the main graph, which bodies see; in a function, where the value is."""
    return model.graph if value.graph is None or namer.sees_main(value.graph) else value.graph


def can_hand_over(value: ir.Value) -> bool:
    """Whether a pair on ``value`` takes over the graph output that it is: inputs and weights that are outputs stay those."""
    return value.is_graph_output() and not value.is_graph_input() and not value.is_initializer()


def hand_over_output(value: ir.Value, dequantized: ir.Value, namer: Namer) -> None:
    """A graph output is what the DequantizeLinear writes, under the old name."""
    graph, name = value.graph, value.name
    assert graph is not None
    value.name = namer.fresh(f"{name}_QuantizeLinear_Input")
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = dequantized
    dequantized.name = name


def members(pair: Pair) -> list[ir.Node]:
    """The nodes that must keep one encoding: the QuantizeLinear and every DequantizeLinear of its integers, or a lone DQ."""
    return [pair.dq] if pair.q is None else list(dict.fromkeys([pair.q, *dequantizers(pair.q), pair.dq]))


def write_encodings(chosen: Mapping[ir.Node, Encoding], namer: Namer) -> None:
    """Give Q and DQ nodes other encodings: scale, zero point, axis, block size, and the type of a Q's integers.

    A scale or zero point that only nodes with equal new data read is changed where it is; else those nodes get a copy beside it,
    so that others keep theirs. Stored integers are not touched: see `requantize`.

    Raises:
        ModelError: a node has a scale that is computed at run time.
    """
    for node, encoding in chosen.items():
        if constant_array(node.inputs[1]) is None:
            raise ModelError("its scale is not constant", where=node.name, hint="fold-constants may make it so")
        for attribute in ("axis", "block_size"):
            node.attributes.pop(attribute, None)
        for made in encoding_attributes(encoding):
            node.attributes[made.name] = made
        if "output_dtype" in node.attributes and is_quantize(node):
            node.attributes["output_dtype"] = ir.AttrInt64("output_dtype", encoding.dtype.value)
        if is_quantize(node):
            node.outputs[0].type = ir.TensorType(encoding.dtype)
    _write_inputs(chosen, 1, lambda e, old: _laid_out(e.scale_array(), e, old).astype(old.dtype), namer)
    _write_inputs(chosen, 2, lambda e, old: ir.tensor(_laid_out(e.zero_point_array(), e, old), dtype=e.dtype), namer)


def _laid_out(data: npt.NDArray[Any], encoding: Encoding, old: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One number keeps the shape it had, [] or [1]."""
    return data.reshape(old.shape) if encoding.axis is None and old.shape in ((), (1,)) else data


def _write_inputs(
    chosen: Mapping[ir.Node, Encoding],
    index: int,
    data_of: Callable[[Encoding, npt.NDArray[Any]], npt.NDArray[Any] | ir.TensorProtocol],
    namer: Namer,
) -> None:
    """Write input ``index`` of the nodes; nodes that read one value and get equal encodings keep sharing it."""
    groups: dict[tuple[ir.Value | None, Encoding], list[ir.Node]] = {}
    for node, encoding in chosen.items():
        value = node.inputs[index] if index < len(node.inputs) else None
        groups.setdefault((value, encoding), []).append(node)
    for (value, encoding), nodes in groups.items():
        if value is None:
            _add_zero_point(nodes, encoding, namer)
            continue
        old = constant_array(value)
        if old is None:
            raise ModelError(
                "its zero point is not constant", where=nodes[0].name, hint="fold-constants may make it so"
            )
        data = data_of(encoding, old)
        tensor = ir.tensor(data) if isinstance(data, np.ndarray) else data
        have = ir.tensor(old, dtype=dtype_of(value))
        if (tensor.dtype, tensor.shape, tensor.tobytes()) != (have.dtype, have.shape, have.tobytes()):
            write_constant(value, tensor, [(node, index) for node in nodes], namer)


def _add_zero_point(nodes: list[ir.Node], encoding: Encoding, namer: Namer) -> None:
    """A zero point for those of ``nodes`` of which none would say another encoding: not 0, or integers of another type."""
    for node in nodes:
        if encoding.is_symmetric and _type_without_zero_point(node) == encoding.dtype:
            continue
        scale = node.inputs[1]
        assert scale is not None
        shape = constant_array(scale)
        assert shape is not None
        tensor = ir.tensor(_laid_out(encoding.zero_point_array(), encoding, shape), dtype=encoding.dtype)
        base = (scale.name or "value").removesuffix("_scale")
        zero_point = new_constant(graph_of(node), namer, f"{base}_zero_point", tensor, [node])
        node.resize_inputs(3)
        node.replace_input_with(2, zero_point)


def _type_without_zero_point(node: ir.Node) -> ir.DataType | None:
    """The integers' type where there is no zero point: a Q's ``output_dtype`` or uint8, what a DQ reads."""
    if not is_quantize(node):
        old = encoding_of(node)
        return old.dtype if old is not None else None
    attribute = node.attributes.get("output_dtype")
    return ir.DataType((attribute.as_int() if attribute is not None else 0) or ir.DataType.UINT8)


def requantize(pair: Pair, new: Encoding, namer: Namer, *, integers: npt.NDArray[Any]) -> None:
    """Store ``integers`` in the encoding ``new`` for ``pair`` (a lone DequantizeLinear), without writing the node's parameters.

    Args:
        pair: the stored weight or bias.
        new: its new encoding.
        namer: names of this run.
        integers: the integers in ``new``.
    """
    assert pair.stored is not None
    write_constant(pair.stored, ir.tensor(integers, dtype=new.dtype), [(pair.dq, 0)], namer)


def write_constant(
    value: ir.Value, data: npt.NDArray[Any] | ir.TensorProtocol, uses: Iterable[Use], namer: Namer
) -> ir.Value:
    """New data for the constant ``value`` as far as ``uses`` read it: in place if nobody else does, else as a copy beside it.

    Returns:
        The constant that ``uses`` read now.
    """
    wanted = list(uses)
    node = value.producer()
    is_own = not value.is_graph_output() and not value.is_graph_input() and set(readers(value)) <= set(wanted)
    if is_own and value.const_value is not None:
        set_constant(value, data)
        return value
    if is_own and node is not None and is_standard(node, "Constant"):
        tensor = ir.tensor(data) if isinstance(data, np.ndarray | np.generic) else data
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", tensor)
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        return value
    near = wanted[0][0]
    copy = new_constant(value.graph or graph_of(near), namer, _name_of_copy(value, namer), data, [near])
    for node, index in wanted:
        node.replace_input_with(index, copy)
    drop_unread([value])
    return copy


def _name_of_copy(value: ir.Value, namer: Namer) -> str:
    """``w_1_quantized`` for ``w_quantized``: the float name of stored integers is what stands before the suffix."""
    stem = (value.name or "").removesuffix("_quantized")
    return f"{fresh_base(namer, stem)}_quantized" if stem != value.name else stem or "constant"


def fresh_base(namer: Namer, wanted: str) -> str:
    """``wanted``, ``wanted_1``…: the first under whose name no integers are stored (``<name>_quantized``)."""
    for number in itertools.count():
        base = f"{wanted}_{number}" if number else wanted
        if namer.fresh(f"{base}_quantized") == f"{base}_quantized":
            namer.release(f"{base}_quantized")
            return base
    raise AssertionError
