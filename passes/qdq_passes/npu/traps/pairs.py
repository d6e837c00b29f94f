"""Traps of pairs that do not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Level, place
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantization, is_quantize, is_quantize_dequantize
from qdq_passes.graph.uses import DATA_MOVEMENT, all_values, input_at, is_constant, is_standard
from qdq_passes.npu.traps.rule import PairView, Trap, TrapRule, one_encoding, selected, trap

#: Operators that compute with their operands element by element, or join them; and which operands that are.
MEETING = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Concat"), 0),
    "Where": 1,
}  # fmt: skip
#: Operators that move elements, and those that keep integers integers on the way.
MOVING = ("Concat", "Gather", "MaxPool", "Pad", *sorted(DATA_MOVEMENT - {"Gather"}))
#: Readers that ask for the shape of a value only.
SHAPE_ONLY = ("Shape", "Size")


@dataclass(frozen=True)
class MixedWidths(TrapRule):
    """An operator that reads activations of different widths, 8 bits and 16, with no pair that converts one of them.

    Integer operators take operands of one type; the backend casts one down, computes in float, or leaves the node to the CPU.
    """

    def find(self, view: PairView) -> Iterator[Trap]:
        """Operators on equal operands; a MatMul of 8 and 16 bits is one that backends have."""
        for node in view.nodes:
            first = MEETING.get(node.op_type) if is_standard(node, *MEETING) else None
            if first is None:
                continue
            found = [
                (node.inputs[i], grid)
                for i in range(first, len(node.inputs))
                if (grid := view.read(node, i)) is not None and view.is_activation(node, i)
            ]
            if len({grid.bits for _, grid in found}) > 1:
                shown = ", ".join(dict.fromkeys(grid.dtype.name.lower() for _, grid in found))
                message = f"reads activations of different widths: {shown}"
                yield trap(node, message, "insert the converting pair: `qdqtool opt -p convert-boundaries`")


@dataclass(frozen=True)
class RequantizedAlone(TrapRule):
    """A pair right behind a pair, of one type: rounds twice, or does nothing at all."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """Pairs of two types convert at the border of 8 and 16 bits, and are meant."""
        for node in view.nodes:
            if not (is_quantize(node) or is_quantize_dequantize(node)):
                continue
            before, after = view.read(node, 0), view.grid(node)
            if before is None or after is None or before.dtype != after.dtype or not view.is_activation(node, 0):
                continue
            if before.matches(after):
                yield trap(node, "quantizes again to the grid its input is on already", "remove it: `qdqtool qdq fold`")
            else:
                message = f"rounds a second time: its input is {before}; it makes {after}"
                yield trap(
                    node,
                    message,
                    f"give the tensor one encoding: {one_encoding(node.inputs[0], before)}, then `qdqtool qdq fold`",
                )


@dataclass(frozen=True)
class SeveralEncodings(TrapRule):
    """A value with several pairs of one type and different scales: its readers compute with different numbers."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """Values of two widths are quantized twice on purpose."""
        for value in all_values(view.model):
            grids = view.written(value)
            different = [
                b for i, b in enumerate(grids) if any(a.dtype == b.dtype and not a.matches(b) for a in grids[:i])
            ]
            if different:
                message = f"is quantized to {grids[0]} for some readers, to {different[0]} for others"
                share = f"`qdqtool qdq share {selected(value)}`"
                yield trap(value, message, f"give them one encoding: {one_encoding(value, grids[0])}, then {share}")


@dataclass(frozen=True)
class ReadBesideItsPair(TrapRule):
    """A value that some operators read quantized and others as float: on a backend of integers it exists once."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """Activations; a graph output that is float beside its pair is what the model returns, and what a DequantizeLinear writes
        is quantized for those too who read it as it is."""
        for value in all_values(view.model):
            producer = value.producer()
            is_quantized = producer is not None and is_quantization(producer)
            readings = [] if is_constant(value) or is_quantized else view.readings(value)
            straight = [r.node for r in readings if r.dq is None and not is_standard(r.node, *SHAPE_ONLY)]
            paired = [r.node for r in readings if r.dq is not None]
            straight = [node for node in straight if not is_quantization(node)]
            if straight and paired:
                message = f"is read quantized by {place(paired[0])} and as float by {place(straight[0])}"
                yield trap(value, message, f"let both read the float value: `qdqtool qdq remove {selected(value)}`")


@dataclass(frozen=True)
class SplitPair(TrapRule):
    """Operators between a Q and its DQ: few compilers take the two for a pair, the rest computes in float."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """Operators that move integers; integer arithmetic in between is another format of model, and is meant."""
        for node in view.nodes:
            value = input_at(node, 0) if is_dequantize(node) else None
            moved: list[ir.Node] = []
            while value is not None and (producer := value.producer()) is not None and is_standard(producer, *MOVING):
                moved.append(producer)
                value = input_at(producer, 0)
            source = value.producer() if value is not None else None
            if moved and source is not None and is_quantize(source):
                message = f"{place(moved[0])} stands between it and its QuantizeLinear {place(source)}"
                yield trap(node, message, "bring them together: `qdqtool qdq convert --qoperators`")


@dataclass(frozen=True)
class MovementRequantizes(TrapRule):
    """An operator that only moves elements, with another scale behind it than before: backends move the integers as they are."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Pairs of one type, per tensor; HTP was seen to copy the integers of a ScatterElements so. A Flatten between powers
        of two is left alone: the Vitis line gives its output a scale of its own, and shifts there."""
        for node in view.nodes:
            before = view.read(node, 0) if is_standard(node, "MaxPool", *DATA_MOVEMENT) else None
            if before is None or not before.is_per_tensor or (is_standard(node, "Flatten") and before.is_pow2):
                continue
            for value in node.outputs[:1] if node.op_type == "MaxPool" else node.outputs:
                after = next((g for g in view.written(value) if g.dtype == before.dtype and g.is_per_tensor), None)
                if after is not None and not after.matches(before):
                    message = f"moves elements, yet its input is {before} and its output {after}"
                    yield trap(node, message, f"give both one encoding: {one_encoding(value, before)}")
                    break
