"""Traps of single operators and rotary embeddings. Only where a target lists them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Level
from qdq_passes.decoder.look.rotary_angles import Angles, rotary_angles
from qdq_passes.graph.uses import FLOAT_TYPES, dtype_of, input_at, integers_of, is_standard, text_of
from qdq_passes.npu.traps.rule import ANEW, PairView, Trap, TrapRule, one_encoding, selected, trap
from qdq_passes.qdq.look.grids import Grid

WITHOUT = "no pass is known that replaces it: write it with other operators, or leave it to the CPU"
_UNIT = "`qdqtool qdq set %s --scale 0.00390625 --zero-point 0 --dtype uint8`"


@dataclass(frozen=True)
class SoftmaxSymmetricOutput(TrapRule):
    """A Softmax that writes int8 with zero point 0: every value comes out 128 steps too low."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP, also for power-of-two scales."""
        for node in view.nodes:
            grids = view.written(node.outputs[0]) if is_standard(node, "Softmax") else []
            if any(grid.dtype == ir.DataType.INT8 and grid.is_middle for grid in grids):
                message = "writes int8 with zero point 0: every value comes out 128 steps too low"
                yield trap(node, message, f"its range is 0 to 1: {_UNIT % selected(node.outputs[0])}")


@dataclass(frozen=True)
class ScatterRequantize(TrapRule):
    """A ScatterElements (or Scatter, its old name) with another scale behind it than before: integers are copied as they are."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP for ScatterElements."""
        for node in view.nodes:
            if is_standard(node, "ScatterElements", "Scatter") and (pair := _unlike(view, node)) is not None:
                message = f"reads {pair[0]} and writes {pair[1]}: elements it does not replace keep their integers"
                yield trap(
                    node, message, f"give input and output one encoding: {one_encoding(node.outputs[0], pair[0])}"
                )


@dataclass(frozen=True)
class AveragePoolRequantize(TrapRule):
    """An AveragePool of more than 3×3 with another scale behind it than before: the sums saturate."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP: up to 41 steps for 4×4; 2×2, 3×3 and the global pool are right."""
        for node in view.nodes:
            kernel = integers_of(node, "kernel_shape") if is_standard(node, "AveragePool") else []
            if math.prod(kernel) > 9 and (pair := _unlike(view, node)) is not None:
                shown = "×".join(map(str, kernel))
                message = f"averages {shown} elements from {pair[0]} to {pair[1]}: its sums saturate"
                hint = f"give input and output one encoding: {one_encoding(node.outputs[0], pair[0])}"
                yield trap(node, message, f"{hint}; or {ANEW}, which pools by a Conv")


@dataclass(frozen=True)
class AveragePoolPadsFloat(TrapRule):
    """An AveragePool with pads on floats: all outputs are 0."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP; quantized it is right."""
        for node in view.nodes:
            if not is_standard(node, "AveragePool") or view.read(node, 0) is not None:
                continue
            source = input_at(node, 0)
            is_padded = any(integers_of(node, "pads")) or text_of(node, "auto_pad", "NOTSET").startswith("SAME")
            if is_padded and source is not None and (dtype_of(source) or ir.DataType.FLOAT) in FLOAT_TYPES:
                yield trap(node, "pads, and reads floats: its outputs are all 0", ANEW)


@dataclass(frozen=True)
class ResizeRequantize(TrapRule):
    """A linear or cubic Resize with another scale behind it than before: it is computed in float."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP. The power-of-two cells stay on integers for their scales are equal, not for being powers."""
        for node in view.nodes:
            if is_standard(node, "Resize") and text_of(node, "mode", "nearest") != "nearest":
                pair = _unlike(view, node)
                if pair is not None:
                    message = f"reads {pair[0]} and writes {pair[1]}: it is computed in float"
                    yield trap(
                        node, message, f"give input and output one encoding: {one_encoding(node.outputs[0], pair[0])}"
                    )


@dataclass(frozen=True)
class LayerNormParameters(TrapRule):
    """A quantized LayerNormalization whose gain is no 8-bit weight, or whose bias is not int32: it is computed in float."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP."""
        for node in view.nodes:
            if not is_standard(node, "LayerNormalization") or view.read(node, 0) is None:
                continue
            gain, bias = view.read(node, 1), view.read(node, 2)
            has_bias = input_at(node, 2) is not None
            if gain is None or gain.bits != 8:
                what = f"its gain is {gain.dtype.name.lower() if gain is not None else 'float'}"
            elif has_bias and (bias is None or bias.dtype != ir.DataType.INT32):
                what = f"its bias is {bias.dtype.name.lower() if bias is not None else 'float'}"
            else:
                continue
            yield trap(
                node,
                f"{what}: it is computed in float",
                f"{ANEW}, which stores the gain in 8 bits and the bias as int32",
            )


@dataclass(frozen=True)
class MatmulInt16Narrowed(TrapRule):
    """A MatMul of two activations of 16 bits: the second is cut down to 8."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP: up to 409 steps of 65536."""
        for node, grids in _products(view):
            if all(grid.bits == 16 for grid in grids):
                message = "multiplies two activations of 16 bits: the second is converted to 8 bits on the way"
                yield trap(node, message, "narrow it where you can compare: `qdqtool opt -p narrow-second-factors`")


@dataclass(frozen=True)
class SignedMatmulFloat(TrapRule):
    """A MatMul of two int8 activations: computed by a slow kernel that rounds otherwise."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP: ten times slower than uint8, half to even."""
        for node, grids in _products(view):
            if all(grid.dtype == ir.DataType.INT8 for grid in grids):
                message = "multiplies two int8 activations: a slow kernel that rounds half to even"
                pairs = selected(view.dequantizer(node, 0), view.dequantizer(node, 1))
                yield trap(
                    node,
                    message,
                    f"convert them: `qdqtool qdq convert {pairs} --dtype uint8`",
                )


@dataclass(frozen=True)
class UnreliableOperator(TrapRule):
    """An operator that computes something else on this backend, for these element types.

    Args:
        types: standard operators bare, others as domain::type.
        elements: storage types of what it reads or writes, or float types; any when empty.
    """

    types: tuple[str, ...]
    elements: tuple[str, ...] = ()

    def find(self, view: PairView) -> Iterator[Trap]:
        """By what it reads first, and writes first."""
        for node, element in _of_types(view, self.types, self.elements):
            message = f"{node.op_type} on {element} computes something else on this target"
            yield trap(
                node,
                message,
                WITHOUT,
            )


@dataclass(frozen=True)
class FloatOperator(TrapRule):
    """An operator that is taken, but computed in float.

    Args:
        types: standard operators bare, others as domain::type.
        elements: storage types of what it reads or writes; any when empty.
    """

    level: ClassVar[Level] = "note"
    types: tuple[str, ...]
    elements: tuple[str, ...] = ()

    def find(self, view: PairView) -> Iterator[Trap]:
        """By what it reads first, and writes first; what is float already is not meant."""
        for node, element in _of_types(view, self.types, self.elements):
            if view.read(node, 0) is not None:
                yield trap(
                    node,
                    f"{node.op_type} on {element} is computed in float",
                    WITHOUT,
                )


def _unlike(view: PairView, node: ir.Node) -> tuple[Grid, Grid] | None:
    """The grid ``node`` reads first and one that it writes, where they differ."""
    before = view.read(node, 0)
    if before is None:
        return None
    return next(((before, after) for after in view.written(node.outputs[0]) if not after.matches(before)), None)


def _products(view: PairView) -> Iterator[tuple[ir.Node, list[Grid]]]:
    """Every MatMul of two quantized activations, with their grids."""
    for node in view.nodes:
        if is_standard(node, "MatMul") and all(view.is_activation(node, i) for i in (0, 1)):
            grids = [grid for i in (0, 1) if (grid := view.read(node, i)) is not None]
            if len(grids) == 2:
                yield node, grids


def _of_types(view: PairView, types: tuple[str, ...], elements: tuple[str, ...]) -> Iterator[tuple[ir.Node, str]]:
    """Every node of ``types`` that reads or writes one of ``elements``, with the first that it does."""
    for node in view.nodes:
        domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}::"
        if f"{domain}{node.op_type}" not in types:
            continue
        found = [grid.dtype for grid in [view.read(node, 0), *view.written(node.outputs[0])] if grid is not None]
        source = input_at(node, 0)
        if not found and source is not None and (dtype := dtype_of(source)) is not None:
            found = [dtype]
        names = [dtype.name.lower() for dtype in found]
        element = next((name for name in names if name in elements), None) if elements else (names or ["any type"])[0]
        if element is not None:
            yield node, element


_TABLE = "`qdqtool split --tabulate-angles`; of a static decoder `qdqtool opt -p 'tabulate-rotary-angles{context=N}'`"


@dataclass(frozen=True)
class HalfAngles(TrapRule):
    """A Cos or Sin of positions, computed in 16-bit floats: angles grow with the position, and lose their fraction.

    Float16 has 11 bits: angles from 1024 on are whole numbers of radians. Bfloat16 has 8: from 128 on."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """What follows from positions alone and has no pair before it; the main graph."""
        for found in rotary_angles(view.model.graph):
            if not isinstance(found, Angles):
                continue
            for node in found.trigonometry:
                if view.read(node, 0) is None:
                    message = f"computes angles of {found.source.name} in 16-bit floats: they lose their fraction"
                    yield trap(node, message, f"look them up by position: {_TABLE}")
