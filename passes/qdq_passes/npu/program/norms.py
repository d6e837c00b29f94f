"""Normalizations: exact sums of integers and of their squares, one root per group, float32 behind it.

    LayerNormalization              all axes from one on; gain and shift by the place there
    RMSNormalization, Simplified…   the same about 0, without a shift
    LpNormalization (p = 2)         RMSNormalization of the last axis, with the gain 1/√n and without an epsilon
    InstanceNormalization           what is behind each channel; gain and shift by the channel
    GroupNormalization              likewise, groups of channels together

S1 = Σ(x − z), S2 = Σ(x − z)², v = n·S2 − S1² and c = n·(x − z) − S1 in integers; k = s_x / n, r = float32(k / √(v·k² + ε));
y = round((c·r·γ + β) / s_y) + z_y in float32. Gain and shift become float32 numbers, however they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import float_of, integer_of, is_standard
from qdq_passes.npu.program.edit import Source, Stored
from qdq_passes.npu.program.operands import (
    NotComputable,
    constant_floats,
    encoded,
    given,
    no_other_output,
    no_references,
    operand_at,
    opset_of,
    rank_of,
    sizes_of,
    source,
    step,
    target,
    zero,
)
from qdq_passes.npu.program.operator import Names, OneOperator, Plan, arithmetic
from qdq_passes.npu.program.scaling import output_attributes
from qdq_passes.npu.units.units import Operand, Unit
from qdq_passes.numerics.arithmetic import Arithmetic

#: First opset whose GroupNormalization has a gain per channel; before, one per group.
OPSET_OF_CHANNEL_GAINS = 21

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Groups:
    """Which elements are normalized together, and the parameters behind.

    Args:
        gain: float32 [1] or one per place in a group, per channel where ``groups`` is given.
        shift: likewise; None without one.
        axis: from which axis on, counted as the operator counts, elements are normalized together.
        groups: of the channels of [N, C, …]; 0 where ``axis`` counts.
    """

    gain: Floats
    shift: Floats | None = None
    axis: int = -1
    groups: int = 0


class LayerNorm(OneOperator):
    """A normalization of all axes from one on."""

    family = "norms"
    takes: ClassVar[Names] = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
    rows = (
        arithmetic(
            "Norm", (2, 3), x_zero_point=int, x_scale=float, axis=int, groups=int, centered=int, epsilon=float
        ),
    )  # fmt: skip
    #: Mean, variance, scale and shift; those in floating point alone too.
    operations: ClassVar[Mapping[str, int]] = {
        "LayerNormalization": 4, "RMSNormalization": 3, "SimplifiedLayerNormalization": 3, "BatchNormalization": 1,
        "SkipLayerNormalization": 5, "SkipSimplifiedLayerNormalization": 4,
    }  # fmt: skip
    #: Those of `takes` that take the mean off.
    centered: ClassVar[Names] = ("LayerNormalization",)

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``x, gain, shift → ai.qdqtool::Norm``, the same in every arithmetic."""
        node = unit.core
        no_references(node)
        x, output = source(unit), target(unit)
        no_other_output(node)
        groups = self.groups(unit, x)
        attributes = {
            **output_attributes(output, arithmetic, mode="float", sums=False),
            "x_zero_point": zero(encoded(x)),
            "x_scale": step(encoded(x)),
            "centered": int(is_standard(node, *self.centered)),
            "epsilon": self.epsilon(node),
            **({"groups": groups.groups} if groups.groups else {"axis": groups.axis}),
        }
        shift = None if groups.shift is None else Stored("shift", groups.shift)
        inputs: list[Source] = [x, Stored("gain", groups.gain), shift]
        return Plan(name="Norm", inputs=inputs, attributes=attributes, output=output, first=2)

    def groups(self, unit: Unit, x: Operand) -> Groups:
        """What is normalized together.

        Raises:
            NotComputable: parameters do not fit, or sizes are not known.
        """
        gain, shift = parameters(unit)
        axis = integer_of(unit.core, "axis", -1)
        gain = _of_places(gain, x, axis)
        return Groups(gain=gain, shift=None if shift is None else _of_places(shift, x, axis), axis=axis)

    def epsilon(self, node: ir.Node) -> float:
        """What is added to the variance."""
        return float(np.float32(float_of(node, "epsilon", 1e-5)))


class ChannelNorm(LayerNorm):
    """A normalization of groups of channels."""

    takes = ("InstanceNormalization", "GroupNormalization")
    operations: ClassVar[Mapping[str, int]] = {"InstanceNormalization": 4, "GroupNormalization": 4}
    centered = takes

    def groups(self, unit: Unit, x: Operand) -> Groups:
        """Groups of channels, and gain and shift per channel."""
        node, (gain, shift) = unit.core, parameters(unit)
        if gain.ndim != 1 or (shift is not None and shift.shape != gain.shape):
            raise NotComputable("its gain and shift are not one number per channel")
        if is_standard(node, "InstanceNormalization"):
            return Groups(gain=gain, shift=shift, groups=len(gain))
        groups = integer_of(node, "num_groups", 0)
        if opset_of(node) >= OPSET_OF_CHANNEL_GAINS:
            return Groups(gain=gain, shift=shift, groups=groups)
        if len(gain) != groups:
            raise NotComputable(f"its gain has {len(gain)} entries for {groups} groups")
        each = sizes_of(x, [1])[0] // max(groups, 1)
        return Groups(gain=gain.repeat(each), shift=None if shift is None else shift.repeat(each), groups=groups)


class LpNorm(LayerNorm):
    """A division of the last axis by its length."""

    takes = ("LpNormalization",)
    operations: ClassVar[Mapping[str, int]] = {"LpNormalization": 3}
    centered = ()

    def groups(self, unit: Unit, x: Operand) -> Groups:
        """The gain 1/√n."""
        node = unit.core
        if integer_of(node, "p", 2) != 2:
            raise NotComputable("sums absolute values; the simulator sums squares")
        rank = rank_of(x)
        axis = integer_of(node, "axis", -1) % rank
        if any(size != 1 for size in (sizes_of(x, list(range(axis + 1, rank))) if axis != rank - 1 else [])):
            raise NotComputable("does not normalize the last axis; put a Transpose before and behind")
        return Groups(gain=np.array([1.0 / np.sqrt(np.float64(sizes_of(x, [axis])[0]))], np.float32))

    def epsilon(self, node: ir.Node) -> float:
        """None."""
        return 0.0


def parameters(unit: Unit) -> tuple[Floats, Floats | None]:
    """Gain and shift, see `_parameter`."""
    return _parameter(unit, 1, "gain"), _parameter(unit, 2, "shift") if given(unit, 2) else None


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
