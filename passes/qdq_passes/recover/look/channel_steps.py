"""How operators hand a scaling of channels on: index of the scaled input → index of each output, see `recover.look.channel_flow`.

An operator f is listed only where f(x/s) = f(x)/s holds for s > 0, element by element of its output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import FLOAT_TYPES, constant_array, dtype_of, integer_of, integers_of, text_of

Index = npt.NDArray[np.int64]
#: A size: a number; its name, or None, where it is dynamic.
Size = int | str | None
#: Sizes of a value, None where not even their number is known.
Sizes = Callable[[ir.Value], Sequence[Size] | None]
Outcome = list[tuple[ir.Value, Index]] | None


@dataclass(frozen=True, eq=False)
class Step:
    """One operator on the way.

    Args:
        node: the operator.
        position: index of its scaled input.
        at: index array of that input, of its rank.
        sizes_of: sizes of a value.
    """

    node: ir.Node
    position: int
    at: Index
    sizes_of: Sizes

    @property
    def output(self) -> ir.Value:
        """The first output."""
        return self.node.outputs[0]

    @property
    def is_data(self) -> bool:
        """Whether the scaled input is the first."""
        return self.position == 0

    def changes_along(self, axes: Sequence[int]) -> bool:
        """Whether the scaling differs along one of ``axes``."""
        return any(self.at.shape[axis % self.at.ndim] != 1 for axis in axes)


def _same(step: Step) -> Outcome:
    return [(step.output, step.at)] if step.is_data else None


def _cast(step: Step) -> Outcome:
    return _same(step) if dtype_of(step.output) in FLOAT_TYPES else None


def _times(step: Step) -> Outcome:
    """Mul by anything else; Div by anything else."""
    if (
        (step.node.op_type == "Div" and not step.is_data)
        or len(step.node.inputs) != 2
        or "axis" in step.node.attributes
    ):
        return None
    other = step.node.inputs[1 - step.position]
    sizes = step.sizes_of(other) if other is not None else None
    if other is step.node.inputs[step.position] or sizes is None:
        return None
    rank = max(step.at.ndim, len(sizes))
    return [(step.output, step.at.reshape([1] * (rank - step.at.ndim) + list(step.at.shape)))]


def _pool(step: Step) -> Outcome:
    if not step.is_data or step.at.ndim < 3 or step.changes_along(range(2, step.at.ndim)):
        return None
    return [(step.output, step.at)] if len([v for v in step.node.outputs if v.name]) == 1 else None


def _resize(step: Step) -> Outcome:
    is_plain = text_of(step.node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
    return _pool(step) if is_plain else None


def _pad(step: Step) -> Outcome:
    pads = (
        constant_array(step.node.inputs[1]) if len(step.node.inputs) > 1 else np.array(integers_of(step.node, "pads"))
    )
    if not step.is_data or pads is None or pads.size != 2 * step.at.ndim:
        return None
    axes = [i for i in range(step.at.ndim) if pads[i] or pads[i + step.at.ndim]]
    fill = (
        constant_array(step.node.inputs[2]) if len(step.node.inputs) > 2 and step.node.inputs[2] is not None else None
    )
    has_fill = len(step.node.inputs) > 2 and step.node.inputs[2] is not None and (fill is None or bool(np.any(fill)))
    is_zero = text_of(step.node, "mode", "constant") != "constant" or not (has_fill or "value" in step.node.attributes)
    return [(step.output, step.at)] if is_zero and not step.changes_along(axes) else None


def _reduce(step: Step) -> Outcome:
    given = (
        constant_array(step.node.inputs[1]) if len(step.node.inputs) > 1 and step.node.inputs[1] is not None else None
    )
    axes = integers_of(step.node, "axes") or ([] if given is None else given.ravel().tolist())
    if not step.is_data or not axes or step.changes_along(axes):
        return None
    if integer_of(step.node, "keepdims", 1):
        return [(step.output, step.at)]
    gone = {axis % step.at.ndim for axis in axes}
    return [(step.output, step.at.reshape([n for i, n in enumerate(step.at.shape) if i not in gone]))]


def _transpose(step: Step) -> Outcome:
    order = integers_of(step.node, "perm") or list(range(step.at.ndim))[::-1]
    return [(step.output, step.at.transpose(order))]


def _reshape(step: Step) -> Outcome:
    """Axes that are alike stay; what is between them is regrouped, where its sizes are known or it does not change the
    scaling."""
    source = step.node.inputs[0]
    before = step.sizes_of(source) if source is not None and step.is_data else None
    after = step.sizes_of(step.output)
    moved = None if before is None or after is None else reshaped(step.at, before, after)
    return None if moved is None else [(step.output, moved)]


def reshaped(at: Index, before: Sequence[Size], after: Sequence[Size]) -> Index | None:
    """The index array ``at`` of a value of sizes ``before`` once it is reshaped to ``after``; None where that is not known.

    Leading and trailing axes that are alike stay as they are; those between them are regrouped, which needs their sizes
    unless the scaling does not change along them.
    """
    first = _alike(before, after)
    last = _alike(before[first:][::-1], after[first:][::-1])
    mine, theirs = slice(first, len(before) - last), slice(first, len(after) - last)
    if all(n == 1 for n in at.shape[mine]):
        wanted: list[int] = [1] * len(after[theirs])
        return at.reshape([*at.shape[:first], *wanted, *at.shape[mine.stop :]])
    known, wanted = ([n for n in part if isinstance(n, int)] for part in (before[mine], after[theirs]))
    whole = len(known) == len(before[mine]) and len(wanted) == len(after[theirs])
    if not whole or math.prod(known) != math.prod(wanted):
        return None
    full = np.broadcast_to(at, [*at.shape[:first], *known, *at.shape[mine.stop :]])
    return full.reshape([*at.shape[:first], *wanted, *at.shape[mine.stop :]])


def _alike(before: Sequence[Size], after: Sequence[Size]) -> int:
    """How many leading sizes are known to be the same."""
    count = 0
    for a, b in zip(before, after, strict=False):
        if a is None or a != b:
            break
        count += 1
    return count


def _squeezed(step: Step) -> Outcome:
    """Squeeze and Unsqueeze: as any reshape; sizes tell which axes."""
    return _reshape(step)


def _taken(step: Step) -> Outcome:
    """Gather of constant positions along an axis."""
    axis = integer_of(step.node, "axis", 0) % max(step.at.ndim, 1)
    if not step.is_data or step.at.ndim == 0:
        return None
    where = constant_array(step.node.inputs[1])
    if step.at.shape[axis] == 1:
        sizes = (
            None
            if where is not None
            else step.sizes_of(step.node.inputs[1])
            if step.node.inputs[1] is not None
            else None
        )
        rank = where.ndim if where is not None else None if sizes is None else len(sizes)
        return None if rank is None else [(step.output, _replaced(step.at, axis, [1] * rank))]
    if where is None:
        return None
    return [(step.output, np.take(step.at, where, axis=axis))]


def _replaced(at: Index, axis: int, sizes: Sequence[int]) -> Index:
    return at.reshape([*at.shape[:axis], *sizes, *at.shape[axis + 1 :]])


def _slice(step: Step) -> Outcome:
    """Slice: the part that is taken of an axis along which the scaling changes must be constant."""
    if not step.is_data:
        return None
    names = ("starts", "ends", "axes", "steps")
    given: dict[str, list[int] | None] = {name: integers_of(step.node, name) or None for name in names}
    for name, value in zip(names, step.node.inputs[1:], strict=False):
        array = constant_array(value)
        if value is not None and array is None and name == "axes":
            return None
        given[name] = None if array is None else [int(n) for n in array.ravel()]
    starts = given["starts"]
    if given["axes"] is None and starts is None:
        return None
    axes = given["axes"] or list(range(len(starts or [])))
    at = step.at
    for place, axis in enumerate(axes):
        if at.shape[axis % at.ndim] == 1:
            continue
        ends = given["ends"]
        if starts is None or ends is None:
            return None
        stride = (given["steps"] or [1] * len(axes))[place]
        parts: list[slice] = [slice(None)] * at.ndim
        end: int | None = ends[place]
        if stride < 0 and ends[place] < -at.shape[axis % at.ndim]:
            end = None
        parts[axis % at.ndim] = slice(starts[place], end, stride)
        at = at[tuple(parts)]
    return [(step.output, at)]


def _split(step: Step) -> Outcome:
    axis = integer_of(step.node, "axis", 0) % max(step.at.ndim, 1)
    if not step.is_data or step.at.ndim == 0:
        return None
    if step.at.shape[axis] == 1:
        return [(value, step.at) for value in step.node.outputs]
    found, start = list[tuple[ir.Value, Index]](), 0
    for value in step.node.outputs:
        sizes = step.sizes_of(value)
        size = None if sizes is None else sizes[axis]
        if not isinstance(size, int):
            return None
        found.append((value, np.take(step.at, range(start, start + size), axis=axis)))
        start += size
    return found


def _concat(step: Step) -> Outcome:
    """Concat: the others are not scaled. The size along the axis must be known of all."""
    attribute = step.node.attributes.get("axis")
    if attribute is None or attribute.is_ref():
        return None
    axis = attribute.as_int() % step.at.ndim
    parts = list[Index]()
    full = [1] * step.at.ndim
    for i, size in enumerate(step.at.shape):
        full[i] = size
    for position, value in enumerate(step.node.inputs):
        sizes = step.sizes_of(value) if value is not None else None
        size = None if sizes is None else sizes[axis]
        if not isinstance(size, int):
            return None
        if position == step.position:
            shape = [size if i == axis else n for i, n in enumerate(full)]
            parts.append(np.broadcast_to(step.at, shape))
        else:
            parts.append(np.full([size if i == axis else n for i, n in enumerate(full)], -1))
    return [(step.output, np.concatenate(parts, axis=axis))]


def _expand(step: Step) -> Outcome:
    """Expand: an axis of one element is repeated, which changes nothing along it."""
    sizes = step.sizes_of(step.output)
    if not step.is_data or sizes is None:
        return None
    return [(step.output, step.at.reshape([1] * (len(sizes) - step.at.ndim) + list(step.at.shape)))]


def _tile(step: Step) -> Outcome:
    times = constant_array(step.node.inputs[1]) if len(step.node.inputs) == 2 else None
    if not step.is_data or times is None or times.size != step.at.ndim:
        return None
    return [
        (step.output, np.tile(step.at, [int(n) if m > 1 else 1 for n, m in zip(times, step.at.shape, strict=True)]))
    ]


def _product(step: Step) -> Outcome:
    """MatMul of the scaled value and any other, where what is summed over is scaled alike: rows of the first operand, columns
    of the second, and batches."""
    other = step.node.inputs[1 - step.position]
    sizes = step.sizes_of(other) if other is not None else None
    if other is step.node.inputs[step.position] or sizes is None or len(sizes) < 2 or step.at.ndim < 2:
        return None
    if step.changes_along([-1 if step.position == 0 else -2]):
        return None
    rank = max(len(sizes), step.at.ndim)
    return [(step.output, step.at.reshape([1] * (rank - step.at.ndim) + list(step.at.shape)))]


STEPS: Mapping[str, Callable[[Step], Outcome]] = {
    **dict.fromkeys(("Abs", "Dropout", "Identity", "LeakyRelu", "Neg", "Relu"), _same),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"), _pool),
    **dict.fromkeys(("Div", "Mul"), _times),
    **dict.fromkeys(("Flatten", "Reshape"), _reshape),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduce),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _squeezed),
    "Cast": _cast,
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _taken,
    "MatMul": _product,
    "PRelu": _same,
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
}
