"""gather-nd-to-gather

An index (i_0, …, i_(k-1)) into x of shape [d_0, …, d_(k-1), rest] means the row Σ i_j·d_(j+1)·…·d_(k-1) of x as
[d_0·…·d_(k-1), rest]. One below 0 counts from the end: i_j mod d_j for j > 0; with i_0 below 0 the row lies in
[-d_0·…·d_(k-1), -1], which Gather counts from the end as well."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.build import OPSET_OF_AXES, Builder, Site, take_place
from qdq_passes.graph.edit import drop_unread
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import FLOAT_TYPES, constant_array, integer_of
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types


@dataclass(frozen=True)
class GatherNdToGather(Pass):
    """Replace GatherND by a Gather of rows: what takes one token of each sequence, on NPUs that look up rows alone.

    Graph: ``x [B, S, C], i [B, 2] → GatherND`` → ``x → Reshape [B·S, C] → Gather(axis=0)`` with rows ``i_0·S + i_1 mod S``, which
        are a constant where the indices are one.
    Requires: shapes.
    Keeps: inputs, outputs and their names; numerics bit-exact for indices within bounds.
    Skips: data that is no float, such as masks; batch dimensions; sizes that are not known.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """GatherND by GatherND."""
        build, inferred = Builder(model), Inferred(model)
        for node in nodes_of_types(model, self.select, "GatherND"):
            data, indices = node.inputs
            assert data is not None
            assert indices is not None
            if inferred.dtype(data) not in FLOAT_TYPES:
                yield skip(node, "what it takes is no float")
                continue
            if integer_of(node, "batch_dims", 0):
                yield skip(node, "has batch dimensions")
                continue
            depth = inferred.sizes(indices, [-1])
            inner = None if depth is None else inferred.sizes(data, slice(1, None))
            if depth is None or inner is None:
                yield skip(node, f"the sizes of {data.name if depth else indices.name} are not known")
                continue
            at = build.at(node)
            rows = _rows(at, indices, inner[: depth[0] - 1])
            flat = data if depth[0] == 1 else at.reshape(data, [-1, *inner[depth[0] - 1 :]])
            yield take_place(node, [at("Gather", flat, rows, axis=0)], build.namer, "rows of a table")
            yield from drop_unread([indices])


def _rows(at: Site, indices: ir.Value, inner: list[int]) -> ir.Value:
    """The rows that ``indices`` [..., k] mean, d_1 to d_(k-1) being ``inner``."""
    strides = np.array([math.prod(inner[j:]) for j in range(len(inner) + 1)], np.int64)
    known = constant_array(indices)
    if known is not None:
        wrapped = np.concatenate([known[..., :1], known[..., 1:] % np.array(inner, np.int64)], axis=-1)
        return at.constant(wrapped @ strides, word="rows")
    if not inner:
        return at.squeeze(indices, -1)
    first = at.slice(indices, -1, 0, 1)
    others = at("Mod", at.slice(indices, -1, 1, len(strides)), at.constant(inner))
    parts = [at("Mul", first, at.constant(strides[:1])), at("Mul", others, at.constant(strides[1:]))]
    products = at("Concat", *parts, axis=-1)
    if at.opset < OPSET_OF_AXES:
        return at("ReduceSum", products, axes=[-1], keepdims=0)
    return at("ReduceSum", products, at.constant([-1]), keepdims=0)
