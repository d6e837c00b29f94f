"""scatter-nd-to-concat

ScatterND writes rows of ``updates`` to places of ``data``. Where the places are a box [a₀, b₀) × [a₁, b₁) × … in row-major order,
what comes out is, along each axis that the box does not fill, what lies before the box, the box, and what lies behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.build import Builder, Site, drop_chains, take_place
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import constant_array, text_of
from qdq_passes.numerics.arrays import Array
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

#: The first and the last place, plus one, along each axis that is indexed.
Box = list[tuple[int, int]]


@dataclass(frozen=True)
class ScatterNdToConcat(Pass):
    """Replace ScatterND with constant indices that fill a box by Slices of its data and a Concat around its updates.

    Graph: ``x [1,8,4], indices, u → ScatterND → y`` → ``Concat(Slice(x, :, 0:2), u, Slice(x, :, 5:8))``; along several axes one
    Concat inside the other; ``Reshape(u)`` where the box is all of x.
    Requires: indices that are constant, the static shape of the data (infer-shapes).
    Keeps: inputs, outputs and their names; numerics bit-exact (elements only move).
    Skips: indices that are computed, leave gaps, go backwards or write a place twice; a reduction; data of unknown shape.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node after node."""
        builder, inferred = Builder(model), Inferred(model)
        for node in nodes_of_types(model, self.select, "ScatterND"):
            data, indices, updates = node.inputs[:3]
            assert data is not None
            assert updates is not None
            shape, places = inferred.sizes(data), constant_array(indices)
            reason = _why_not(node, shape, places)
            box = None if reason or shape is None or places is None else _box(places, shape)
            if shape is None or box is None:
                yield skip(node, reason or "its indices are no box in the order of its places")
                continue
            site = builder.at(node)
            sizes = [high - low for low, high in box] + shape[len(box) :]
            written = updates if inferred.sizes(updates) == sizes else site.reshape(updates, sizes)
            written.shape = ir.Shape(sizes) if written is not updates else written.shape
            parameters = list(node.inputs)
            yield take_place(node, [_around(site, data, box, written, shape)], builder.namer, f"writes {_text(box)}")
            yield from drop_chains(parameters)


def _why_not(node: ir.Node, shape: list[int] | None, places: Array | None) -> str:
    if text_of(node, "reduction", "none") != "none":
        return f"it combines by {text_of(node, 'reduction', 'none')}"
    if places is None:
        return "its indices are computed"
    return "the shape of its data is not known (infer-shapes)" if shape is None or not places.size else ""


def _box(places: Array, shape: list[int]) -> Box | None:
    """The box that ``places`` [..., k] fill, one after the other in row-major order."""
    count = places.shape[-1]
    rows = places.reshape(-1, count).astype(np.int64)
    rows = np.where(rows < 0, rows + np.array(shape[:count]), rows)
    box = [(int(column.min()), int(column.max()) + 1) for column in rows.T]
    if any(low < 0 or high > size for (low, high), size in zip(box, shape, strict=False)):
        return None
    full = np.stack(np.meshgrid(*(np.arange(*ends) for ends in box), indexing="ij"), -1).reshape(-1, count)
    return box if np.array_equal(rows, full) else None


def _around(site: Site, data: ir.Value, box: Box, written: ir.Value, shape: list[int]) -> ir.Value:
    """``written`` where ``box`` is, and what of ``data`` is around it; axis after axis, each inside the one before."""
    axes = [axis for axis, (low, high) in enumerate(box) if (low, high) != (0, shape[axis])]
    if not axes:
        return written if site.nodes else site("Identity", written)
    inside = [data]
    for axis in axes[:-1]:
        inside.append(site.slice(inside[-1], axis, *box[axis]))
    for axis, around in reversed(list(zip(axes, inside, strict=True))):
        low, high = box[axis]
        before = [site.slice(around, axis, 0, low)] if low else []
        behind = [site.slice(around, axis, high, shape[axis])] if high < shape[axis] else []
        written = site("Concat", *before, written, *behind, axis=axis)
    return written


def _text(box: Box) -> str:
    return f"[{', '.join(f'{low}:{high}' for low, high in box)}]"
