"""undo-dpu-edits"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.core.names import UNNAMED
from qdq_passes.encode.look.demands import dpu_factor, scalings
from qdq_passes.errors import ModelError
from qdq_passes.graph.annotate import ORIGIN
from qdq_passes.graph.edit import Namer, bypass, drop_unread
from qdq_passes.graph.operators.activations import is_dpu_hard_sigmoid
from qdq_passes.graph.operators.qdq_ops import is_dequantize
from qdq_passes.graph.operators.reductions import averaged_sizes
from qdq_passes.graph.uses import all_nodes, float_of, is_standard, label
from qdq_passes.legalize.edit.replacement_prices import BEFORE_DPU, marked, unmark
from qdq_passes.numerics.dpu import (
    HARD_SIGMOID_FACTOR,
    LEAKY_RELU_KNOWN,
    LEAKY_RELU_STEP,
)
from qdq_passes.select.selectors import ALL, Selector, select_nodes

POOLS = ("AveragePool", "GlobalAveragePool", "ReduceMean")
#: Words in a node's name that tell that it was a HardSigmoid before any quantizer saw it.
HARD_WORDS = ("hardsigmoid", "hard_sigmoid", "hardswish", "hard_swish")


@dataclass(frozen=True)
class UndoDpuEdits(Pass):
    """Take back what a quantizer of the Vitis line did to the float graph to compute as the DPU does.

    Graph: ``HardSigmoid(1/6) → Mul(1.0001220703125)`` → ``Sigmoid``; ``AveragePool → Mul(f)`` → ``AveragePool`` (also
    GlobalAveragePool, ReduceMean) when f is exactly the DPU's factor of that window; ``LeakyRelu(26/256)`` → ``LeakyRelu(0.1)``.
    QDQ pairs may stand between an operator and its Mul.
    What our own passes changed they noted on the node: that is what comes back; of other files' nodes the names and numbers tell.
    Requires: nothing.
    Keeps: inputs, outputs and their names; the function is that of the original operators.
    Skips: a Mul whose factor is another one, or whose window is not known; other slopes k/256, which many slopes were rounded to;
    a HardSigmoid whose own name says that it always was one, of which only the Mul goes.

    Args:
        select: the operators (HardSigmoid, pools, LeakyRelu).
        hard_sigmoid: what becomes of a HardSigmoid with the Mul: ``sigmoid``, or ``keep``. The quantizer makes the same of both:
            only a person, or the node's name, can tell.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="the DPU's approximations give way to the exact operators")
    select: Selector = ALL
    hard_sigmoid: Literal["sigmoid", "keep"] = "sigmoid"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Take back edit after edit, in the order of the file."""
        wanted, namer = select_nodes(model, self.select), Namer(model)
        for node in all_nodes(model):
            if node not in wanted or node.graph is None:
                continue
            if is_standard(node, "HardSigmoid"):
                yield from self._hard_sigmoid(node, namer)
            elif is_standard(node, *POOLS):
                yield from _pool(node, namer)
            elif is_standard(node, "LeakyRelu"):
                yield from _leaky_relu(node)

    def _hard_sigmoid(self, node: ir.Node, namer: Namer) -> Iterator[Change]:
        if not is_dpu_hard_sigmoid(node):
            return
        found = [mul for mul in _muls(node.outputs[0]) if mul[1] == np.float32(HARD_SIGMOID_FACTOR)]
        for mul, _, value in found:
            yield from _drop(mul, value, namer, "the DPU's factor of a hard sigmoid")
        before = marked(node)
        unmark(node)
        if before == node.op_type or (before is None and not found) or self.hard_sigmoid == "keep":
            return
        origin = ORIGIN.get(node)
        own = "" if node.meta.get(UNNAMED) == node.name else node.name or ""
        names = [own, *(origin.nodes if origin is not None else ())]
        if before is None and any(word in name.lower() for name in names for word in HARD_WORDS):
            yield skip(node, "its name says that it was a HardSigmoid all along")
            return
        node.op_type = "Sigmoid"
        node.attributes.clear()
        yield Change("edit", label(node), "HardSigmoid of the DPU stands for Sigmoid")


def _pool(node: ir.Node, namer: Namer) -> Iterator[Change]:
    muls = _muls(node.outputs[0])
    if not muls:
        return
    window = averaged_sizes(node)
    if window is None:
        yield skip(node, "its window is not known; run infer-shapes first")
        return
    factor = dpu_factor(node)
    for mul, constant, value in muls:
        if factor is None:
            yield skip(mul, f"the DPU has no factor for the window of {node.name}, {window}")
        elif constant == np.float32(factor):
            yield from _drop(mul, value, namer, f"the DPU's factor of {node.op_type}")
        else:
            yield skip(mul, f"{constant:g} is not the DPU's factor of {node.name}, {factor:g}")


def _muls(value: ir.Value) -> list[tuple[ir.Node, np.float32, ir.Value]]:
    """(Mul, its constant, its other input) of every Mul by one float that reads ``value``, itself or behind QDQ pairs."""
    found = [scaling for scaling in scalings(value) if scaling[1].dtype.kind in "fV"]
    return [(mul, np.float32(constant), source) for mul, constant, source in found]


def _drop(mul: ir.Node, value: ir.Value, namer: Namer, because: str) -> Iterator[Change]:
    """Bypass ``mul``; what it read takes over the name of what it wrote, which the operator's output once had, unless a pair
    stands between."""
    constants, name, was_output = list(mul.inputs), mul.outputs[0].name, mul.outputs[0].is_graph_output()
    yield bypass(mul, namer, because, source=value)
    producer = value.producer()
    is_paired = producer is not None and is_dequantize(producer)
    if not was_output and name is not None and not value.is_graph_output() and not is_paired:
        value.name = name
    drop_unread(constants)


def _leaky_relu(node: ir.Node) -> Iterator[Change]:
    alpha, before = float_of(node, "alpha", 0.01), marked(node)
    if before is not None:
        unmark(node)
        node.attributes["alpha"] = ir.AttrFloat32("alpha", _slope(node, before))
        yield Change("edit", label(node), f"slope {alpha:g} → {float(before):.7g}")
        return
    steps = alpha / LEAKY_RELU_STEP
    if not 0 < steps < 256 or steps != round(steps):  # an infinity cannot be rounded
        return
    known = LEAKY_RELU_KNOWN.get(round(steps))
    if known is None:
        yield skip(node, f"many slopes are rounded to {round(steps)}/256, which one it was cannot be told")
        return
    node.attributes["alpha"] = ir.AttrFloat32("alpha", float(np.float32(known)))
    yield Change("edit", label(node), f"slope {round(steps)}/256 → {known:g}")


def _slope(node: ir.Node, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ModelError(
            f"its metadata {BEFORE_DPU} is no number: {text}", where=node.name, hint="remove that entry"
        ) from error
