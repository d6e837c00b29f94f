"""Surgery that turns a unit into operators of a program: integers flow where Q and DQ stood.

DQ(x), DQ(w) → Conv → Relu → Q → y   becomes   x, w → ai.qdqtool::Conv → y. The integers keep their names and types; pairs that
others read stay. Partition and device of the unit go over to what takes its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.analysis.plans.operands import same, step, stored_integers, zero
from qdq_passes.analysis.plans.tables import requantized
from qdq_passes.analysis.program_operators import DOMAIN, VERSION
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
from qdq_passes.npu.units.units import Operand, Result, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding, is_wide

#: What a program stores types of less than a byte as.
_BYTES: Mapping[ir.DataType, type[np.generic]] = {ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8}


def bytes_of(operand: Operand) -> npt.NDArray[Any]:
    """`stored_integers` of a constant as a program holds them: those of 4 bits in bytes, of which kernels have no halves.

    Raises:
        NotComputable: its data are not known.
    """
    assert operand.encoding is not None
    integers = stored_integers(operand)
    return integers.astype(_BYTES.get(operand.encoding.dtype, integers.dtype))


@dataclass(eq=False)
class Surgery:
    """Lowering of units, in one run of a pass.

    Args:
        model: the model.
    """

    model: ir.Model
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
        assert operand.encoding is not None
        value = operand.dequantize.inputs[0]
        if operand.quantize is None and not (operand.constant and operand.encoding.dtype in _BYTES):
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
        self._surgery, self._unit = surgery, unit
        self._nodes: list[ir.Node] = []
        named = unit.tail[0] if is_standard(unit.core, "Pad") and unit.tail else unit.core
        self._named, self._name = named, label(named)

    def integers(self, operand: Operand) -> ir.Value:
        """The integers of ``operand``."""
        return self._surgery.integers(operand)

    def constant(self, what: str, data: npt.NDArray[Any]) -> ir.Value:
        """A constant called ``<node>_<what>``."""
        graph = graph_of(self._unit.core)
        return new_constant(graph, self._surgery.namer, f"{self._name}_{what}", data, self._unit.nodes)

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        dtype: ir.DataType,
        attributes: Sequence[ir.Attr] = (),
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
        attributes: Sequence[ir.Attr] = (),
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
            kind, given, name=name, output=namer.fresh(f"{name}_{_elements(dtype)}"), domain=domain, attributes=attributes,
            stands_for=sorted(self._unit.nodes, key=lambda node: node is not self._named),
        )  # fmt: skip
        made.resize_outputs(count)
        known = shape if shape is not None else like.shape if like is not None else None
        for number, value in enumerate(made.outputs):
            value.name = value.name or namer.fresh(f"{name}_{_elements(dtype)}_{number}")
            value.type = ir.TensorType(dtype)
            value.shape = known.copy() if known is not None and count == 1 else None
        target = TARGET.get(self._unit.core)
        if target is not None:
            TARGET.set(made, target)
        self._nodes.append(made)
        return tuple(made.outputs)

    def table(
        self, x: ir.Value, table: npt.NDArray[Any] | None, axis: int | None = None, *, helps: bool = True
    ) -> ir.Value:
        """``x`` looked up in ``table`` [256] or [C, 256]; ``x`` itself without one."""
        if table is None:
            return x
        attributes = [] if axis is None else [ir.AttrInt64("axis", axis)]
        dtype = ir.DataType.from_numpy(table.dtype)
        return self.node(
            "Lookup", [x, self.constant("table", table)], dtype=dtype, attributes=attributes, like=x, helps=helps
        )

    def requantized(
        self, x: ir.Value, source: Encoding, target: Encoding, arithmetic: Arithmetic, *, helps: bool = True
    ) -> ir.Value:
        """``x``, integers of ``source``, as those of ``target``: looked up between 8 bits, computed where one of them has 16;
        ``x`` itself where nothing changes."""
        if same(source, target):
            return x
        if not is_wide(source.dtype) and not is_wide(target.dtype):
            return self.table(x, requantized(source, target, arithmetic), helps=helps)
        attributes = attributes_of({
            "x_zero_point": zero(source), "x_scale": step(source), "y_zero_point": zero(target), "y_scale": step(target),
            "y_type": int(target.dtype), "rounding": arithmetic.rounding,
        })  # fmt: skip
        return self.node("Requantize", [x], dtype=target.dtype, attributes=attributes, like=x, helps=helps)

    def done(self, *written: ir.Value) -> Change:
        """Let ``written`` be the results of the unit, in their order, and take the unit out."""
        unit, namer = self._unit, self._surgery.namer
        graph_of(unit.core).insert_before(unit.core, self._nodes)
        for result, value in zip(unit.results, written, strict=True):
            _take_over(result, value, namer)
        because = f"lowered to {' and '.join(dict.fromkeys(_word(node) for node in self._nodes))}"
        quantizers = [r.quantize for r in unit.results if r.quantize is not None and r.quantize is not unit.core]
        read = [value for node in (*quantizers, *unit.nodes) for value in node.inputs]
        remove([*quantizers, *reversed(unit.nodes)], because)
        _drop_sources(read, because)
        if any(node.domain == DOMAIN for node in self._nodes):
            self._surgery.model.opset_imports.setdefault(DOMAIN, VERSION)
        return Change("replace", self._name, because)

    def handed_over(self, written: Sequence[tuple[ir.Value, ir.Value]], gone: Sequence[ir.Node]) -> Change:
        """Take the unit and ``gone`` (what reads nothing but it) out; each pair of ``written`` is a value of theirs that is read
        elsewhere, and what takes its place and name."""
        unit, namer = self._unit, self._surgery.namer
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


def _take_over(result: Result, value: ir.Value, namer: Namer) -> None:
    """Let ``value`` be the integers of ``result``, under their name, with the shape of the float."""
    assert result.quantize is not None
    old = result.quantize.outputs[0]
    for known in (old, result.value):
        if value.shape is None and known.shape is not None:
            value.shape = known.shape.copy()
    move_annotations(old, value)
    hand_over(old, value, namer)


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


def attributes_of(values: Mapping[str, int | float | str | Sequence[int]]) -> list[ir.Attr]:
    """Attributes of an operator of ai.qdqtool: whole numbers, float32 numbers, words and lists of whole numbers."""
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
