"""unpack-matmul-nbits"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.names import float_name
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, make_node, new_constant, replace_nodes
from qdq_passes.graph.operators.qdq_ops import FIRST_OPSET, OPSET_OF_BLOCKS, opset_at
from qdq_passes.graph.uses import all_nodes, input_at
from qdq_passes.integers.look.packed_weights import PackedWeight, is_packed, packed_weight
from qdq_passes.select.selectors import ALL, Selector, select_operators


@dataclass(frozen=True)
class UnpackMatmulNbits(Pass):
    """Unpack the weights of MatMulNBits and GatherBlockQuantized into blocked QDQ form: integers and a DequantizeLinear.

    w[k, n] = (q[k, n] − z[k / block, n])·s[k / block, n]: B [N, ceil(K / block), …] becomes integers [K, N] with scales
    [ceil(K / block), N] along axis 0. Zero points that all are 2^(bits−1) are taken off the integers, which then are signed.

    Graph: ``MatMulNBits(x, B, s, z, bias)`` → ``MatMul(x, DequantizeLinear(w_quantized, w_scale, w_zero_point)) [→ Add(bias)]``;
    ``GatherBlockQuantized(B, ids, s)`` → ``Gather(DequantizeLinear(…), ids)``.
    Requires: opset 21 for ``weights=dq``; 2 bits are stored in int4 below opset 25.
    Keeps: inputs, outputs and their names; weights bit for bit, their products within the bound of a float32 sum.
    Skips: weights, scales or zero points that are not constant; rows reordered by g_idx; layouts of one device; an accuracy_level
    that rounds the activations is dropped. Zero points that are no integers: the weight is stored as floats.

    Args:
        select: the operators, or tensors: then those that make or read them.
        weights: ``dq`` stores integers with a DequantizeLinear, ``float`` the dequantized weight, at any opset.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "changes",
        why="the weights are the same, their products are summed in another order; accuracy_level 4 had rounded the "
        "activations to 8 bits, which a MatMul does not",
    )
    select: Selector = ALL
    weights: Literal["dq", "float"] = "dq"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Unpack in the order of the file; operators that share a packed weight share the unpacked one."""
        wanted, namer = select_operators(model, self.select), Namer(model)
        unpacked: dict[tuple[object, ...], ir.Value] = {}
        for node in all_nodes(model):
            if node not in wanted or not is_packed(node):
                continue
            weight = packed_weight(node)
            if isinstance(weight, str):
                yield skip(node, weight)
                continue
            opset = opset_at(model, node)
            if self.weights == "dq" and opset < OPSET_OF_BLOCKS:
                raise UnsupportedError(
                    f"a scale per block needs opset {OPSET_OF_BLOCKS}, the model has {opset}",
                    where=node.name,
                    hint=f"run convert-opset{{version={OPSET_OF_BLOCKS}}} first, or weights=float",
                )
            key = (graph_of(node), *node.inputs[1 if node.op_type == "MatMulNBits" else 0 : 4], weight.shape)
            if key not in unpacked:
                keep_integers = self.weights == "dq" and weight.has_integer_zero_points
                unpacked[key] = _stored(node, weight, namer, opset) if keep_integers else _float(node, weight, namer)
            yield from _replace(node, unpacked[key], namer)


def _stored(node: ir.Node, weight: PackedWeight, namer: Namer, opset: int) -> ir.Value:
    """A DequantizeLinear of the integers before ``node``; its output."""
    graph, base = graph_of(node), float_name(weight.stored.name or "weight")
    bits = weight.bits if opset >= FIRST_OPSET[ir.DataType.INT2] else max(weight.bits, 4)
    dtype = ir.DataType[f"{'INT' if weight.signed else 'UINT'}{bits}"]

    def constant(name: str, data: npt.NDArray[Any]) -> ir.Value:
        tensor = ir.tensor(np.ascontiguousarray(data).astype(dtype.numpy()), dtype=dtype)
        return new_constant(graph, namer, f"{base}_{name}", tensor, [node])

    stored = constant("quantized", weight.integers())
    scale = new_constant(graph, namer, f"{base}_scale", weight.scales, [node])
    inputs = (
        [stored, scale] if not weight.zero_points.any() else [stored, scale, constant("zero_point", weight.zero_points)]
    )
    dq = make_node(
        "DequantizeLinear", inputs, name=namer.fresh(f"{base}_DequantizeLinear"), stands_for=[node],
        output=namer.fresh(f"{base}_DequantizeLinear_Output"), like=stored, dtype=scale.dtype,
        attributes=[ir.AttrInt64("axis", weight.axis), ir.AttrInt64("block_size", weight.block_size)],
    )  # fmt: skip
    graph.insert_before(node, dq)
    return dq.outputs[0]


def _float(node: ir.Node, weight: PackedWeight, namer: Namer) -> ir.Value:
    """The float weight as a constant."""
    base = float_name(weight.stored.name or "weight")
    return new_constant(graph_of(node), namer, base, weight.dequantized(), [node])


def _replace(node: ir.Node, weight: ir.Value, namer: Namer) -> Iterator[Change]:
    is_matmul = node.op_type == "MatMulNBits"
    op_type, result = "MatMul" if is_matmul else "Gather", node.outputs[0]
    axis = [] if is_matmul else [ir.AttrInt64("axis", _gather_axis(node))]
    plain = re.sub(r"_Q\d+$", "", node.name or op_type)
    name = plain if plain == node.name else namer.fresh(plain)
    nodes = [
        make_node(
            op_type, [node.inputs[0], weight] if is_matmul else [weight, node.inputs[1]], name=name, attributes=axis,
            output=namer.fresh(f"{result.name}_float"), like=result, stands_for=[node],
        )
    ]  # fmt: skip
    bias = input_at(node, 5) if is_matmul else None
    if bias is not None:
        add = make_node(
            "Add", [nodes[0].outputs[0], bias], name=namer.fresh(f"{name}_Add"), like=result, stands_for=[node],
            output=namer.fresh(f"{result.name}_sum"),
        )  # fmt: skip
        nodes.append(add)
    inputs = list(node.inputs)
    yield replace_nodes([node], nodes, namer, f"{op_type} over {weight.name}")
    drop_unread(inputs)


def _gather_axis(node: ir.Node) -> int:
    return node.attributes["gather_axis"].as_int() if "gather_axis" in node.attributes else 0
