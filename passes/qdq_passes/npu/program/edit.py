"""Surgery that turns a unit into operators of a program: integers flow where Q and DQ stood.

DQ(x), DQ(w) → Conv → Relu → Q → y   becomes   x, w → ai.qdqtool::Conv → y. The integers keep their names and types; pairs that
others read stay. Partition and device of the unit go over to what takes its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change
from qdq_passes.graph.annotate import TARGET
from qdq_passes.graph.edit import (
    Namer,
    drop_unread,
    graph_of,
    hand_over,
    make_node,
    move_annotations,
    new_constant,
    remove,
)
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import FLOAT_TYPES, is_standard, label
from qdq_passes.npu.program import DOMAIN, VERSION
from qdq_passes.npu.program.operands import encoded, requantized, same, step, stored_integers, zero
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding, is_wide

#: Attributes of an operator of ai.qdqtool by name: whole numbers, float32 numbers, words and lists of whole numbers.
Attribute = int | float | str | Sequence[int]
Attributes = Mapping[str, Attribute]


@dataclass(frozen=True, eq=False)
class Stored:
    """Data that become the constant ``<node>_<what>``."""

    what: str
    data: npt.NDArray[Any]


#: What an operator reads: integers of the unit, new constants, what was written before; None is left out.
Source = Operand | Stored | ir.Value | None

#: What a program stores types of less than a byte as.
_BYTES: Mapping[ir.DataType, type[np.generic]] = {ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8}


def bytes_of(operand: Operand) -> npt.NDArray[Any]:
    """`stored_integers` of a constant as a program holds them: those of 4 bits in bytes, of which kernels have no halves.

    Raises:
        NotComputable: its data are not known.
    """
    integers = stored_integers(operand)
    return integers.astype(_BYTES.get(encoded(operand).dtype, integers.dtype))


@dataclass(eq=False)
class Surgery:
    """Lowering of units, in one run of a pass.

    Args:
        model: the model.
        arithmetic: of the target.
    """

    model: ir.Model
    arithmetic: Arithmetic
    namer: Namer = field(init=False)
    _stored: dict[ir.Node, ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.namer = Namer(self.model)

    def replace(self, unit: Unit) -> Replacement:
        """Begin to replace ``unit``; nothing is changed before `Replacement.done`."""
        return Replacement(self, unit)

    def integers(self, operand: Operand) -> ir.Value:
        """The integers of ``operand``; those of a pair on a float constant become an initializer, once, and likewise `bytes_of`
        constants of 4 bits."""
        assert operand.dequantize is not None
        value = operand.dequantize.inputs[0]
        if operand.quantize is None and not (operand.constant and encoded(operand).dtype in _BYTES):
            assert value is not None
            return value
        made_from = operand.quantize or operand.dequantize
        if made_from not in self._stored:
            source = made_from.inputs[0]
            name = source.name if source is not None else "constant"
            self._stored[made_from] = new_constant(
                graph_of(made_from),
                self.namer,
                f"{name}_{'bytes' if operand.quantize is None else 'quantized'}",
                bytes_of(operand),
                [made_from],
            )
        return self._stored[made_from]


class Replacement:
    """What takes the place of one unit.

    Args:
        surgery: the run.
        unit: the unit.
    """

    def __init__(self, surgery: Surgery, unit: Unit) -> None:
        self._surgery, self.unit, self.arithmetic = surgery, unit, surgery.arithmetic
        self._nodes: list[ir.Node] = []
        named = unit.tail[0] if is_standard(unit.core, "Pad") and unit.tail else unit.core
        self._named, self._name = named, label(named)

    def integers(self, operand: Operand) -> ir.Value:
        """The integers of ``operand``."""
        return self._surgery.integers(operand)

    def taken(self, source: Source, *, turned: bool = False) -> ir.Value | None:
        """What ``source`` is in the graph; of a matrix that is ``turned`` the transpose, at once where its data are known."""
        if isinstance(source, Stored):
            return self.constant(source.what, source.data)
        if not isinstance(source, Operand):
            return source
        if not turned:
            return self.integers(source)
        if source.constant:
            return self.constant("weight", np.ascontiguousarray(bytes_of(source).T))
        value = self.integers(source)
        shape = None if value.shape is None else ir.Shape(list(value.shape)[::-1])
        return self.transposed(value, (1, 0), encoded(source).dtype, shape)

    def constant(self, what: str, data: npt.NDArray[Any]) -> ir.Value:
        """A constant called ``<node>_<what>``."""
        graph = graph_of(self.unit.core)
        return new_constant(graph, self._surgery.namer, f"{self._name}_{what}", data, self.unit.nodes)

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        dtype: ir.DataType,
        attributes: Attributes | Sequence[ir.Attr] = (),
        shape: ir.Shape | None = None,
        like: ir.Value | None = None,
        helps: bool = False,
    ) -> ir.Value:
        """A new operator; returns what it writes.

        Args:
            op_type: ``"Conv"`` of ai.qdqtool, ``"::Transpose"`` of the default one.
            inputs: its inputs; what is left out at the end is dropped.
            dtype: element type of its output.
            attributes: its attributes.
            shape: of its output; or
            like: a value of the same shape; unknown without either.
            helps: it only prepares or finishes: it is called ``<node>_<operator>``, where others have the name of the unit.
        """
        return self.nodes(
            op_type, inputs, count=1, dtype=dtype, attributes=attributes, shape=shape, like=like, helps=helps
        )[0]

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        count: int,
        dtype: ir.DataType,
        attributes: Attributes | Sequence[ir.Attr] = (),
        shape: ir.Shape | None = None,
        like: ir.Value | None = None,
        helps: bool = False,
    ) -> tuple[ir.Value, ...]:
        """`node` with ``count`` outputs."""
        domain, kind = ("", op_type[2:]) if op_type.startswith("::") else (DOMAIN, op_type)
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        namer = self._surgery.namer
        name = namer.fresh(f"{self._name}_{kind}") if helps else self._own_name()
        made = make_node(
            kind, given, name=name, output=namer.fresh(f"{name}_{_elements(dtype)}"), domain=domain,
            attributes=_attributes(attributes) if isinstance(attributes, Mapping) else attributes,
            stands_for=sorted(self.unit.nodes, key=lambda node: node is not self._named),
        )  # fmt: skip
        made.resize_outputs(count)
        known = shape if shape is not None else like.shape if like is not None else None
        for number, value in enumerate(made.outputs):
            value.name = value.name or namer.fresh(f"{name}_{_elements(dtype)}_{number}")
            value.type = ir.TensorType(dtype)
            value.shape = known.copy() if known is not None and count == 1 else None
        target = TARGET.get(self.unit.core)
        if target is not None:
            TARGET.set(made, target)
        self._nodes.append(made)
        return tuple(made.outputs)

    def transposed(
        self, x: ir.Value, permutation: Sequence[int], dtype: ir.DataType, shape: ir.Shape | None, *, helps: bool = True
    ) -> ir.Value:
        """``x`` with its axes in another order."""
        order = {"perm": permutation}
        return self.node("::Transpose", [x], dtype=dtype, attributes=order, shape=shape, helps=helps)

    def reshaped(
        self,
        x: ir.Value,
        wanted: Sequence[int],
        what: str,
        dtype: ir.DataType,
        shape: Sequence[int | str | ir.SymbolicDim | None],
        *,
        helps: bool = True,
    ) -> ir.Value:
        """``x`` in the shape that the constant ``<node>_<what>`` asks for, which makes ``shape`` of it."""
        inputs = [x, self.constant(what, np.array(wanted, np.int64))]
        return self.node("::Reshape", inputs, dtype=dtype, shape=ir.Shape(shape), helps=helps)

    def table(self, x: ir.Value, table: npt.NDArray[Any], axis: int | None = None, *, helps: bool = True) -> ir.Value:
        """``x`` looked up in ``table`` [n] or [C, n]."""
        attributes = {} if axis is None else {"axis": axis}
        dtype = ir.DataType.from_numpy(table.dtype)
        inputs = [x, self.constant("table", table)]
        return self.node("Lookup", inputs, dtype=dtype, attributes=attributes, like=x, helps=helps)

    def requantized(self, x: ir.Value, source: Encoding, target: Encoding, *, helps: bool = True) -> ir.Value:
        """``x``, integers of ``source``, as those of ``target``: looked up between 8 bits, computed where one of them has 16;
        ``x`` itself where nothing changes."""
        if same(source, target):
            return x
        if not is_wide(source.dtype) and not is_wide(target.dtype):
            return self.table(x, requantized(source, target, self.arithmetic), helps=helps)
        attributes: Attributes = {
            "x_zero_point": zero(source), "x_scale": step(source), "y_zero_point": zero(target), "y_scale": step(target),
            "y_type": int(target.dtype), "rounding": self.arithmetic.rounding,
        }  # fmt: skip
        return self.node("Requantize", [x], dtype=target.dtype, attributes=attributes, like=x, helps=helps)

    def done(self, written: ir.Value | Sequence[ir.Value]) -> Change:
        """Let ``written`` be the integers of the unit's results, in their order and under their names, and take the unit out."""
        results, pairs = self.unit.results, []
        for result, value in zip(results, [written] if isinstance(written, ir.Value) else written, strict=True):
            assert result.quantize is not None
            old = result.quantize.outputs[0]
            for known in (old, result.value):
                if value.shape is None and known.shape is not None:
                    value.shape = known.shape.copy()
            pairs.append((old, value))
        return self.handed_over(pairs, [r.quantize for r in results if r.quantize not in (None, self.unit.core)])

    def handed_over(self, written: Sequence[tuple[ir.Value, ir.Value]], gone: Sequence[ir.Node]) -> Change:
        """Take the unit and ``gone`` (what reads nothing but it) out; each pair of ``written`` is a value of theirs that is read
        elsewhere, and what takes its place and name."""
        unit, namer = self.unit, self._surgery.namer
        graph_of(unit.core).insert_before(unit.core, self._nodes)
        read = [value for node in (*gone, *unit.nodes) for value in node.inputs]
        for old, new in written:
            if new.shape is None and old.shape is not None:
                new.shape = old.shape.copy()
            move_annotations(old, new)
            hand_over(old, new, namer)
        because = f"lowered to {' and '.join(dict.fromkeys(_word(node) for node in self._nodes))}"
        remove([*gone, *reversed(unit.nodes)], because)
        _drop_sources(read, because)
        if any(node.domain == DOMAIN for node in self._nodes):
            self._surgery.model.opset_imports.setdefault(DOMAIN, VERSION)
        return Change("replace", self._name, because)

    def _own_name(self) -> str:
        namer, name = self._surgery.namer, self._named.name
        if name and not any(node.name == name for node in self._nodes):
            namer.release(name)
        return namer.fresh(self._name)


def _elements(dtype: ir.DataType) -> str:
    return "numbers" if dtype in FLOAT_TYPES else "integers"


def _drop_sources(waiting: list[ir.Value | None], because: str) -> None:
    """Remove what writes the values ``waiting`` where nobody reads them: DequantizeLinear, pairs on constants, constants."""
    unread: list[ir.Value | None] = []
    while waiting:
        value = waiting.pop()
        producer = value.producer() if value is not None else None
        if value is None or producer is None or producer.graph is None or not _is_half(producer):
            unread.append(value)
        elif not any(output.uses() or output.is_graph_output() for output in producer.outputs):
            waiting += producer.inputs
            remove(producer, because)
    drop_unread(unread)


def _is_half(node: ir.Node) -> bool:
    return is_quantize(node) or is_dequantize(node)


def _word(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _attributes(values: Attributes) -> list[ir.Attr]:
    made: list[ir.Attr] = []
    for name, value in values.items():
        if isinstance(value, str):
            made.append(ir.AttrString(name, value))
        elif isinstance(value, float):
            made.append(ir.AttrFloat32(name, value))
        elif isinstance(value, int):
            made.append(ir.AttrInt64(name, value))
        else:
            made.append(ir.AttrInt64s(name, [int(v) for v in value]))
    return made
