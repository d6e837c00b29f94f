"""Forms of operators on whole tensors: sums of several, reductions, normalizations, moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.graph.build import OPSET_OF_MEAN_AXES
from qdq_passes.graph.operators.layers import DEFAULT_EPSILON, normalizes_by_input
from qdq_passes.graph.operators.reductions import written_axes
from qdq_passes.graph.uses import constant_array, integer_of, integers_of, is_standard, only_reader, text_of
from qdq_passes.legalize.edit.forms import Declined, Form, Given, Written

#: First opset whose GroupNormalization has a scale for each channel; one for each group before.
OPSET_OF_CHANNEL_SCALES = 21
#: Elements that are averaged right everywhere (measured: more saturate on qnn_htp between two scales).
LARGE = 9
#: Most copies that are put side by side.
MOST_COPIES = 64


def _pairwise(op_type: str) -> Callable[[Given], ir.Value]:
    """a ∘ b ∘ c, from the left, as onnxruntime computes it."""

    def write(at: Given) -> ir.Value:
        if len(at.read) < 3 and at.node.op_type == op_type:
            raise Declined(f"has {len(at.read)} inputs")
        if len(at.read) == 1:
            raise Declined("has one input; run remove-no-ops")
        return reduce(lambda a, b: at.site(op_type, a, b), at.read)

    return write


def _mean(at: Given) -> ir.Value:
    return at.times(_pairwise("Add")(at), 1 / len(at.read))


def _axes(at: Given) -> list[int]:
    written, rank = written_axes(at.node), at.rank()
    if written is None:
        raise Declined("its axes are computed, or it has none")
    return sorted({axis % rank for axis in written}) if written else list(range(rank))


def _reduce_sum(at: Given) -> ir.Value:
    """Σx = n·mean(x)."""
    axes, keepdims = _axes(at), at.integer_of("keepdims", 1)
    sizes = at.inferred.sizes(at.x, axes)
    if sizes is None or 0 in sizes:
        raise Declined("how much it sums is not known; run infer-shapes or fix-shapes first")
    if at.site.opset < OPSET_OF_MEAN_AXES:
        mean = at.site("ReduceMean", at.x, axes=axes, keepdims=keepdims)
    else:
        mean = at.site("ReduceMean", at.x, at.site.constant(axes), keepdims=keepdims)
    return at.times(mean, float(math.prod(sizes)))


def _global_max_pool(at: Given) -> ir.Value:
    sizes = at.sizes()
    return at.site("MaxPool", at.x, kernel_shape=sizes[2:])


def _reduce_max(at: Given) -> ir.Value:
    """A pool over all axes behind the channels; over other neighbouring axes one of [1, axes before, those, axes behind]."""
    axes, sizes = _axes(at), at.sizes()
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise Declined(f"is over axes {axes}, which do not lie side by side")
    first, behind = axes[0], axes[-1] + 1
    kept = [1] * len(axes) if at.integer_of("keepdims", 1) else []
    result = [*sizes[:first], *kept, *sizes[behind:]]
    if first == 2 and behind == len(sizes):
        found = at.site("MaxPool", at.x, kernel_shape=sizes[2:])
        return found if kept else at.site.reshape(found, result)
    outer, inner, over = (math.prod(part) for part in (sizes[:first], sizes[behind:], sizes[first:behind]))
    rows = at.site.reshape(at.x, [1, outer, over, inner])
    return at.site.reshape(at.site("MaxPool", rows, kernel_shape=[over, 1]), result)


def _global_average_pool(at: Given) -> ir.Value:
    return at.site.mean(at.x, range(2, at.rank()))


def _average_pool(at: Given) -> ir.Value:
    """A convolution of each channel by 1/|window|, which 8 bits hold exactly."""
    kernel, channels = integers_of(at.node, "kernel_shape"), at.inferred.sizes(at.x, [1])
    pads = integers_of(at.node, "pads")
    if text_of(at.node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or at.integer_of("ceil_mode", 0):
        raise Declined("its pads hang on its sizes; run explicit-conv-attributes")
    if any(pads) and not at.integer_of("count_include_pad", 0):
        raise Declined("leaves its pads out of the mean")
    if channels is None:
        raise Declined("its channels are not known; run infer-shapes first")
    steps, dilations = (integers_of(at.node, name) or [1] * len(kernel) for name in ("strides", "dilations"))
    weights = at.array(np.full((channels[0], 1, *kernel), 1 / math.prod(kernel)), "mean")
    return at.site(
        "Conv", at.x, weights, group=channels[0], kernel_shape=kernel, strides=steps, dilations=dilations,
        pads=pads or [0] * 2 * len(kernel),
    )  # fmt: skip


def _large_average_pool(at: Given) -> ir.Value:
    """Of a whole image its global pool."""
    kernel = integers_of(at.node, "kernel_shape")
    if math.prod(kernel) <= LARGE:
        raise Declined(f"averages {math.prod(kernel)} elements, not more than {LARGE}")
    sizes = at.inferred.sizes(at.x, range(2, at.rank()))
    is_plain = not any(integers_of(at.node, "pads")) and set(integers_of(at.node, "dilations")) <= {1}
    return at.site("GlobalAveragePool", at.x) if sizes == kernel and is_plain else _average_pool(at)


def _batch_norm(at: Given) -> ir.Value:
    """f·x + b with f = γ/√(var + ε), b = β − μ·f."""
    if normalizes_by_input(at.node, at.site.opset) or not at.integer_of("spatial", 1):
        raise Declined("is in training mode, or has statistics for every element")
    gamma, beta, mean, variance = (at.constant(index, "parameters") for index in range(1, 5))
    factor = gamma / np.sqrt(variance + at.float_of("epsilon", DEFAULT_EPSILON))
    offset = beta - mean * factor
    if np.all(factor == 1) and not np.any(offset):
        raise Declined("does nothing; run remove-no-ops")
    return _affine(at, at.x, factor, offset, at.rank())


def _affine(at: Given, x: ir.Value, factor: npt.NDArray[Any], offset: npt.NDArray[Any], rank: int) -> ir.Value:
    """factor·x + offset, along axis 1; a factor of 1 and an offset of 0 cost nothing."""
    if not np.all(factor == 1):
        x = at.site("Mul", x, at.along(factor, rank, "scale"))
    return x if not np.any(offset) else at.site("Add", x, at.along(offset, rank, "shift"))


def _group_norm(at: Given) -> ir.Value:
    """An InstanceNormalization of as many channels as there are groups."""
    sizes, groups = at.sizes(), at.integer_of("num_groups", 1)
    scale, bias = at.constant(1, "scale"), at.constant(2, "bias")
    if at.site.opset < OPSET_OF_CHANNEL_SCALES:
        scale, bias = (np.repeat(data, sizes[1] // groups) for data in (scale, bias))
    normalized = _normalized(at, at.site.reshape(at.x, [0, groups, -1]), groups)
    return _affine(at, at.site.reshape(normalized, sizes), scale, bias, len(sizes))


def _normalized(at: Given, x: ir.Value, channels: int) -> ir.Value:
    """``x`` [N, ``channels``, D], each row of D with mean 0 and variance 1."""
    ones, zeros = at.array(np.ones(channels), "ones"), at.array(np.zeros(channels), "zeros")
    return at.site("InstanceNormalization", x, ones, zeros, epsilon=at.float_of("epsilon", DEFAULT_EPSILON))


def _layer_norm(at: Given) -> ir.Value:
    """An InstanceNormalization of as many channels as there are rows."""
    if any(output.uses() or output.is_graph_output() for output in at.node.outputs[1:]):
        raise Declined("gives out its means")
    sizes = at.sizes()
    axis = at.integer_of("axis", -1) % len(sizes)
    rows = math.prod(sizes[:axis])
    y = at.site.reshape(_normalized(at, at.site.reshape(at.x, [1, rows, -1]), rows), sizes)
    y = at.site("Mul", y, at.node.inputs[1])
    return at.site("Add", y, at.node.inputs[2]) if len(at.node.inputs) > 2 else y


def _instance_norm(at: Given) -> ir.Value:
    """A LayerNormalization of rows that are channels."""
    sizes, scale, bias = at.sizes(), at.constant(1, "scale"), at.constant(2, "bias")
    ones = at.array(np.ones(math.prod(sizes[2:])), "ones")
    rows = at.site.reshape(at.x, [*sizes[:2], -1])
    y = at.site("LayerNormalization", rows, ones, axis=-1, epsilon=at.float_of("epsilon", DEFAULT_EPSILON))
    return _affine(at, at.site.reshape(y, sizes), scale, bias, len(sizes))


def _rms_norm(at: Given) -> ir.Value:
    """The first half of a LayerNormalization of x and −x, whose mean is 0 and whose variance is the mean of x²."""
    if at.integer_of("axis", -1) not in (-1, at.rank() - 1):
        raise Declined("is over more than the last axis")
    gain = at.constant(1, "gain").reshape(-1)
    both = at.site("Concat", at.x, at.times(at.x, -1.0), axis=-1)
    y = at.site(
        "LayerNormalization", both, at.array(np.concatenate([gain, gain]), "gain"), axis=-1,
        epsilon=at.float_of("epsilon", DEFAULT_EPSILON),
    )  # fmt: skip
    return at.site.slice(y, -1, 0, gain.size)


def _gather_elements(at: Given) -> ir.Value:
    """Elements at constant places: rows of a table, along the axes on which the places are the same; the rest is one axis."""
    index, sizes = at.constant(1, "indices").astype(np.int64), at.sizes()
    axis = at.integer_of("axis", 0) % len(sizes)
    index = np.where(index < 0, index + sizes[axis], index)
    result = [*index.shape]
    places: list[npt.NDArray[np.int64]] = [*np.indices(index.shape, np.int64)]
    places[axis] = index
    rows = 0
    while rows < axis and index.shape[0] == sizes[rows] and (index == index[:1]).all():
        index, places, rows = index[0], [place[0] for place in places], rows + 1
    inner = sizes[rows:]
    flat = _flat(places[rows:], inner)
    table = at.site.reshape(at.x, [math.prod(sizes[:rows]), math.prod(inner)])
    found = at.site("Gather", table, at.site.constant(flat, word="places"), axis=1)
    return at.site.reshape(found, result)


def _scatter_elements(at: Given) -> ir.Value:
    """Updates at constant places: rows of a table of the elements and the updates behind them, of several updates the last."""
    index, sizes = at.constant(1, "indices").astype(np.int64), at.sizes()
    if text_of(at.node, "reduction", "none") != "none" or len(at.read) != 3:
        raise Declined("combines what it writes")
    axis = at.integer_of("axis", 0) % len(sizes)
    places: list[npt.NDArray[np.int64]] = [*np.indices(index.shape, np.int64)]
    places[axis] = np.where(index < 0, index + sizes[axis], index)
    rows = np.arange(math.prod(sizes))
    rows[_flat(places, sizes).ravel()] = rows.size + np.arange(index.size)
    table = at.site("Concat", *(at.site.reshape(value, [1, -1]) for value in (at.x, at.read[2])), axis=1)
    found = at.site("Gather", table, at.site.constant(rows, word="places"), axis=1)
    return at.site.reshape(found, sizes)


def _flat(places: Sequence[npt.NDArray[np.int64]], sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """``places`` in a tensor of ``sizes``, counted along all axes."""
    if any(((place < 0) | (place >= size)).any() for place, size in zip(places, sizes, strict=True)):
        raise Declined("has places outside of what it reads")
    return np.asarray(np.ravel_multi_index(tuple(places), sizes))


def _softmax(at: Given) -> ir.Value:
    """e^(x − max x) over its sum."""
    axis = at.integer_of("axis", -1 if at.site.opset >= 13 else 1)
    if at.site.opset < 13 and axis not in (-1, at.rank() - 1):
        raise Declined("of this opset normalizes several axes at once; run convert-opset")
    axes = at.site.constant([axis])
    top = at.site("ReduceMax", at.x, axes) if at.site.opset >= 18 else at.site("ReduceMax", at.x, axes=[axis])
    powers = at.site("Exp", at.site("Sub", at.x, top))
    total = at.site("ReduceSum", powers, axes) if at.site.opset >= 13 else at.site("ReduceSum", powers, axes=[axis])
    return at.site("Div", powers, total)


def _copies(at: Given, copies: list[int]) -> ir.Value:
    """``copies`` of x along each axis."""
    if math.prod(copies) > MOST_COPIES:
        raise Declined(f"makes {math.prod(copies)} copies, more than {MOST_COPIES}")
    value = at.x
    for axis, count in enumerate(copies):
        value = value if count == 1 else at.site("Concat", *[value] * count, axis=axis)
    if value is at.x:
        raise Declined("makes one copy; run remove-no-ops")
    return value


def _expand(at: Given) -> ir.Value:
    given, sizes = [int(size) for size in at.constant(1, "shape")], at.sizes()
    if len(given) > len(sizes):
        raise Declined("adds axes")
    wanted = [1] * (len(sizes) - len(given)) + given
    return _copies(at, [want if size == 1 else 1 for size, want in zip(sizes, wanted, strict=True)])


def _blocks(at: Given) -> ir.Value:
    """Blocks that lie side by side, put together to an image."""
    image, block = at.constant(1, "image's size"), at.constant(2, "block's size")
    if image.size != 2 or block.size != 2:
        raise Declined("has other than two axes of an image")
    (height, width), (high, wide) = (tuple(int(size) for size in sizes) for sizes in (image, block))
    strides, pads, dilations = (integers_of(at.node, name) for name in ("strides", "pads", "dilations"))
    if strides != [high, wide] or height % high or width % wide or any(pads) or any(d != 1 for d in dilations):
        raise Declined("adds blocks that overlap, or leaves gaps")
    channels = at.inferred.sizes(at.x, [1])
    if channels is None:
        raise Declined("its channels are not known; run infer-shapes first")
    rows, columns = height // high, width // wide
    result = [-1, channels[0] // (high * wide), height, width]
    return at.moved(at.x, [-1, high, wide, rows, columns], [0, 3, 1, 4, 2], result)


def _token(at: Given) -> Written:
    """A constant that is put before or behind others for each sample: zeros there, to which it is added."""
    reader = only_reader(at.node.outputs[0])
    if reader is None or not is_standard(reader, "Concat"):
        raise Declined("is read by other than one Concat")
    token, wanted = constant_array(at.x), at.inferred.rank(reader.outputs[0])
    if token is None or wanted is None or token.ndim > wanted:
        raise Declined("is of no constant")
    token = token.reshape([1] * (wanted - token.ndim) + list(token.shape))
    axis = integer_of(reader, "axis", 0) % wanted
    sizes = at.inferred.sizes(reader.outputs[0], [axis])
    own = at.inferred.sizes(at.node.outputs[0], [axis])
    rest = [value for value in reader.inputs if value is not None and value is not at.node.outputs[0]]
    is_first = reader.inputs[0] is at.node.outputs[0]
    if sizes is None or own != [token.shape[axis]] or len(rest) != len(reader.inputs) - 1:
        raise Declined("is joined along the axis that grows")
    if not rest or not (is_first or reader.inputs[-1] is at.node.outputs[0]):
        raise Declined("is neither first nor last of what its Concat joins")
    site = at.site.before(reader)
    pads, room = [0] * (2 * wanted), sizes[0] - own[0]
    others = rest[0] if len(rest) == 1 else site("Concat", *rest, axis=axis)
    if others.shape is None and reader.outputs[0].shape is not None:
        others.shape = ir.Shape([room if a == axis else size for a, size in enumerate(reader.outputs[0].shape)])
    pads[axis + (0 if is_first else wanted)] = own[0]
    width = [(0, 0)] * wanted
    width[axis] = (0, room) if is_first else (room, 0)
    padded = site("Pad", others, site.constant(pads), name="Room")
    return Written(reader, site("Add", padded, at.array(np.pad(token, width), "token")))


def _tile(at: Given) -> ir.Value:
    return _copies(at, [int(count) for count in at.constant(1, "number of copies")])


def _reshape(at: Given) -> ir.Value:
    """Axes of size 1 come and go, or run together: elements stay where they are."""
    return at.site.reshape(at.x, at.sizes(at.node.outputs[0]))


def _depth_to_space(at: Given) -> ir.Value:
    n, c, h, w = at.sizes()
    b = at.integer_of("blocksize", 1)
    result = [n, c // b**2, h * b, w * b]
    if text_of(at.node, "mode", "DCR") == "CRD":
        return at.moved(at.x, [n, c // b**2, b, b, h, w], [0, 1, 4, 2, 5, 3], result)
    return at.moved(at.x, [n, b, b, c // b**2, h, w], [0, 3, 4, 1, 5, 2], result)


def _space_to_depth(at: Given) -> ir.Value:
    n, c, h, w = at.sizes()
    b = at.integer_of("blocksize", 1)
    order = [0, 1, 3, 5, 2, 4] if text_of(at.node, "mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return at.moved(at.x, [n, c, h // b, b, w // b, b], order, [n, c * b**2, h // b, w // b])


def _subtraction(at: Given) -> ir.Value:
    """a − b = a + (−1)·b."""
    a, b = at.read
    return at.site("Add", a, at.times(b, -1.0))


def _quotient(at: Given) -> ir.Value:
    """a/c = (1/c)·a, c being constant."""
    divisor = at.constant(1, "divisor")
    if not np.all(divisor):
        raise Declined("divides by 0")
    return at.site("Mul", at.x, at.array(1 / divisor, "factor"))


TENSORS = (
    Form("AveragePool", ("Conv",), _average_pool),
    Form("AveragePool", ("Conv", "GlobalAveragePool"), _large_average_pool, "Large"),
    Form("BatchNormalization", ("Add", "Mul"), _batch_norm),
    Form("Col2Im", ("Reshape", "Transpose"), _blocks, any_type=True),
    Form("DepthToSpace", ("Reshape", "Transpose"), _depth_to_space, any_type=True),
    Form("Div", ("Mul",), _quotient),
    Form("Expand", ("Concat",), _expand, any_type=True),
    Form("Expand", ("Add", "Concat", "Pad"), _token, by="Pad"),
    Form("Flatten", ("Reshape",), _reshape, any_type=True),
    Form("GatherElements", ("Gather", "Reshape"), _gather_elements),
    Form("GlobalAveragePool", ("ReduceMean",), _global_average_pool),
    Form("GlobalMaxPool", ("MaxPool",), _global_max_pool),
    Form("GroupNormalization", ("Add", "InstanceNormalization", "Mul", "Reshape"), _group_norm),
    Form("InstanceNormalization", ("Add", "LayerNormalization", "Mul", "Reshape"), _instance_norm),
    Form("LayerNormalization", ("Add", "InstanceNormalization", "Mul", "Reshape"), _layer_norm),
    Form("Max", ("Max",), _pairwise("Max")),
    Form("Mean", ("Add", "Mul"), _mean),
    Form("Min", ("Min",), _pairwise("Min")),
    Form("RMSNormalization", ("Concat", "LayerNormalization", "Mul", "Slice"), _rms_norm),
    Form("ReduceMax", ("MaxPool", "Reshape"), _reduce_max),
    Form("ReduceSum", ("Mul", "ReduceMean"), _reduce_sum),
    Form("ScatterElements", ("Concat", "Gather", "Reshape"), _scatter_elements),
    Form("Softmax", ("Div", "Exp", "ReduceMax", "ReduceSum", "Sub"), _softmax),
    Form("SpaceToDepth", ("Reshape", "Transpose"), _space_to_depth, any_type=True),
    Form("Squeeze", ("Reshape",), _reshape, any_type=True),
    Form("Sub", ("Add", "Mul"), _subtraction),
    Form("Sum", ("Add",), _pairwise("Add")),
    Form("Tile", ("Concat",), _tile, any_type=True),
    Form("Unsqueeze", ("Reshape",), _reshape, any_type=True),
)
