"""unify-widths

(q − z)·s = (2^d·q − 2^d·z)·s/2^d: d bits more change nothing. What moves elements commutes with rounding them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, graph_of, insert_after, new_constant
from qdq_passes.graph.uses import SHARING, all_nodes, constant_array, is_standard, label
from qdq_passes.npu.units.units import Operand, Unit, units_of
from qdq_passes.numerics.encoding import Encoding, is_integer_type
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.numerics.reencode import change_type, rounded_to
from qdq_passes.precision.edit.conversions import SUFFIX, Conversions
from qdq_passes.precision.look.boundaries import Input
from qdq_passes.qdq.edit.biases import drop_pair_of, follow_biases
from qdq_passes.qdq.edit.pairs import dequantize_node, parameters
from qdq_passes.qdq.look.biases import coupled_biases
from qdq_passes.qdq.look.pairs import half_pairs, qdq_pairs
from qdq_passes.select.selectors import ALL, Selector, select_nodes

#: Write elements of several inputs: what they read shall have the encoding of what they write. Scatters copy integers.
_JOINS, _SCATTERS = ("Concat",), ("ScatterElements", "ScatterND", "TensorScatter")
#: Multiply: the second factor may have a type of its own.
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class UnifyWidths(Pass):
    """Let each operator read and write activations of one type, the widest of them: chips compute mixtures in floating point.

    Graph: ``DQ8(x) → MatMul(w) → Q16`` → ``DQ8(x) → Q16 → DQ16 → MatMul(w) → Q16``; ``DQ16 → Mul → Q8`` →
    ``DQ16 → Mul → Q16 → DQ16 → Q8``; what moves elements moves them in the encoding that they come in, a Concat or a scatter
    in that which they leave in. Constants beside activations (not weights of products) are stored anew. Second factors keep
    their type.
    Requires: an opset whose QuantizeLinear knows both types.
    Keeps: names of inputs and outputs; integers read are the same numbers; what a narrower output rounds is rounded twice, the
    first time to 2^-8 steps. int32 biases at s_x·s_w follow.
    Skips: operators with one type; those that read or write floats, or more than one scale; other types than 8 and 16 bits.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="what is stored in 8 bits behind a 16-bit operator is rounded twice")
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Unit by unit; biases follow at the end."""
        wanted = select_nodes(model, self.select)
        names = {pair.dq: pair.tensor for pair in qdq_pairs(model)} | {h.node: h.tensor for h in half_pairs(model)}
        conversions, coupled = Conversions(model, Namer(model), names), coupled_biases(all_nodes(model))
        for unit in units_of(model):
            if unit.core in wanted and not unit.is_requantization and unit.is_quantized:
                yield from _unify(model, unit, conversions)
        yield from follow_biases(coupled, conversions.made, conversions.namer)


def _unify(model: ir.Model, unit: Unit, conversions: Conversions) -> Iterator[Change]:
    """One type for all that ``unit`` reads and writes."""
    node = unit.core
    data = [o for o in unit.operands if o.kind in ("activation", "constant")]
    if is_standard(node, *_PRODUCTS):
        data = data[:1]
    read = [o.encoding for o in data if o.encoding is not None]
    written = [r.encoding for r in unit.results if r.encoding is not None]
    if not read or not written:
        return
    if not all(map(_is_plain, (*read, *written))):
        yield skip(node, "it reads or writes other than integers of 8 and 16 bits with one scale")
        return
    if is_standard(node, *SHARING):
        yield from _write_as(unit, read[0], conversions)
    elif is_standard(node, *_SCATTERS):
        yield from _read_as(model, unit, written[0], conversions)
    elif len({encoding.dtype for encoding in (*read, *written)}) == 1:
        return
    elif is_standard(node, *_JOINS):
        yield from _read_as(model, unit, written[0], conversions, only=written[0].dtype)
    else:
        widest = max((encoding.dtype for encoding in (*written, *read)), key=lambda dtype: dtype.bitwidth)
        yield from _read_as(model, unit, widest, conversions, only=widest)
        yield from _write_as(unit, widest, conversions)


def _write_as(unit: Unit, wanted: Encoding | ir.DataType, conversions: Conversions) -> Iterator[Change]:
    """What ``unit`` writes stored as ``wanted`` before it is stored as it is now."""
    for result in unit.results:
        if result.encoding is None or result.quantize is None:
            continue
        new = _in(result.encoding, wanted)
        if _differs(result.encoding, new):
            yield conversions.write_as(result.quantize, new)


def _read_as(
    model: ir.Model,
    unit: Unit,
    wanted: Encoding | ir.DataType,
    conversions: Conversions,
    *,
    only: ir.DataType | None = None,
) -> Iterator[Change]:
    """What ``unit`` reads in another encoding than ``wanted`` (another type than ``only``) read as that."""
    node = unit.core
    for index, operand in enumerate(unit.operands[:1] if is_standard(node, *_PRODUCTS) else unit.operands):
        old, dq = operand.encoding, operand.dequantize
        if operand.kind not in ("activation", "constant") or old is None or dq is None or old.dtype == only:
            continue
        new = _in(old, wanted)
        if not _differs(old, new):
            continue
        data = _integers(operand) if operand.kind == "constant" else None
        if data is None:
            yield from conversions.connect_to(node, Input(index, dq, old.dtype), new)
        else:
            node.replace_input_with(
                index, _stored_anew(model, dq, quantize(dequantize(data, old), new), new, conversions)
            )
            yield Change("edit", label(node), f"reads {dq.outputs[0].name} as {new.dtype.name.lower()}")
        yield from drop_pair_of(dq)


def _integers(operand: Operand) -> npt.NDArray[Any] | None:
    """The integers of a constant."""
    if operand.quantize is None or operand.encoding is None:
        return constant_array(operand.integers)
    floats = constant_array(operand.quantize.inputs[0])
    return None if floats is None else quantize(floats, operand.encoding)


def _stored_anew(
    model: ir.Model, dq: ir.Node, integers: npt.NDArray[Any], new: Encoding, conversions: Conversions
) -> ir.Value:
    """A constant of ``integers`` behind a DequantizeLinear, beside that of ``dq``."""
    source, graph, namer = dq.outputs[0], graph_of(dq), conversions.namer
    base = namer.fresh(f"{source.name}{SUFFIX}")
    stored = new_constant(graph, namer, f"{base}_quantized", integers, [dq])
    scale, zero_point = parameters(graph, source, new, namer, base)
    made = dequantize_node(
        stored, scale, zero_point, new, namer, base=base, like=source, domain=dq.domain, stands_for=[dq]
    )
    insert_after(model, source, [made])
    return made.outputs[0]


def _in(old: Encoding, wanted: Encoding | ir.DataType) -> Encoding:
    """``wanted``, or ``old`` in that type."""
    return wanted if isinstance(wanted, Encoding) else rounded_to(change_type(old, wanted), np.float32)


def _differs(a: Encoding, b: Encoding) -> bool:
    return (a.dtype, a.scale[0], a.zero_point[0]) != (b.dtype, b.scale[0], b.zero_point[0])


def _is_plain(encoding: Encoding | None) -> bool:
    """Integers of 8 or 16 bits with one scale."""
    if encoding is None or not is_integer_type(encoding.dtype) or len(encoding.scale) != 1 or encoding.block_size:
        return False
    return encoding.dtype.bitwidth in (8, 16)
