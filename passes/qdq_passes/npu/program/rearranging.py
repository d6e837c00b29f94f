"""DepthToSpace and SpaceToDepth: Reshape, Transpose, Reshape."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import integer_of, is_standard, text_of
from qdq_passes.npu.program.edit import Replacement
from qdq_passes.npu.program.movement import Moved, move_of
from qdq_passes.npu.program.operands import NotComputable, operand_at, rank_of, sizes_of
from qdq_passes.npu.program.operator import ProgramOperator
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic


@dataclass(frozen=True, kw_only=True)
class Rearrangement:
    """Reshape, Transpose, Reshape; a 0 in a shape is the size of the input there, −1 what is left.

    Args:
        inner: shape of what is transposed.
        permutation: of its axes.
        outer: shape of the result.
    """

    inner: tuple[int, ...]
    permutation: tuple[int, ...]
    outer: tuple[int, ...]


class Rearrange(ProgramOperator[tuple[Rearrangement, Moved]]):
    """Blocks of elements between depth and space."""

    family = "movement"
    takes = ("DepthToSpace", "SpaceToDepth")
    standard = ("Reshape", "Transpose")

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> tuple[Rearrangement, Moved]:
        """The steps, and what moves."""
        return rearrangement(unit), move_of(unit)

    def write(self, plan: tuple[Rearrangement, Moved], into: Replacement) -> ir.Value:
        """``x → Reshape → Transpose → Reshape``, and what requantizes behind."""
        steps, moved = plan
        value, dtype = moved.taken(0, into), moved.moves.dtype
        batch = value.shape[0] if value.shape is not None else None
        inner = [batch, *steps.inner[1:]]
        value = into.reshaped(value, steps.inner, "inner_shape", dtype, inner, helps=False)
        turned = ir.Shape([inner[axis] for axis in steps.permutation])
        value = into.transposed(value, steps.permutation, dtype, turned, helps=False)
        value = into.reshaped(value, steps.outer, "shape", dtype, [batch, *steps.outer[1:]], helps=False)
        return moved.behind(value, into)


def rearrangement(unit: Unit) -> Rearrangement:
    """The steps of a DepthToSpace or SpaceToDepth on [N, C, H, W].

    Raises:
        NotComputable: channels, or both height and width, are not known.
    """
    node, x = unit.core, operand_at(unit, 0)
    if rank_of(x) != 4:
        raise NotComputable("does not read [N, C, H, W]")
    channels, height, width = sizes_of(x, [1, 2, 3])
    block = integer_of(node, "blocksize", 0)
    to_space = is_standard(node, "DepthToSpace")
    parts = (channels,) if to_space else (height, width)
    if block < 1 or any(size % (block * block if to_space else block) for size in parts):
        raise NotComputable(f"blocks of {block} do not divide sizes {list(parts)}")
    if not to_space:
        inner = (0, channels, height // block, block, width // block, block)
        return Rearrangement(
            inner=inner, permutation=(0, 3, 5, 1, 2, 4), outer=(0, channels * block**2, height // block, width // block)
        )
    depth = channels // block**2
    outer = (0, depth, height * block, width * block)
    if text_of(node, "mode", "DCR") == "CRD":
        return Rearrangement(inner=(0, depth, block, block, height, width), permutation=(0, 1, 4, 2, 5, 3), outer=outer)
    return Rearrangement(inner=(0, block, block, depth, height, width), permutation=(0, 3, 4, 1, 5, 2), outer=outer)
