"""Traps of single scales, and of biases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.findings import Level
from qdq_passes.graph.sizes import known_rank
from qdq_passes.graph.uses import constant_array, dtype_of, input_at, integer_of, is_constant, is_standard
from qdq_passes.npu.traps.rule import PairView, Trap, TrapRule, selected, trap
from qdq_passes.qdq.look.biases import product_at
from qdq_passes.qdq.look.grids import Numbers

#: A model is meant to have powers of two only when at most this share of its scales are none, of at least so many.
FEW, ENOUGH = 0.1, 5
SMALLEST_NORMAL = {ir.DataType.FLOAT: 2.0**-126, ir.DataType.BFLOAT16: 2.0**-126, ir.DataType.FLOAT16: 2.0**-14}


@dataclass(frozen=True)
class ScaleNoPowerOfTwo(TrapRule):
    """One scale that is no power of two, in a model where nearly all are.

    A backend that shifts rounds it to one, by a factor of up to sqrt(2); the model goes on with the scale it has.
    """

    def find(self, view: PairView) -> Iterator[Trap]:
        """Count first."""
        linears = view.linears()
        odd = [(node, grid) for node, grid in linears if not grid.is_pow2]
        if len(linears) < ENOUGH or len(odd) > FEW * len(linears):
            return
        for node, grid in odd:
            message = f"has the {_scale_words(grid.scale)}, no power of two; {len(linears) - len(odd)} others are powers of two"
            yield trap(node, message, "round it: `qdqtool opt -p round-scales-pow2`")


@dataclass(frozen=True)
class SubnormalScale(TrapRule):
    """A scale below the smallest normal number of its float type, which many NPUs and GPUs take for 0."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """float32 and bfloat16: 2^-126; float16: 2^-14."""
        for node, grid in view.linears():
            scale = input_at(node, 1)
            dtype = dtype_of(scale) if scale is not None else None
            if dtype is None or dtype not in SMALLEST_NORMAL:
                continue
            tiny = SMALLEST_NORMAL[dtype]
            count = int(np.count_nonzero((grid.scale > 0) & (grid.scale < tiny)))
            if count:
                which = "its scale is" if grid.is_per_tensor else f"{count} of {grid.scale.size} scales are"
                message = f"{which} below {tiny:.3g}, the smallest normal {dtype.name.lower()}"
                yield trap(
                    node, message, "no pass is known that raises it without saturating: give dead channels the scale 1"
                )


@dataclass(frozen=True)
class ScaleAlongSummedAxis(TrapRule):
    """Scales along an axis over which the operator sums: no sum of integers can hold that, so it is computed in float."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Weights of Conv, ConvTranspose, Gemm, MatMul, and activations with a scale per channel."""
        for node in view.nodes:
            for index in (0, 1) if is_standard(node, "Conv", "ConvTranspose", "Gemm", "MatMul") else ():
                grid, rank = view.read(node, index), known_rank(view.source(node, index))
                if grid is None or grid.is_per_tensor or grid.block_size or grid.axis is None or rank is None:
                    continue
                if not -rank <= grid.axis < rank or grid.axis % rank not in _summed(node, index, rank):
                    continue
                what = "weight" if is_constant(view.source(node, index)) else "input"
                message = (
                    f"its {what} has {grid.scale.size} scales along axis {grid.axis}, over which {node.op_type} sums"
                )
                kept = sorted(set(range(rank)) - _summed(node, index, rank))
                pair, along = selected(view.dequantizer(node, index)), f"--per-axis --axis {kept[-1]}" if kept else ""
                way = along if what == "weight" and along else "--per-tensor"
                yield trap(node, message, f"quantize it otherwise: `qdqtool qdq convert {pair} {way}`")


@dataclass(frozen=True)
class BlockedUint4ZeroPoint(TrapRule):
    """Blocked uint4 weights with zero points, which the backend does not subtract."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """Weights only; int4 has none of it."""
        for node, grid in view.linears():
            if grid.dtype == ir.DataType.UINT4 and grid.block_size and np.any(grid.zero_point):
                message = f"its zero points, up to {grid.zero_point.max():g}, are not subtracted: the weights come out too large"
                yield trap(node, message, f"store it as int4: `qdqtool qdq convert {selected(node)} --dtype int4`")


def _summed(node: ir.Node, index: int, rank: int) -> set[int]:
    """Axes of operand ``index`` (of ``rank`` dimensions) over which ``node`` sums. With several groups, what it sums of a group.

    Conv: X [N, C, …], W [M, C/g, …]; ConvTranspose: W [C, M/g, …]; Gemm: A [M, K], B [K, N]; MatMul: A […, M, K], B […, K, N].
    """
    if node.op_type in ("Conv", "ConvTranspose"):
        grouped = integer_of(node, "group", 1) > 1
        if index == 0:
            return set() if grouped else {1}
        channels = 1 if node.op_type == "Conv" else 0
        return set(range(2, rank)) | (set() if grouped and channels == 0 else {channels})
    if node.op_type == "Gemm":
        is_transposed = integer_of(node, "transB" if index else "transA", 0) != 0
        return {int(is_transposed) if index else int(not is_transposed)}
    return {max(rank - 2, 0)} if index else {rank - 1}


def _scale_words(scale: Numbers) -> str:
    return (
        f"scale {scale.ravel()[0]:.6g}"
        if scale.size == 1
        else f"{scale.size} scales {scale.min():.6g} to {scale.max():.6g}"
    )


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

    def find(self, view: PairView) -> Iterator[Trap]:
        """A Gemm with α = 1; β may be in the scale, as onnxruntime's quantizer puts it there."""
        for node in view.nodes:
            grid = view.read(node, 2) if is_standard(node, *SUMMING) else None
            if grid is None or grid.dtype != ir.DataType.INT32 or _factor(node, "alpha") != 1:
                continue
            dq = view.dequantizer(node, 2)
            scale = input_at(dq, 1) if dq is not None else None
            products = [product_at(node, 2, factor) for factor in dict.fromkeys((1.0, _factor(node, "beta")))]
            wanted = [np.array(p.scale, np.float64) for p in products if not isinstance(p, str)]
            if not wanted or scale is None or any(_is_near(grid.scale, w, dtype_of(scale)) for w in wanted):
                continue
            message = f"adds an int32 bias of scale {_least(grid.scale)} to sums of scale s_x·s_w = {_least(wanted[0])}"
            yield trap(node, message, "requantize it at s_x·s_w: `qdqtool qdq convert --bias int32`")


@dataclass(frozen=True)
class BiasSaturated(TrapRule):
    """An int32 bias with integers at the limit of int32: s_x·s_w is too small for it, and it was clipped."""

    def find(self, view: PairView) -> Iterator[Trap]:
        """The stored integers."""
        limits = np.iinfo(np.int32)
        for node in view.nodes:
            grid = view.read(node, 2) if is_standard(node, *SUMMING) else None
            stored = (
                constant_array(view.source(node, 2)) if grid is not None and grid.dtype == ir.DataType.INT32 else None
            )
            if stored is None or stored.dtype != np.int32:
                continue
            count = int(np.count_nonzero((stored == limits.min) | (stored == limits.max)))
            if count:
                message = f"{count} of {stored.size} integers of its bias are at the limit of int32: they were clipped"
                yield trap(
                    node,
                    message,
                    "no pass is known that brings back what was clipped: quantize with a larger scale of the weight",
                )


@dataclass(frozen=True)
class Int8BiasFloat(TrapRule):
    """A bias of 8 bits with a scale of its own, for which the layer is computed in float."""

    level: ClassVar[Level] = "note"

    def find(self, view: PairView) -> Iterator[Trap]:
        """Measured on HTP: 10 to 15 times slower, 98 % of the integers exact."""
        for node in view.nodes:
            grid = view.read(node, 2) if is_standard(node, *SUMMING) else None
            if grid is not None and grid.bits == 8:
                message = f"its bias is {grid.dtype.name.lower()}: dequantized, computed in float, quantized again"
                yield trap(node, message, "store it as int32 at s_x·s_w: `qdqtool qdq convert --bias int32`")


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
