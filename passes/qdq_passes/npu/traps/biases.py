"""Traps of biases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.core.findings import Level
from qdq_passes.graph.uses import constant_array, dtype_of, is_standard
from qdq_passes.npu.traps.rule import Trap, TrapRule, trap
from qdq_passes.qdq.look.biases import product_at
from qdq_passes.qdq.look.grids import Numbers
from qdq_passes.qdq.look.seen import Seen, operand

#: Operators that add a bias (input 2) to sums of products.
SUMMING = ("Conv", "ConvTranspose", "Gemm")
#: Largest relative difference between s_b and s_x·s_w: it moves a bias of full range by a quarter of a step of 16 bits. Four
#: roundings of the scales' own float type are allowed besides, two factors, their product and its storage: 2^-9 in float16.
APART, ROUNDINGS = 2.0**-18, 4
HALF_STEP = {ir.DataType.FLOAT: 2.0**-24, ir.DataType.FLOAT16: 2.0**-11, ir.DataType.BFLOAT16: 2.0**-8}


@dataclass(frozen=True)
class BiasScale(TrapRule):
    """An int32 bias whose scale is not s_x·s_w, that of the sums it is added to.

    Operators on integers take the bias to have that scale (ONNX on QLinearConv), so it comes out multiplied by s_x·s_w / s_b.
    onnxruntime 1.31 makes an integer layer of it all the same up to a difference of one percent, and computes in float beyond.
    """

    def find(self, seen: Seen) -> Iterator[Trap]:
        """A Gemm with α = 1; β may be in the scale, as onnxruntime's quantizer puts it there."""
        for node in seen.nodes:
            grid = seen.read(node, 2) if is_standard(node, *SUMMING) else None
            if grid is None or grid.dtype != ir.DataType.INT32 or _factor(node, "alpha") != 1:
                continue
            dq = seen.dequantizer(node, 2)
            scale = operand(dq, 1) if dq is not None else None
            products = [product_at(node, 2, factor) for factor in dict.fromkeys((1.0, _factor(node, "beta")))]
            wanted = [np.array(p.scale, np.float64) for p in products if not isinstance(p, str)]
            if not wanted or scale is None or any(_is_near(grid.scale, w, dtype_of(scale)) for w in wanted):
                continue
            message = f"adds an int32 bias of scale {_least(grid.scale)} to sums of scale s_x·s_w = {_least(wanted[0])}"
            yield trap(node, message, "requantize it at s_x·s_w: qdqtool qdq convert --bias int32")


@dataclass(frozen=True)
class BiasSaturated(TrapRule):
    """An int32 bias with integers at the limit of int32: s_x·s_w is too small for it, and it was clipped."""

    def find(self, seen: Seen) -> Iterator[Trap]:
        """The stored integers."""
        limits = np.iinfo(np.int32)
        for node in seen.nodes:
            grid = seen.read(node, 2) if is_standard(node, *SUMMING) else None
            stored = (
                constant_array(seen.source(node, 2)) if grid is not None and grid.dtype == ir.DataType.INT32 else None
            )
            if stored is None or stored.dtype != np.int32:
                continue
            count = int(np.count_nonzero((stored == limits.min) | (stored == limits.max)))
            if count:
                message = f"{count} of {stored.size} integers of its bias are at the limit of int32: they were clipped"
                yield trap(node, message, "give the weight a larger scale, or leave the bias float")


@dataclass(frozen=True)
class Int8BiasFloat(TrapRule):
    """A bias of 8 bits with a scale of its own, for which the layer is computed in float."""

    level: ClassVar[Level] = "note"

    def find(self, seen: Seen) -> Iterator[Trap]:
        """Measured on HTP: 10 to 15 times slower, 98 % of the integers exact."""
        for node in seen.nodes:
            grid = seen.read(node, 2) if is_standard(node, *SUMMING) else None
            if grid is not None and grid.bits == 8:
                message = f"its bias is {grid.dtype.name.lower()}: dequantized, computed in float, quantized again"
                yield trap(node, message, "store it as int32 at s_x·s_w: qdqtool qdq convert --bias int32")


def _factor(node: ir.Node, name: str) -> float:
    """α or β of a Gemm; 1 elsewhere."""
    attribute = node.attributes.get(name)
    return 1.0 if node.op_type != "Gemm" or attribute is None or attribute.is_ref() else attribute.as_float()


def _is_near(have: Numbers, wanted: npt.NDArray[np.float64], dtype: ir.DataType | None) -> bool:
    if 1 not in (have.size, wanted.size) and have.size != wanted.size:
        return False
    roundings = ROUNDINGS * HALF_STEP.get(dtype or ir.DataType.FLOAT, 0.0)
    return bool(np.all(np.abs(have.ravel() - wanted.ravel()) <= (APART + roundings) * wanted.ravel()))


def _least(scale: npt.NDArray[Any]) -> str:
    many = f" to {scale.max():.6g}" if scale.size > 1 else ""
    return f"{scale.min():.6g}{many}"
