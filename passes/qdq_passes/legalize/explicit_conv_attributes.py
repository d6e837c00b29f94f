"""explicit-conv-attributes"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.operators.pads import AUTO_PAD, EXPLICIT
from qdq_passes.graph.operators.qdq_ops import opset_at
from qdq_passes.graph.operators.reductions import same_total, split_evenly, transposed_total
from qdq_passes.graph.shapes.inference import Inferred
from qdq_passes.graph.uses import integers_of, label, text_of
from qdq_passes.select.selectors import ALL, Selector, nodes_of_types

#: First opset whose MaxPool has dilations. Those of AveragePool, from opset 19, stay away where they are 1: the integer pool that
#: onnxruntime puts in its place between pairs does not know the attribute, and the model would not load (seen in 1.31.1).
DILATED_MAX_POOL = 10
CONVS, POOLS = ("Conv", "ConvTranspose"), ("MaxPool", "AveragePool")


@dataclass(frozen=True)
class ExplicitConvAttributes(Pass):
    """Write every attribute of convolutions and pools down: some execution providers abort where one is left to its default.

    Graph: ``Conv(auto_pad = SAME_UPPER)`` on a weight [8, 3, 3, 3] → ``Conv(kernel_shape = [3, 3], strides = [1, 1], dilations =
    [1, 1], pads = [1, 1, 1, 1], group = 1)``; so for ConvTranspose (``output_shape`` becomes pads too), MaxPool, AveragePool. The
    dilations of an AveragePool go where they are 1: with them onnxruntime cannot load it between pairs.
    Requires: nothing.
    Keeps: inputs, outputs and all names; numerics bit-exact.
    Skips: kernels whose shape is not known; ``auto_pad`` and ``output_shape`` that hang on a size that is not known, or whose
    meaning runtimes do not agree on: they stay, all else is written.

    Args:
        select: the operators.
    """

    keeps: ClassVar[Keeps] = EXACT
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Node by node."""
        inferred = Inferred(model)
        for node in nodes_of_types(model, self.select, *CONVS, *POOLS):
            kernel = _kernel(node, inferred)
            if isinstance(kernel, str):
                yield skip(node, kernel)
                continue
            written = _write_defaults(node, kernel, opset_at(model, node))
            pads = _pads(node, kernel, inferred)
            if isinstance(pads, str):
                yield skip(node, pads)
            elif pads is not None:
                for settled in (AUTO_PAD, "output_shape"):
                    node.attributes.pop(settled, None)
                node.attributes["pads"] = ir.AttrInt64s("pads", pads)
                written.append(f"pads={pads}")
            if written:
                yield Change("edit", label(node), ", ".join(written))


def _kernel(node: ir.Node, inferred: Inferred) -> list[int] | str:
    """Sizes of the kernel, or why they are not known."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return "has attributes of its function"
    written = integers_of(node, "kernel_shape")
    weight = node.inputs[1] if node.op_type in CONVS and len(node.inputs) > 1 else None
    found = written or (inferred.sizes(weight, slice(2, None)) if weight is not None else None)
    return found or "the shape of its kernel is not known; run infer-shapes first"


def _write_defaults(node: ir.Node, kernel: list[int], opset: int) -> list[str]:
    """Write what is missing and has a value that hangs on the kernel alone; in words."""
    ones = [1] * len(kernel)
    lists = {"kernel_shape": kernel, "strides": ones}
    if node.op_type in CONVS or (node.op_type == "MaxPool" and opset >= DILATED_MAX_POOL):
        lists["dilations"] = ones
    made = [ir.AttrInt64s(name, list(data)) for name, data in lists.items() if name not in node.attributes]
    if node.op_type in CONVS and "group" not in node.attributes:
        made.append(ir.AttrInt64("group", 1))
    for attribute in made:
        node.attributes[attribute.name] = attribute
    written = [f"{attribute.name}={attribute.value}" for attribute in made]
    if node.op_type == "AveragePool" and integers_of(node, "dilations") == ones:
        node.attributes.pop("dilations")
        written.append("no dilations")
    return written


def _pads(node: ir.Node, kernel: list[int], inferred: Inferred) -> list[int] | str | None:
    """The pads of ``node`` in numbers; why they are not known; None where they are written already."""
    auto, wanted = text_of(node, AUTO_PAD, EXPLICIT), integers_of(node, "output_shape")
    if node.op_type == "ConvTranspose" and (wanted or auto.startswith("SAME")):
        return _transposed(node, kernel, auto, wanted, inferred)
    if auto == EXPLICIT:
        return None if "pads" in node.attributes else [0] * 2 * len(kernel)
    if auto == "VALID":
        return [0] * 2 * len(kernel)
    strides, dilations = (integers_of(node, name) or [1] * len(kernel) for name in ("strides", "dilations"))
    if node.op_type not in CONVS and set(dilations) != {1}:
        return "runtimes do not agree on auto_pad of a dilated pool"
    sizes = _spatial(node, len(kernel), inferred)
    totals = [same_total(*along) for along in zip(sizes, kernel, strides, dilations, strict=True)]
    known = [total for total in totals if total is not None]
    if len(known) < len(totals):
        return f"auto_pad={auto} hangs on sizes that are not known; run infer-shapes or fix-shapes first"
    if min(known) < 0 and node.op_type not in CONVS:
        return f"runtimes do not agree on auto_pad={auto} where the stride passes over elements"
    return split_evenly([max(total, 0) for total in known], odd_behind=auto == "SAME_UPPER")


def _transposed(node: ir.Node, kernel: list[int], auto: str, wanted: list[int], inferred: Inferred) -> list[int] | str:
    ones = [1] * len(kernel)
    strides, dilations = (integers_of(node, name) or ones for name in ("strides", "dilations"))
    more = integers_of(node, "output_padding") or [0] * len(kernel)
    sizes = [size for size in _spatial(node, len(kernel), inferred) if size is not None]
    if len(sizes) < len(kernel):
        return "what it pads hangs on sizes that are not known; run infer-shapes or fix-shapes first"
    wanted = wanted[-len(kernel) :] or [size * stride for size, stride in zip(sizes, strides, strict=True)]
    along = zip(sizes, kernel, strides, dilations, more, wanted, strict=True)
    totals = [transposed_total(*numbers) for numbers in along]
    if min(totals) < 0:
        return f"its output is to be {wanted}, which is more than its kernel writes"
    return split_evenly(totals, odd_behind=auto == "SAME_UPPER")


def _spatial(node: ir.Node, count: int, inferred: Inferred) -> list[int | None]:
    """Sizes of the ``count`` last axes of what ``node`` reads, each None where it is not known."""
    source = node.inputs[0]
    found = [inferred.sizes(source, [axis]) if source is not None else None for axis in range(-count, 0)]
    return [size[0] if size is not None else None for size in found]
