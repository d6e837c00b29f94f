"""Plans in floating point of what moves elements: a standard operator on rounded floats."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdq_passes.graph.uses import text_of
from qdq_passes.npu.formulas.floats import rounded
from qdq_passes.npu.program.floats.steps import Constant, Handlers, Made, Source, Steps, type_of
from qdq_passes.npu.program.movement import JOINING, MOVING, check_steering, padding_with
from qdq_passes.npu.program.operands import NotComputable
from qdq_passes.npu.program.rearranging import rearrangement
from qdq_passes.npu.program.resizing import resized, taps_of


def _move(steps: Steps, node: ir.Node) -> list[Source]:
    """The operator itself; what decides its shape must be known."""
    check_steering(node)
    data = JOINING.get(node.op_type, (0,)) or range(len(node.inputs))
    inputs = [
        steps.rounded(node, index) if index in data else steps.control(node, index) for index in range(len(node.inputs))
    ]
    if node.op_type == "Identity":
        return [_copied(steps, inputs[0], node)]
    made = steps.move(
        node.op_type,
        *inputs,
        dtype=type_of(node),
        attributes=list(node.attributes.values()),
        count=len(node.outputs),
    )
    return list(made)


def _copied(steps: Steps, source: Source, node: ir.Node) -> Made:
    """``source`` as what a step writes."""
    return source if isinstance(source, Made) else steps.move("Identity", source, dtype=type_of(node))[0]


def _pad(steps: Steps, node: ir.Node) -> list[Source]:
    (found, value), dtype = padding_with(node, steps.rank(node)), type_of(node)
    pads = Constant("pads", lambda: np.array([*found.before, *found.after], np.int64), ir.DataType.INT64)
    inputs: list[Source] = [steps.rounded(node, 0), pads]
    if value is not None:
        number = rounded(value.reshape(()), steps.precision).astype(dtype.numpy())
        inputs.append(Constant("value", lambda: number, dtype))
    return list(steps.move("Pad", *inputs, dtype=dtype, attributes={"mode": found.mode}))


def _resize(steps: Steps, node: ir.Node) -> list[Source]:
    """To the nearest element: a Gather per axis; else a product with a matrix per axis, of the last two."""
    if text_of(node, "mode", "nearest") != "nearest":
        return [_interpolated(steps, node)]
    value, dtype = steps.rounded(node, 0), type_of(node)
    for axis, indices in resized(steps.unit).items():
        taken = Constant(f"indices_{axis}", lambda indices=indices: indices, ir.DataType.INT64)  # type: ignore[misc]
        value = steps.move("Gather", value, taken, dtype=dtype, attributes={"axis": axis})[0]
    return [_copied(steps, value, node)]


def _interpolated(steps: Steps, node: ir.Node) -> Made:
    shape, dtype = steps.shape(node, 0), type_of(node)
    found = taps_of(node, shape)
    assert shape is not None
    last_axis = len(shape) - 1
    sizes = {taps.axis: size for taps in found if (size := shape[taps.axis]) is not None}
    if not set(sizes) <= {last_axis - 1, last_axis} or len(sizes) < len(found) or last_axis < 1:
        raise NotComputable("interpolates along other than the last two axes")
    value: Source = steps.read(node, 0) if found else steps.rounded(node, 0)
    for taps in found:
        matrix, last, axis = taps.matrix(sizes[taps.axis]), taps.axis == last_axis, taps.axis
        data = np.ascontiguousarray(rounded(matrix.T if last else matrix, steps.precision))
        made = Constant(f"matrix_{axis}", lambda data=data: data, ir.DataType.FLOAT)  # type: ignore[misc]
        value = steps.step("FloatMatMul", *((value, made) if last else (made, value)), dtype=dtype)
    return _copied(steps, value, node)


def _rearrange(steps: Steps, node: ir.Node) -> list[Source]:
    plan, dtype = rearrangement(steps.unit), type_of(node)
    inner, outer = (
        Constant(what, lambda shape=shape: np.array(shape, np.int64), ir.DataType.INT64)  # type: ignore[misc]
        for what, shape in (("inner_shape", plan.inner), ("shape", plan.outer))
    )
    value: Source = steps.move("Reshape", steps.rounded(node, 0), inner, dtype=dtype)[0]
    value = steps.move("Transpose", value, dtype=dtype, attributes={"perm": plan.permutation})[0]
    return [steps.move("Reshape", value, outer, dtype=dtype)[0]]


#: What moves.
MOVES: Handlers = {
    **{("", name): _move for name in MOVING if name not in ("Trilu", "Where")},
    ("", "Pad"): _pad,
    ("", "Resize"): _resize,
    ("", "DepthToSpace"): _rearrange,
    ("", "SpaceToDepth"): _rearrange,
}
