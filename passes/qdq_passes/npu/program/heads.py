"""What a RotaryEmbedding turns, that of onnx and that of com.microsoft: heads, pairs in them, what chooses their angles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import constant_array, float_of, integer_of
from qdq_passes.npu.program.operands import NotComputable, check_index, rank_of, sizes_of
from qdq_passes.npu.units.units import Operand

CONTRIB = "com.microsoft"


@dataclass(frozen=True, eq=False, kw_only=True)
class Heads:
    """Heads of which the first elements are turned.

    Args:
        is_flat: whether data are [B, S, heads·size], not [B, heads, S, size].
        count: number of heads.
        length: S.
        size: of a head.
        rotated: elements of a head that are turned, from the first on.
        is_interleaved: whether pairs are neighbours, not from the two halves.
        positions: int64 [B, S], computed or not, choose among the angles [positions, rotated/2]; or
        rows: the positions themselves, int64 [S], where they follow one known number; None for both where angles have their
            places already, [B, S, rotated/2].
    """

    is_flat: bool
    count: int
    length: int
    size: int
    rotated: int
    is_interleaved: bool
    positions: ir.Value | None
    rows: npt.NDArray[np.int64] | None


def angles_at(node: ir.Node) -> tuple[int, int, int]:
    """The inputs of ``node`` that are cosines, sines and positions."""
    return (2, 3, 1) if node.domain == CONTRIB else (1, 2, 3)


def heads_of(node: ir.Node, x: Operand, cos: Operand) -> Heads:
    """The heads of ``node``, which turns ``x``.

    Raises:
        NotComputable: sizes are not known or do not fit, or it does more than turn.
    """
    rank = rank_of(x)
    if integer_of(node, "is_packed_batching", 0):
        raise NotComputable("packs sequences into one row")
    if float_of(node, "scale", 1.0) != 1.0:
        raise NotComputable("multiplies what it turns by a factor")
    if rank not in (3, 4):
        raise NotComputable(f"turns data of {rank} axes")
    half, is_flat = sizes_of(cos, [-1])[0], rank == 3
    length, width = sizes_of(x, [1 if is_flat else 2, -1])
    count, rotated = integer_of(node, "num_heads", 0), integer_of(node, "rotary_embedding_dim", 0)
    size = width if not is_flat else width // count if count else 2 * half
    rotated = rotated or min(size, 2 * half)
    if size < 1 or width % size or rotated != 2 * half or rotated > size:
        raise NotComputable(f"has heads of {size} elements and {half} angles for each of them")
    positions, rows = _positions(node, length)
    if positions is None and rows is None and rank_of(cos) != 3:
        raise NotComputable("has no positions, and angles of other than three axes")
    return Heads(
        is_flat=is_flat, count=width // size if is_flat else sizes_of(x, [1])[0], length=length, size=size, rotated=rotated,
        is_interleaved=bool(integer_of(node, "interleaved", 0)), positions=positions, rows=rows,
    )  # fmt: skip


def _positions(node: ir.Node, length: int) -> tuple[ir.Value | None, npt.NDArray[np.int64] | None]:
    """What chooses the angles: [B, S], or what follows one number [1]; None twice where the angles have their places already.

    Raises:
        NotComputable: one number that is computed, or of unknown rank.
    """
    index = angles_at(node)[2]
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None, None
    if value.shape is None:
        raise NotComputable(f"the rank of {value.name} is not known; run infer-shapes first")
    check_index(value)
    if len(value.shape) != 1:
        return value, None
    first = constant_array(value)
    if first is None:
        raise NotComputable(f"counts on from {value.name}, which is computed; run decompose-rotary-embedding")
    return None, int(first.item()) + np.arange(length, dtype=np.int64)
