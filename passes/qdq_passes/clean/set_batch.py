"""set-batch"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import changes_of
from qdq_passes.clean.look.batch_flow import Spot, batch_spots
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.graph.edit import Namer, own_initializer, set_constant
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.graph.uses import constant_array, input_at, integer_of, is_constant, is_standard, label, main_nodes

#: What reads where a result goes to in an input of integers.
_SHAPED = ("Reshape", "Expand")


@dataclass(frozen=True)
class SetBatch(Pass):
    """Let a model that was exported for several samples at once take ``size`` at a time: one, for chips that take one.

    Graph: same wiring. ``x [4,3,8,8] → Conv → Reshape to [4,64] → Gemm → y [4,10]`` becomes ``x [1,3,8,8] → Conv → Reshape to
    [1,64] → Gemm → y [1,10]``: inputs, outputs and what lies between, shapes that Reshape, Expand and Resize are told, and
    constants that hold the same for each sample.
    Requires: static shapes, which are inferred; all inputs of two dimensions or more begin with the same number.
    Keeps: names; what is computed of a sample, up to the order of sums.
    Skips: models without a batch, or with one of a single sample, with a note; where an operator may let samples meet (a sum
    over the batch, a Softmax along it), where a constant differs from sample to sample, where a shape is computed or a node
    has a body: the node is named, and the model is left as it is, but for shapes.

    Args:
        size: samples at a time.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="inputs and outputs hold another number of samples")
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"a batch of {self.size} holds nothing", where=self.name(), hint="write size=1")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Follow the samples, find all that says how many there are, then change all of it or nothing."""
        inputs = [value for value in model.graph.inputs if not value.is_initializer() and len(value.shape or ()) > 1]
        firsts = {value.shape[0] for value in inputs if value.shape is not None}
        samples = next(iter(firsts), None)
        if len(firsts) != 1 or not isinstance(samples, int):
            told = ", ".join(str(first) for first in sorted(firsts, key=str)) or "nothing"
            yield skip("model", f"its inputs begin with {told}, which is no one batch")
            return
        if samples == self.size:
            return
        if samples < 2:  # dimensions of 1 are not told from those of samples
            yield skip(
                "model", f"its inputs hold {samples} of what would be samples: fix-shapes binds a symbolic batch"
            )
            return
        yield from changes_of(model, infer_shapes, "inferred")
        try:
            spots = batch_spots(model.graph, samples, inputs, model.opset_imports.get("", 1))
            edits = dict(_edits(model, spots, samples, self.size))
        except UnsupportedError as error:
            yield skip(error.where or "model", error.message)
            return
        namer = Namer(model)
        for (node, index), data in edits.items():
            set_constant(own_initializer(node, index, namer), data)
            yield Change("edit", label(node), f"{self.size} in place of {samples} in {node.inputs[index].name}")  # type: ignore[union-attr]
        for value, spot in spots.items():
            assert value.shape is not None
            dims = list(value.shape.dims)
            dims[spot.axis] = int(dims[spot.axis]) // samples * self.size  # type: ignore[arg-type]
            value.shape = ir.Shape(dims)
            if value.is_graph_input() or value.is_graph_output():
                yield Change("edit", value.name or "", f"{self.size} in place of {samples} samples")
        for (node, _), _ in edits.items():  # a table that is expanded to samples is no sample itself
            if is_standard(node, "Expand") and node.outputs[0] not in spots:
                node.outputs[0].shape = ir.Shape([int(d) for d in edits[node, 1]])


Edits = tuple[tuple[ir.Node, int], np.ndarray]


def _edits(model: ir.Model, spots: Mapping[ir.Value, Spot], samples: int, size: int) -> Iterator[Edits]:
    """(node, input) → what it holds for ``size`` samples, of each constant that says how many there are.

    Raises:
        UnsupportedError: one cannot be changed.
    """
    for node in main_nodes(model):
        if node.outputs[0] not in spots:
            continue
        spot, sizes = spots[node.outputs[0]], static_sizes(node.outputs[0])
        assert sizes is not None
        if is_standard(node, *_SHAPED):
            yield from _shape(node, 1, spot, samples, size)
        elif is_standard(node, "Resize") and (target := constant_array(input_at(node, 3))) is not None and target.size:
            yield (node, 3), _scaled(target, spot.axis, samples, size)
        if is_standard(node, "Reshape") or (is_qdq(node) and not integer_of(node, "block_size", 0)):
            continue
        for index, value in enumerate(node.inputs):
            if value is None or value in spots or (is_standard(node, *_SHAPED) and index == 1):
                continue
            own = static_sizes(value) or []
            axis = spot.axis - len(sizes) + len(own)
            if 0 <= axis < len(own) and own[axis] == sizes[spot.axis] and _has_samples(node, index):
                yield from _beside(node, index, axis, samples * spot.outside, size)


def _has_samples(node: ir.Node, index: int) -> bool:
    """Whether input ``index`` of ``node`` is broadcast against the others, or joined with them."""
    return not is_standard(
        node, "Conv", "ConvTranspose", "Gemm", "BatchNormalization", "LayerNormalization", "InstanceNormalization", "Gather",
        "Slice", "Pad", "Resize", "Split", "PRelu",
    ) and not (is_standard(node, "MatMul") and len(static_sizes(node.inputs[index]) or []) < 3)  # fmt: skip


def _shape(node: ir.Node, index: int, spot: Spot, samples: int, size: int) -> Iterator[Edits]:
    target = constant_array(input_at(node, index))
    if target is None or not is_constant(node.inputs[index]):
        raise UnsupportedError(f"the shape that {node.op_type} is told is computed", where=label(node))
    sizes = static_sizes(node.outputs[0]) or []
    axis = spot.axis - len(sizes) + len(target)
    if axis < 0 or target[axis] in (-1, 1):
        return
    if target[axis] == 0:
        before = static_sizes(node.inputs[0]) or []
        if axis >= len(before) or before[axis] != sizes[axis]:
            raise UnsupportedError("a dimension is copied from one that is another", where=label(node))
        return
    yield (node, index), _scaled(target, axis, samples, size)


def _scaled(target: np.ndarray, axis: int, samples: int, size: int) -> np.ndarray:
    changed = target.copy()
    changed[axis] = target[axis] // samples * size
    return changed


def _beside(node: ir.Node, index: int, axis: int, samples: int, size: int) -> Iterator[Edits]:
    """What is joined with or added to samples, and holds one for each: a constant of equal slices, or an expanded table."""
    value = node.inputs[index]
    assert value is not None
    data, producer = constant_array(value), value.producer()
    if data is not None and data.shape[axis] == samples:
        first = np.take(data, [0], axis=axis)
        if not np.array_equal(np.broadcast_to(first, data.shape), data):
            raise UnsupportedError(f"{value.name} differs from sample to sample", where=label(node))
        yield (node, index), np.repeat(first, size, axis=axis)
        return
    target = None if producer is None or not is_standard(producer, "Expand") else constant_array(producer.inputs[1])
    if producer is None or target is None or target[axis] != samples:
        raise UnsupportedError(f"{value.name} holds something for each sample that is not known", where=label(node))
    yield (producer, 1), _scaled(target, axis, samples, size)
