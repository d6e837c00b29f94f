"""Resize: to the nearest element it is a Gather per axis. One that interpolates is a sum,

acc = Σ w_i·…·w_j·(x − z_x) over the taps of each axis, weights in units of 2^-11
y = round(M·acc) + z_y with M = s_x·2^-(11·axes) / s_y, one rounding"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError
from qdq_passes.graph.uses import constant_array, float_of, integer_of, integers_of, text_of
from qdq_passes.npu.formulas.resize import BEFORE_OPSET_11, WEIGHT_BITS, Taps, resize_nearest_indices, resize_taps
from qdq_passes.npu.program.edit import Attributes, Replacement, Source, Stored
from qdq_passes.npu.program.movement import Moved, move_of
from qdq_passes.npu.program.operands import (
    MOST_OF_ADDENDS,
    NotComputable,
    as_float32,
    encoded,
    no_references,
    operand_at,
    shape_of,
    source,
    step,
    target,
    zero,
)
from qdq_passes.npu.program.operator import OneOperator, Plan, ProgramOperator, arithmetic
from qdq_passes.npu.program.scaling import multiplier, one_multiplier, output_attributes
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.requantize import real_multiplier

#: Coordinates that depend on nothing but the sizes.
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
#: Axes whose weights are multiplied, beyond which 64 bits might not hold a sum.
MOST_AXES = 3


class Resize(OneOperator):
    """A Resize that interpolates: taps and weights per axis as constants."""

    family = "movement"
    turn = 0
    takes = ("Resize",)
    rows = (arithmetic("Resize", (1, 7), x_zero_point=int, axes=list, multiplier=int, shift=int, scale=float),)

    def accepts(self, unit: Unit) -> bool:
        """All but those to the nearest element."""
        return super().accepts(unit) and text_of(unit.core, "mode", "nearest") != "nearest"

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> Plan:
        """``x, indices, weights, … → ai.qdqtool::Resize``."""
        x, output = source(unit), target(unit)
        found = taps_of(unit.core, shape_of(x))
        if len(found) > MOST_AXES:
            raise NotComputable(f"interpolates along {len(found)} axes; the simulator computes {MOST_AXES}")
        product = np.ldexp(np.array([step(encoded(x))], np.float64), -WEIGHT_BITS * len(found))  # of 1 in the sum
        scaling: Attributes = {"scale": float(product[0])}
        if arithmetic.requantize == "float":
            as_float32("step of its sum", float(product[0]), most=MOST_OF_ADDENDS)
        else:
            scaling = one_multiplier(multiplier(real_multiplier(product, step(output)), arithmetic))
        inputs: list[Source] = [x]
        for taps in found:
            inputs.append(Stored(f"indices_{taps.axis}", taps.indices))
            inputs.append(Stored(f"weights_{taps.axis}", taps.integers().astype(np.int32)))
        how, axes = output_attributes(output, arithmetic, sums=False), [taps.axis for taps in found]
        attributes = {**how, "x_zero_point": zero(encoded(x)), "axes": axes, **scaling}
        return Plan(name="Resize", inputs=inputs, attributes=attributes, output=output)


class ResizeToNearest(ProgramOperator[tuple[dict[int, npt.NDArray[np.int64]], Moved]]):
    """A Resize to the nearest element."""

    family = "movement"
    takes = ("Resize",)
    standard = ("Gather", "Identity")

    def plan(self, unit: Unit, arithmetic: Arithmetic) -> tuple[dict[int, npt.NDArray[np.int64]], Moved]:
        """The indices of each axis, and what moves."""
        return resized(unit), move_of(unit)

    def write(self, plan: tuple[dict[int, npt.NDArray[np.int64]], Moved], into: Replacement) -> ir.Value:
        """``x → Gather`` per axis, and what requantizes behind."""
        taken, moved = plan
        value, dtype = moved.taken(0, into), moved.moves.dtype
        for axis, indices in taken.items():
            shape = None if value.shape is None else value.shape.copy()
            if shape is not None:
                shape[axis] = len(indices)
            inputs = [value, into.constant(f"indices_{axis}", indices)]
            value = into.node("::Gather", inputs, dtype=dtype, attributes={"axis": axis}, shape=shape)
        if not taken:
            value = into.node("::Identity", [value], dtype=dtype, like=value)
        return moved.behind(value, into)


def resized(unit: Unit) -> dict[int, npt.NDArray[np.int64]]:
    """The indices, by axis, that a Resize to the nearest element takes; axes of which nothing changes are left out.

    Raises:
        NotComputable: what it takes hangs on sizes that are not known, or it writes a number of its own.
    """
    node = unit.core
    asked, old = _asked(node, shape_of(operand_at(unit, 0))), len(node.inputs) == 2
    try:
        found = resize_nearest_indices(
            asked.shape, scales=asked.scales, sizes=asked.sizes, axes=asked.axes, policy=asked.policy,
            coordinate_mode=asked.coordinates,
            nearest_mode=BEFORE_OPSET_11 if old else text_of(node, "nearest_mode", "round_prefer_floor"),
            roi=_region(node, len(asked.axes)) if asked.coordinates == "tf_crop_and_resize" else None,
        )  # fmt: skip
    except QdqError as error:
        raise NotComputable(error.message) from error
    if any((indices < 0).any() for indices in found):
        raise NotComputable("writes a number of its own where nothing is")
    changed = zip(range(len(asked.shape)), asked.shape, found, strict=True)
    return {axis: indices for axis, size, indices in changed if not np.array_equal(indices, np.arange(size))}


def taps_of(node: ir.Node, shape: list[int | None] | None) -> list[Taps]:
    """What ``node``, a Resize that interpolates an input of ``shape``, reads along each axis that changes.

    Raises:
        NotComputable: it smooths, or what it reads hangs on more than known sizes.
    """
    if integer_of(node, "antialias", 0):
        raise NotComputable("smooths what it makes smaller (antialias)")
    asked = _asked(node, shape)
    if asked.coordinates not in COORDINATES:
        raise NotComputable(f"interpolates with the coordinates of {asked.coordinates}")
    try:
        return resize_taps(
            asked.shape, mode=text_of(node, "mode", "nearest"), scales=asked.scales, sizes=asked.sizes, axes=asked.axes,
            policy=asked.policy, coordinate_mode=asked.coordinates,
            cubic_coefficient=float_of(node, "cubic_coeff_a", -0.75),
            exclude_outside=bool(integer_of(node, "exclude_outside", 0)),
        )  # fmt: skip
    except QdqError as error:
        raise NotComputable(error.message) from error


@dataclass(frozen=True, eq=False, kw_only=True)
class _Asked:
    """What a Resize makes of its input: either ``scales`` or ``sizes`` for ``axes``; an unknown size that stays counts as 1."""

    shape: list[int]
    scales: npt.NDArray[np.float32] | None
    sizes: list[int] | None
    axes: list[int]
    policy: str
    coordinates: str


def _asked(node: ir.Node, shape: list[int | None] | None) -> _Asked:
    no_references(node)
    if shape is None:
        raise NotComputable("the shape of what it resizes is not known; run infer-shapes first")
    old = len(node.inputs) == 2  # before opset 11
    given = [constant_array(node.inputs[i]) if i < len(node.inputs) else None for i in ((1,) if old else (2, 3))]
    scales, sizes = [array.ravel() if array is not None and array.size else None for array in (*given, None)[:2]]
    if (scales is None) == (sizes is None):
        raise NotComputable("how it resizes is computed")
    axes = [axis % len(shape) for axis in integers_of(node, "axes")] or list(range(len(shape)))
    told = next(array for array in (scales, sizes) if array is not None)
    if len(told) != len(axes) or max(axes) >= len(shape):
        raise NotComputable(f"it says {len(told)} sizes for {len(axes)} axes of {len(shape)}")
    same_size = [axis for place, axis in enumerate(axes) if scales is not None and scales[place] == 1]
    known = [1 if size is None and (axis in same_size or axis not in axes) else size for axis, size in enumerate(shape)]
    whole = [size for size in known if size is not None]
    if len(whole) < len(shape):
        raise NotComputable("the sizes of what it resizes are not known; run infer-shapes or fix-shapes first")
    return _Asked(
        shape=whole,
        scales=None if scales is None else scales.astype(np.float32),
        sizes=None if sizes is None else [int(size) for size in sizes],
        axes=axes,
        policy=text_of(node, "keep_aspect_ratio_policy", "stretch"),
        coordinates="asymmetric" if old else text_of(node, "coordinate_transformation_mode", "half_pixel"),
    )


def _region(node: ir.Node, count: int) -> npt.NDArray[np.float32]:
    """The part of the input that tf_crop_and_resize reads, [starts, ends] of ``count`` axes; other modes read all of it.

    Raises:
        NotComputable: it is not known.
    """
    region = constant_array(node.inputs[1])
    if region is None:
        raise NotComputable("the region (roi) that it reads is computed, or not given")
    if region.size != 2 * count:
        raise NotComputable(f"its region (roi) has {region.size} numbers for {count} axes")
    return region.astype(np.float32)
