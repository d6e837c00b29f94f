"""Traps of single scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes.core.findings import Level
from qdq_passes.graph.attributes import integer_of
from qdq_passes.graph.uses import dtype_of, is_constant, is_standard
from qdq_passes.npu.traps.rule import Trap, TrapRule, trap
from qdq_passes.qdq.look.grids import Numbers
from qdq_passes.qdq.look.seen import Seen, operand, rank_of

#: A model is meant to have powers of two only when at most this share of its scales are none, of at least so many.
FEW, ENOUGH = 0.1, 5
SMALLEST_NORMAL = {ir.DataType.FLOAT: 2.0**-126, ir.DataType.BFLOAT16: 2.0**-126, ir.DataType.FLOAT16: 2.0**-14}


@dataclass(frozen=True)
class ScaleNoPowerOfTwo(TrapRule):
    """One scale that is no power of two, in a model where nearly all are.

    A backend that shifts rounds it to one, by a factor of up to sqrt(2); the model goes on with the scale it has.
    """

    def find(self, seen: Seen) -> Iterator[Trap]:
        """Count first."""
        linears = seen.linears()
        odd = [(node, grid) for node, grid in linears if not grid.is_pow2]
        if len(linears) < ENOUGH or len(odd) > FEW * len(linears):
            return
        for node, grid in odd:
            message = f"has the {_scale_words(grid.scale)}, no power of two; {len(linears) - len(odd)} others are powers of two"
            yield trap(node, message, "round it: the pass round-scales-pow2")


@dataclass(frozen=True)
class SubnormalScale(TrapRule):
    """A scale below the smallest normal number of its float type, which many NPUs and GPUs take for 0."""

    level: ClassVar[Level] = "note"

    def find(self, seen: Seen) -> Iterator[Trap]:
        """float32 and bfloat16: 2^-126; float16: 2^-14."""
        for node, grid in seen.linears():
            scale = operand(node, 1)
            dtype = dtype_of(scale) if scale is not None else None
            if dtype is None or dtype not in SMALLEST_NORMAL:
                continue
            tiny = SMALLEST_NORMAL[dtype]
            count = int(np.count_nonzero((grid.scale > 0) & (grid.scale < tiny)))
            if count:
                which = "its scale is" if grid.is_per_tensor else f"{count} of {grid.scale.size} scales are"
                message = f"{which} below {tiny:.3g}, the smallest normal {dtype.name.lower()}"
                yield trap(node, message, "where it is flushed to 0 the tensor is 0; give dead channels the scale 1")


@dataclass(frozen=True)
class ScaleAlongSummedAxis(TrapRule):
    """Scales along an axis over which the operator sums: no sum of integers can hold that, so it is computed in float."""

    def find(self, seen: Seen) -> Iterator[Trap]:
        """Weights of Conv, ConvTranspose, Gemm, MatMul, and activations with a scale per channel."""
        for node in seen.nodes:
            for index in (0, 1) if is_standard(node, "Conv", "ConvTranspose", "Gemm", "MatMul") else ():
                grid, rank = seen.read(node, index), rank_of(seen.source(node, index))
                if grid is None or grid.is_per_tensor or grid.block_size or grid.axis is None or rank is None:
                    continue
                if not -rank <= grid.axis < rank or grid.axis % rank not in _summed(node, index, rank):
                    continue
                what = "weight" if is_constant(seen.source(node, index)) else "input"
                message = (
                    f"its {what} has {grid.scale.size} scales along axis {grid.axis}, over which {node.op_type} sums"
                )
                kept = sorted(set(range(rank)) - _summed(node, index, rank))
                way = f"along axis {' or '.join(map(str, kept))}, or " if kept and what == "weight" else ""
                yield trap(node, message, f"quantize it {way}per tensor")


@dataclass(frozen=True)
class BlockedUint4ZeroPoint(TrapRule):
    """Blocked uint4 weights with zero points, which the backend does not subtract."""

    def find(self, seen: Seen) -> Iterator[Trap]:
        """Weights only; int4 has none of it."""
        for node, grid in seen.linears():
            if grid.dtype == ir.DataType.UINT4 and grid.block_size and np.any(grid.zero_point):
                message = f"its zero points, up to {grid.zero_point.max():g}, are not subtracted: the weights come out too large"
                yield trap(node, message, "store it as int4: qdqtool qdq convert --dtype int4")


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
