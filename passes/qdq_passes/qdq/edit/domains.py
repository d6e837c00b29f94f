"""Surgery between the domains of Q and DQ: the same arithmetic under another operator's name.

What differs: the standard operators may leave out the zero point and say the type by ``output_dtype``, compute in a ``precision``
of their own (opset 23), and have blocks; the others know ``axis`` only. Their zero point is always written out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from qdq_passes.core.base import Change
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.edit import RUN_SORT, Namer, drop_unread, graph_of, make_node, new_constant, remove, replace_nodes
from qdq_passes.graph.operators.qdq_ops import OPERATORS, OPSET_OF_AXIS, is_quantize, opset_at
from qdq_passes.graph.uses import constant_array, dtype_of, integer_of, label
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type
from qdq_passes.numerics.quantize import dequantize
from qdq_passes.qdq.edit.checks import check_encoding
from qdq_passes.qdq.edit.pairs import dequantize_node, parameters, quantize_node
from qdq_passes.qdq.edit.reencode import Target, float_tensor, nodes_of, why_not_editable
from qdq_passes.qdq.look.pairs import Half, Pair, dequantizers, encoding_of, pair_of

#: Widest integers of a FixNeuron; biases of 32 bits have no such operator.
FIX_BITS = 16


def refuse_domain(model: ir.Model, target: Target, domain: str) -> None:
    """Refuse what the operators of ``domain`` cannot do for ``target``.

    Raises:
        UnsupportedError: a type, blocks, or attributes that they do not know.
    """
    for node in nodes_of(target):
        if (node.domain or "") == domain:
            continue
        _check(model, target, node, domain)
        where, types = label(node), _float_types(node)
        if domain and integer_of(node, "block_size", 0):
            raise UnsupportedError(f"{domain} knows no blocks", where=where, hint="use the standard operators")
        if domain == "com.microsoft" and ir.DataType.BFLOAT16 in types:
            raise UnsupportedError(
                "com.microsoft quantizes no bfloat16 tensors", where=where, hint="use the standard operators"
            )
        if domain and len(types) > 1:
            names = " and ".join(sorted(dtype.name.lower() for dtype in types))
            raise UnsupportedError(
                f"mixes {names}; the operators of {domain} know one float type",
                where=where,
                hint="leave it out with select",
            )
        unknown = set(node.attributes) - {"axis", "block_size", "output_dtype", "precision", "saturate"}
        if unknown:
            raise UnsupportedError(f"has an attribute {min(unknown)}, which is not known", where=where)
        if _needs_zero_point(node, domain) and constant_array(node.inputs[1]) is None:
            raise UnsupportedError(
                "has no zero point, and its scale is not constant", where=where, hint="fold-constants may make it so"
            )


def refuse_expansion(model: ir.Model, target: Target, domain: str) -> None:
    """Refuse a FixNeuron whose pair the operators of ``domain`` do not know.

    Raises:
        UnsupportedError: its type.
    """
    _check(model, target, target.node if isinstance(target, Half) else target.dq, domain)


def refuse_disorder(targets: Iterable[Target]) -> None:
    """Refuse to put new nodes where they would read a value before it is computed.

    Raises:
        ModelError: a node of ``targets`` stands before the one whose value it quantizes.
    """
    places: dict[ir.Graph, dict[ir.Node, int]] = {}
    for target in targets:
        source = target.source if isinstance(target, Pair) else None
        producer = source.producer() if source is not None else None
        for node in nodes_of(target) if producer is not None else []:
            graph = graph_of(node)
            place = places.setdefault(graph, {one: number for number, one in enumerate(graph)})
            if producer is not None and place.get(producer, -1) > place[node]:
                raise ModelError("stands before the node whose output it quantizes", where=label(node), hint=RUN_SORT)


def move(model: ir.Model, node: ir.Node, domain: str, namer: Namer) -> Change:
    """Make ``node`` the operator of ``domain`` that does the same."""
    was = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    encoding = encoding_of(node)
    if _needs_zero_point(node, domain):
        _write_zero_point(node, namer)
    if encoding is not None and encoding.axis is not None and "axis" not in node.attributes:
        node.attributes["axis"] = ir.AttrInt64("axis", encoding.axis)
    if domain:
        for name in ("block_size", "output_dtype", "precision", "saturate"):
            node.attributes.pop(name, None)
    elif opset_at(model, node) < OPSET_OF_AXIS:
        node.attributes.pop("axis", None)
    node.op_type, node.domain = OPERATORS[domain][0 if is_quantize(node) else 1], domain
    return Change("replace", label(node), f"{was} → {f'{domain}.' if domain else ''}{node.op_type}")


def expand(node: ir.Node, domain: str, namer: Namer) -> Change:
    """Put a pair of ``domain`` where a FixNeuron stands: ``x → FixNeuron`` → ``x → Q → DQ``."""
    value, encoding = node.inputs[0], encoding_of(node)
    assert value is not None
    assert encoding is not None
    pair, inputs = pair_of(node), list(node.inputs[1:])
    base = (pair.tensor if pair is not None else "") or node.name or "value"
    scale, zero_point = parameters(graph_of(node), value, encoding, namer, base)
    q = quantize_node(value, scale, zero_point, encoding, namer, base=base, domain=domain, stands_for=[node])
    like = node.outputs[0] if node.outputs[0].type is not None else value
    dq = dequantize_node(
        q.outputs[0], scale, zero_point, encoding, namer, base=base, like=like, domain=domain, stands_for=[node]
    )
    change = replace_nodes([node], [q, dq], namer, f"{node.op_type} → {q.name}, {dq.name}")
    drop_unread(inputs)
    return change


def why_not_fixed(target: Target) -> str | None:
    """Why no FixNeuron can stand for ``target``, in words; None when one can."""
    reason = why_not_editable(target, changes_type=True)
    encoding = target.encoding
    if reason is not None or encoding is None:
        return reason
    dtype = encoding.dtype
    if not is_integer_type(dtype) or not integer_format(dtype)[0] or dtype.bitwidth > FIX_BITS:
        return f"is {dtype.name.lower()}; a FixNeuron has signed integers of up to {FIX_BITS} bits"
    if len(encoding.scale) != 1:
        return f"is {encoding.granularity.kind}; a FixNeuron has one scale"
    if not encoding.is_symmetric:
        return f"has zero point {encoding.zero_point[0]}; a FixNeuron has none"
    if encoding.position is None:
        return f"its scale {encoding.scale[0]:g} is no power of two, as a FixNeuron's; run round-scales-pow2 first"
    if float_tensor(target).dtype != ir.DataType.FLOAT:
        return "is no float32, which a FixNeuron rounds"
    return None


def fuse(pair: Pair, namer: Namer) -> Iterator[Change]:
    """Put a FixNeuron where each DequantizeLinear of ``pair`` stands; stored integers become the float values they stand for."""
    encoding = pair.encoding
    assert encoding is not None
    position = encoding.position
    assert position is not None
    source, olds = pair.source, [pair.dq] if pair.q is None else dequantizers(pair.q)
    if pair.q is None:
        integers = constant_array(pair.stored)
        assert integers is not None
        source = new_constant(graph_of(pair.dq), namer, pair.tensor or "weight", dequantize(integers, encoding), olds)
    attributes = [ir.AttrInt64("bit_width", encoding.dtype.bitwidth), ir.AttrInt64("pos", position[0])]
    base = pair.tensor or "value"
    for dq in olds:
        name, inputs = namer.fresh(f"{base}_FixNeuron"), list(dq.inputs)
        fix = make_node(
            "FixNeuron", [source], name=name, output=namer.fresh(f"{name}_Output"), like=dq.outputs[0],
            attributes=attributes, domain="com.vai.quantize", stands_for=[dq],
        )  # fmt: skip
        yield replace_nodes([dq], [fix], namer, f"DequantizeLinear → FixNeuron at position {position[0]}")
        drop_unread(inputs)
    if pair.q is not None and not pair.q.outputs[0].uses():
        inputs = list(pair.q.inputs)
        yield from remove(pair.q, "its FixNeuron quantizes")
        drop_unread(inputs)


def _check(model: ir.Model, target: Target, node: ir.Node, domain: str) -> None:
    encoding = encoding_of(node)
    if encoding is None:
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        dtype = (dtype_of(zero) if zero is not None else None) or ir.DataType.UINT8
        encoding = Encoding.per_tensor(dtype, 1.0)
    check_encoding(float_tensor(target), encoding, opset_at(model, node), stored=not is_quantize(node), domain=domain)


def _float_types(node: ir.Node) -> set[ir.DataType]:
    """Types of its float tensor and its scale, and those it is told to compute in and to write."""
    tensor = node.inputs[0] if is_quantize(node) else node.outputs[0]
    found = {
        tensor.dtype if tensor is not None else None,
        dtype_of(node.inputs[1]) if node.inputs[1] is not None else None,
    }
    asked = [integer_of(node, "precision" if is_quantize(node) else "output_dtype", 0)]
    return {dtype for dtype in found if dtype is not None} | {ir.DataType(code) for code in asked if code}


def _needs_zero_point(node: ir.Node, domain: str) -> bool:
    has_one = len(node.inputs) > 2 and node.inputs[2] is not None
    return bool(domain) and not has_one and (domain != "com.microsoft" or is_quantize(node))


def _write_zero_point(node: ir.Node, namer: Namer) -> None:
    encoding, scale = encoding_of(node), node.inputs[1]
    array = constant_array(scale)
    assert encoding is not None
    assert scale is not None
    assert array is not None
    zeros = ir.tensor(np.zeros(array.shape, encoding.dtype.numpy()), dtype=encoding.dtype)
    base = (scale.name or "value").removesuffix("_scale")
    node.resize_inputs(3)
    node.replace_input_with(2, new_constant(graph_of(node), namer, f"{base}_zero_point", zeros, [node]))
