"""Along which axis an activation has its channels: told by the operator that made them, which may stand further up.

Conv [N, C, …]: axis 1. MatMul, LayerNormalization […, C]: the last. A Transpose between turns one into the other."""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes.graph.uses import is_constant, is_standard

CHANNELS_FIRST = ("BatchNormalization", "Conv", "ConvTranspose", "GroupNormalization", "InstanceNormalization")
CHANNELS_LAST = ("Gemm", "LayerNormalization", "MatMul", "RMSNormalization")
#: Operators that are walked through; beyond, nothing is known.
FARTHEST = 50


def channel_axes(value: ir.Value, rank: int) -> tuple[int, ...]:
    """The axes of ``value`` that may be channels, counted from the front: one where its makers tell; else 1 of [N, C] and
    [N, C, H, W], both of [N, C, L] or [N, T, C]; none of vectors and scalars."""
    if rank < 2:
        return ()
    first = _is_channels_first(value)
    if first is None:
        return (1, 2) if rank == 3 else (1,)
    return (1,) if first else (rank - 1,)


def _is_channels_first(value: ir.Value) -> bool | None:
    turned = False
    current: ir.Value | None = value
    for _ in range(FARTHEST):
        node = current.producer() if current is not None else None
        if node is None:
            return None
        if is_standard(node, *CHANNELS_FIRST):
            return not turned
        if is_standard(node, *CHANNELS_LAST):
            return turned
        if is_standard(node, "Transpose"):
            turned = not turned
        current = next((v for v in node.inputs if v is not None and not is_constant(v)), None)
    return None
