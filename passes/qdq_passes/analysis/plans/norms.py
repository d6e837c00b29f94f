"""Plans of normalizations: sums of integers and of their squares, one root per group, float32 behind it.

    LayerNormalization              all axes from one on; gain and shift by the place there
    RMSNormalization, Simplified…   the same about 0, without a shift
    LpNormalization (p = 2)         RMSNormalization of the last axis, with the gain 1/√n and without an epsilon
    InstanceNormalization           what is behind each channel; gain and shift by the channel
    GroupNormalization              likewise, groups of channels together

Gain and shift become float32 numbers, however they are stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.analysis.plans.operands import (
    NotComputable,
    constant_floats,
    given,
    no_other_output,
    no_references,
    operand_at,
    rank_of,
    sizes_of,
    source,
    target,
)
from qdq_passes.graph.uses import float_of, integer_of
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.encoding import Encoding

#: What is computed so.
NORMS = (
    "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "InstanceNormalization", "GroupNormalization",
    "LpNormalization",
)  # fmt: skip
#: First opset whose GroupNormalization has a gain per channel; before, one per group.
OPSET_OF_CHANNEL_GAINS = 21
_EPSILON = 1e-5

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Norm:
    """A normalization of groups of elements.

    Args:
        x: the data.
        gain: float32 [1] or one per place in a group, per channel where ``groups`` is given.
        shift: likewise; None without one.
        axis: from which axis on, counted as the operator counts, elements are normalized together.
        groups: of the channels of [N, C, …]; 0 where ``axis`` counts.
        is_centered: whether the mean is taken off.
        epsilon: float32, added to the variance.
        output: encoding of the output.
    """

    x: Operand
    gain: Floats
    shift: Floats | None
    axis: int
    groups: int
    is_centered: bool
    epsilon: float
    output: Encoding


def norm(unit: Unit, arithmetic: object = None) -> Norm:
    """The plan of a normalization; the same in every arithmetic.

    Raises:
        NotComputable: there is none.
    """
    node = unit.core
    no_references(node)
    x, output = source(unit), target(unit)
    no_other_output(node)
    axis, groups, gain, shift = -1, 0, np.ones(1, np.float32), None
    if node.op_type == "LpNormalization":
        gain = _of_length(node, x)
    else:
        gain, shift = _parameter(unit, 1, "gain"), _parameter(unit, 2, "shift") if given(unit, 2) else None
        if node.op_type in ("InstanceNormalization", "GroupNormalization"):
            groups, gain, shift = _of_channels(node, x, gain, shift)
        else:
            axis = integer_of(node, "axis", -1)
            gain = _of_places(gain, x, axis)
            shift = None if shift is None else _of_places(shift, x, axis)
    return Norm(
        x=x,
        gain=gain,
        shift=shift,
        axis=axis,
        groups=groups,
        is_centered=node.op_type in ("LayerNormalization", "InstanceNormalization", "GroupNormalization"),
        epsilon=0.0 if node.op_type == "LpNormalization" else float(np.float32(float_of(node, "epsilon", _EPSILON))),
        output=output,
    )


def _parameter(unit: Unit, index: int, word: str) -> Floats:
    """Gain or shift, in float32, of any shape.

    Raises:
        NotComputable: it is computed, of another type, or not finite.
    """
    operand = operand_at(unit, index)
    array = None if operand.value is None else constant_floats(operand.value)
    if array is None:
        raise NotComputable(f"its {word} is computed")
    if array.dtype != np.float32:
        raise NotComputable(f"its {word} is {array.dtype}; the simulator computes float32")
    if not np.isfinite(array).all():
        raise NotComputable(f"its {word} is not finite")
    return np.asarray(array, np.float32)


def _of_places(parameter: Floats, x: Operand, axis: int) -> Floats:
    """One entry for all, or one per place in a group."""
    if parameter.size == 1:
        return parameter.reshape(-1)
    rank = rank_of(x)
    count = rank - axis % rank
    shape = parameter.shape[-count:]
    if parameter.size != np.prod(shape):
        raise NotComputable(f"a parameter of shape {list(parameter.shape)} differs along axes that are not normalized")
    if count == 1:
        return parameter.reshape(-1)
    sizes = sizes_of(x, list(range(rank - count, rank)))
    try:
        return np.ascontiguousarray(np.broadcast_to(parameter.reshape(shape), sizes)).reshape(-1)
    except ValueError:
        raise NotComputable(f"a parameter of shape {list(parameter.shape)} does not fit {sizes}") from None


def _of_channels(node: ir.Node, x: Operand, gain: Floats, shift: Floats | None) -> tuple[int, Floats, Floats | None]:
    """Groups of channels, and gain and shift per channel."""
    if gain.ndim != 1 or (shift is not None and shift.shape != gain.shape):
        raise NotComputable("its gain and shift are not one number per channel")
    if node.op_type == "InstanceNormalization":
        return len(gain), gain, shift
    groups = integer_of(node, "num_groups", 0)
    opset = node.graph.opset_imports.get("", 0) if isinstance(node.graph, ir.Graph) else 0
    if opset >= OPSET_OF_CHANNEL_GAINS:
        return groups, gain, shift
    if len(gain) != groups:
        raise NotComputable(f"its gain has {len(gain)} entries for {groups} groups")
    each = sizes_of(x, [1])[0] // max(groups, 1)
    return groups, gain.repeat(each), None if shift is None else shift.repeat(each)


def _of_length(node: ir.Node, x: Operand) -> Floats:
    """The gain 1/√n of an LpNormalization of the last axis, [1]."""
    if integer_of(node, "p", 2) != 2:
        raise NotComputable("sums absolute values; the simulator sums squares")
    rank = rank_of(x)
    axis = integer_of(node, "axis", -1) % rank
    if any(size != 1 for size in (sizes_of(x, list(range(axis + 1, rank))) if axis != rank - 1 else [])):
        raise NotComputable("does not normalize the last axis; put a Transpose before and behind")
    return np.array([1.0 / np.sqrt(np.float64(sizes_of(x, [axis])[0]))], np.float32)
