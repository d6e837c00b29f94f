"""split-to-slice

Output k of Split takes the elements [start, start + size) along one axis, start being the sum of the sizes before it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unread, graph_of, hand_over, make_node, move_annotations, remove
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import constant_array, integer_of, label
from qdq_passes.legalize.edit.factors import ConstantForm, make_constant
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

#: First opset whose Slice takes its bounds as inputs, not as attributes.
OPSET_OF_INPUTS = 10


@dataclass(frozen=True)
class SplitToSlice(Pass):
    """Replace every Split by a Slice per output, each of which can then have a scale of its own.

    Graph: ``x → Split → a, b`` → ``x → Slice → a; x → Slice → b``. Names: nodes ``a_0``, ``b_1``; constants ``a_starts_0``,
    ``a_ends_0``, ``a_axes_0``, ``a_steps_0`` (attributes before opset 10).
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact (elements only move).
    Skips: sizes that are computed; equal parts of a size that is not known.

    Args:
        select: the operators.
        constant: bounds are an ``initializer`` each, or a Constant ``node`` each.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL
    constant: ConstantForm = "initializer"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Split by split; an output that has no name is nobody's."""
        namer, inferred = Namer(model), Inferred(model)
        for node in nodes_of_types(model, self.select, "Split"):
            sizes = _sizes(node, inferred)
            if isinstance(sizes, str):
                yield skip(node, sizes)
                continue
            axis, opset = integer_of(node, "axis", 0), opset_at(model, node)
            for number, (start, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
                if node.outputs[number].name:
                    bounds = {"starts": start, "ends": start + size, "axes": axis, "steps": 1}
                    self._slice(node, number, bounds, opset, namer)
            parameters = list(node.inputs)
            remove(node, "every output has its Slice")
            drop_unread(parameters)
            yield Change("replace", label(node), f"{len(sizes)} Slices along axis {axis}, sizes {sizes}")

    def _slice(self, node: ir.Node, number: int, bounds: dict[str, int], opset: int, namer: Namer) -> None:
        """Put a Slice before ``node`` that stands for its output ``number``."""
        old, graph = node.outputs[number], graph_of(node)
        attributes = []
        if opset < OPSET_OF_INPUTS:
            attributes = [ir.AttrInt64s(key, [bounds[key]]) for key in ("starts", "ends", "axes")]
        made = make_node(
            "Slice", [node.inputs[0]], name=namer.fresh(f"{old.name}_{number}"), like=old, attributes=attributes,
            output=namer.fresh(f"{old.name}_part"), stands_for=[node],
        )  # fmt: skip
        graph.insert_before(node, made)
        for key, bound in bounds.items() if not attributes else ():
            tensor = ir.tensor(np.array([bound], np.int64))
            constant = make_constant(made, f"{old.name}_{key}_{number}", tensor, namer, self.constant)
            made.resize_inputs(len(made.inputs) + 1)
            made.replace_input_with(len(made.inputs) - 1, constant)
        new = made.outputs[0]
        hand_over(old, new, namer)
        move_annotations(old, new)
        new.metadata_props.update({**old.metadata_props, **new.metadata_props})


def _sizes(node: ir.Node, inferred: Inferred) -> list[int] | str:
    """How many elements each output takes: as an input since opset 13, as an attribute before; else equal parts."""
    attribute, given = node.attributes.get("split"), node.inputs[1] if len(node.inputs) > 1 else None
    source, axis = node.inputs[0], node.attributes.get("axis")
    if source is None or (axis is not None and axis.is_ref()) or (attribute is not None and attribute.is_ref()):
        return "an attribute of the function says how it splits"
    if given is not None:
        array = constant_array(given)
        return "its sizes are computed" if array is None else [int(size) for size in array.ravel()]
    if attribute is not None:
        return list(attribute.as_ints())
    found, count = inferred.sizes(source, [integer_of(node, "axis", 0)]), len(node.outputs)
    if found is None:
        return "splits a size that is not known into equal parts; run infer-shapes or fix-shapes first"
    part = -(-found[0] // count)  # rounded up, the last one is smaller
    return [max(min(part, found[0] - number * part), 0) for number in range(count)]
