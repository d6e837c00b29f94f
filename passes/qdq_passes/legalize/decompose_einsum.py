"""decompose-einsum

Σ over the labels that the result lacks is a product of matrices [batch, rows, depth]·[batch, depth, columns] where two operands
have each label at most once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder, Site, take_place
from qdq_passes.graph.edit import drop_unread, remove
from qdq_passes.graph.operators.einsums import Contraction, Dim, Turn, contraction, permutation
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.sizes import sizes_of
from qdq_passes.graph.uses import constant_array, dtype_of, only_reader, text_of
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.edit.pairs import insert_pairs
from qdq_passes.qdq.look.pairs import encoding_of
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

#: Whose QuantizeLinear and DequantizeLinear it can make.
_DOMAINS = ("", "ai.onnx", "com.microsoft")
#: What an Einsum takes and a MatMul does not.
_NARROW = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8, ir.DataType.UINT16})


@dataclass(frozen=True)
class DecomposeEinsum(Pass):
    """Write an Einsum of two operands as MatMul between Transposes and Reshapes, one that only turns its operand as Transpose.

    Between QDQ pairs every new value has a pair of its own: of what moves the encoding that it had, of the product that of the
    result. Constants are turned at once, their integers where they are stored as such.

    Graph: ``a, b → Einsum("bqhd,bkhd->bhqk") → y`` → ``a → Transpose [b, h, q, d]; b → Transpose [b, h, d, k]; MatMul → y``, with
    Reshapes where several axes are rows, columns or depth, or none is.
    Requires: numbers of dimensions (infer-shapes); sizes of axes that are put together.
    Keeps: inputs, outputs and their names; numerics within the bound.
    Skips: other than two operands, integers of 8 and 16 bits, a diagonal, an axis that is summed up in one operand, sizes that
        may differ, empty axes that are put together, a constant with scales along an axis that is put together with others.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "bounded",
        bound=2.0**-14,
        why="the same K products in another order: error ≤ (K + 1)·2^-24·Σ|ab| each way; with K ≤ 2^12 and random signs about "
        "2^-18 of max|y|, 2^4 left for cancellation",
    )
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node."""
        builder, inferred = Builder(model), Inferred(model)
        for node in nodes_of_types(model, self.select, "Einsum"):
            order = _order(node, inferred)
            if order is not None:
                made = builder.at(node).transpose(node.inputs[0], *order)  # type: ignore[arg-type]
                yield take_place(node, [made], builder.namer, "only turns its operand")
                continue
            form = _form(node, inferred)
            if isinstance(form, str):
                yield skip(node, form)
                continue
            operands = [_operand(value, turn) for value, turn in zip(node.inputs, (form.left, form.right), strict=True)]
            refused = next((found for found in operands if isinstance(found, str)), None)
            if refused is not None:
                yield skip(node, refused)
                continue
            read, site = list(node.inputs), builder.at(node)
            paired: list[_Paired] = []
            sides = [_write_side(site, found, paired) for found in operands if not isinstance(found, str)]
            product = site("MatMul", *sides)
            product.type, product.shape = node.outputs[0].type, ir.Shape(form.product)
            written = _write_result(site, node, product, form.result, paired)
            old = node.outputs[0]
            if old.shape is not None:
                written.shape = old.shape.copy()
            yield take_place(node, [written], builder.namer, f"a product of matrices: {_words(form)}")
            for value, encoding, domain in paired:
                insert_pairs(model, value, encoding, builder.namer, domain=domain)
            _drop(read)


#: A new value that gets a pair: its encoding, the domain of its operators.
_Paired = tuple[ir.Value, Encoding, str]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Side:
    """An operand and its turn; its encoding where it is dequantized, its data where these are known."""

    value: ir.Value
    turn: Turn
    dequantize: ir.Node | None = None
    encoding: Encoding | None = None
    data: npt.NDArray[Any] | None = None


def _order(node: ir.Node, inferred: Inferred) -> tuple[int, ...] | None:
    """The order of axes that ``node`` gives its one operand; None where it does more, or its rank is unknown."""
    value = node.inputs[0] if len(node.inputs) == 1 else None
    rank = None if value is None else inferred.rank(value)
    return None if rank is None else permutation(text_of(node, "equation", ""), rank)


def _form(node: ir.Node, inferred: Inferred) -> Contraction | str:
    equation = node.attributes.get("equation")
    if equation is None or equation.is_ref():
        return "an attribute of the function says what it sums up"
    if len(node.inputs) != 2:
        return f"has {len(node.inputs)} operands, and a product of matrices has 2"
    dtype = next((found for value in node.inputs if value is not None and (found := dtype_of(value)) in _NARROW), None)
    if dtype is not None:
        return f"multiplies {dtype.name.lower()}, which MatMul does not take"
    sizes = [None if value is None else _dims(value, inferred) for value in node.inputs]
    if sizes[0] is None or sizes[1] is None:
        return "the number of axes of an operand is unknown; run infer-shapes first"
    return contraction(text_of(node, "equation", ""), sizes[0], sizes[1])


def _dims(value: ir.Value, inferred: Inferred) -> list[Dim] | None:
    """Sizes of ``value``, names among them."""
    known = sizes_of(value)
    rank = inferred.rank(value)
    if rank is None:
        return None
    known = known if known is not None else [None] * rank
    return [
        size if size is not None else (found[0] if (found := inferred.sizes(value, [axis])) is not None else None)
        for axis, size in enumerate(known)
    ]


def _operand(value: ir.Value | None, turn: Turn) -> _Side | str:
    """What is known of an operand; in words why it cannot be turned."""
    assert value is not None
    producer = value.producer()
    if turn.permutation is None and turn.shape is None:
        return _Side(value=value, turn=turn)
    if producer is None or not is_dequantize(producer):
        return _Side(value=value, turn=turn, data=constant_array(value))
    encoding = encoding_of(producer)
    if encoding is None or producer.domain not in _DOMAINS:
        return "an operand is dequantized with a scale that is computed, or by an operator of another domain"
    data = constant_array(producer.inputs[0])
    if data is None and not _is_one(encoding):
        return f"an operand has {encoding.granularity.kind} scales"
    if data is not None and not _is_one(encoding):
        turned = _turned_axis(encoding, turn, data.ndim)
        if isinstance(turned, str):
            return turned
        encoding = turned
    return _Side(value=value, turn=turn, dequantize=producer, encoding=encoding, data=data)


def _turned_axis(encoding: Encoding, turn: Turn, rank: int) -> Encoding | str:
    """Per-axis ``encoding`` of what is turned."""
    reason = f"a constant has {encoding.granularity.kind} scales along an axis that is put together with others"
    if encoding.block_size or encoding.axis is None:
        return reason
    order = turn.permutation or tuple(range(rank))
    axis = order.index(encoding.axis % rank)
    if turn.shape is not None and any(size != 0 for size in turn.shape[: axis + 1]):
        return reason
    return replace(encoding, axis=axis)


def _is_one(encoding: Encoding) -> bool:
    return len(encoding.scale) == 1 and not encoding.block_size


def _write_side(site: Site, side: _Side, paired: list[_Paired]) -> ir.Value:
    """One side of the product; ``paired`` grows by what a pair belongs to."""
    turn, value = side.turn, side.value
    dtype = dtype_of(value)
    if turn.permutation is None and turn.shape is None:
        return value
    if side.data is not None and side.dequantize is None and dtype is not None:
        return site.constant(_turned(side.data, turn), dtype, "operand")
    if side.data is not None and side.dequantize is not None and side.encoding is not None:
        stored = site.constant(_turned(side.data, turn), side.encoding.dtype, "operand")
        inputs, domain, axis = [stored, *side.dequantize.inputs[1:]], side.dequantize.domain, side.encoding.axis
        found = site("DequantizeLinear", *inputs, domain=domain, **({} if axis is None else {"axis": axis}))  # type: ignore[arg-type]
        found.type, found.shape = value.type, ir.Shape(turn.sizes)
        return found
    made = []
    if turn.permutation is not None:
        made.append(site.transpose(value, *turn.permutation))
    if turn.shape is not None:
        made.append(site.reshape(made[-1] if made else value, turn.shape))
    for new in made:
        new.type = value.type
    made[-1].shape = ir.Shape(turn.sizes)
    if side.encoding is not None and side.dequantize is not None:
        paired += [(new, side.encoding, side.dequantize.domain) for new in made]
    return made[-1]


def _drop(values: list[ir.Value | None]) -> None:
    """Take out what nobody reads any more: constants, and the DequantizeLinear before them."""
    for value in values:
        producer = value.producer() if value is not None else None
        if value is None or producer is None or not is_dequantize(producer) or value.uses() or value.is_graph_output():
            continue
        inputs = list(producer.inputs)
        remove(producer, "its constant is turned")
        drop_unread(inputs)
    drop_unread(values)


def _turned(data: npt.NDArray[Any], turn: Turn) -> npt.NDArray[Any]:
    if turn.permutation is not None:
        data = np.transpose(data, turn.permutation)
    if turn.shape is not None:
        data = data.reshape([data.shape[axis] if size == 0 else size for axis, size in enumerate(turn.shape)])
    return np.ascontiguousarray(data)


def _write_result(site: Site, node: ir.Node, product: ir.Value, turn: Turn, paired: list[_Paired]) -> ir.Value:
    """The result of the product; what is before it has the encoding that the result gets."""
    made = [product]
    reader = only_reader(node.outputs[0])
    if turn.shape is not None:
        made.append(site.reshape(made[-1], turn.shape))
    if turn.permutation is not None:
        made.append(site.transpose(made[-1], *turn.permutation))
    for new in made:
        new.type = product.type
    encoding = encoding_of(reader) if reader is not None and is_quantize(reader) else None
    if reader is not None and encoding is not None and _is_one(encoding) and reader.domain in _DOMAINS:
        paired += [(new, encoding, reader.domain) for new in made[:-1]]
    return made[-1]


def _words(form: Contraction) -> str:
    parts = {"batch": form.batch, "rows": form.rows, "columns": form.columns, "depth": form.depth}
    return ", ".join(f"{name} {labels}" for name, labels in parts.items() if labels)
