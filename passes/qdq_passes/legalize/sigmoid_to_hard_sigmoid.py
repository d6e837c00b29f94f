"""sigmoid-to-hard-sigmoid

σ(x) = 1 / (1 + e^−x) becomes max(0, min(1, x/6 + 1/2)): 0.07 away at most, at x = ±1.36."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Named, Pass, skip
from qdq_passes.encode.edit.encoding_policy import Ranges
from qdq_passes.encode.look.quantized import Operators, operators_of
from qdq_passes.graph.operators.qdq_ops import OPSET_OF_BFLOAT16, opset_at
from qdq_passes.graph.uses import dtype_of, label
from qdq_passes.legalize.edit.replacement_prices import mark, replacement_price
from qdq_passes.numerics.dpu import HARD_SIGMOID_ALPHA, hard_sigmoid, sigmoid
from qdq_passes.select.selectors import ALL, Selector


@dataclass(frozen=True)
class SigmoidToHardSigmoid(Pass):
    """Replace every Sigmoid by HardSigmoid(1/6, 1/2), which is what the DPU has.

    Graph: ``x → Sigmoid → y`` → ``x → HardSigmoid(alpha = 1/6) → y``.
    Requires: nothing.
    Keeps: inputs, outputs and all names.
    Skips: operators that are not quantized; bfloat16 before opset 22.

    Args:
        select: the operators.
        operators: ``quantized`` changes those with a QDQ pair at their input or output, ``all`` every one.
        ranges: what calibration saw, for the price of each replacement: the SQNR of the hard sigmoid on the histogram of the
            input. Where there is only a range, seen or of the input's pair, its values count alike, and the price begins with ~.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="a hard sigmoid is another function, up to 0.07 away")
    select: Selector = ALL
    operators: Operators = "quantized"
    ranges: Named | Ranges | None = None

    def run(self, model: ir.Model) -> Iterator[Change]:
        """In place: names, scope and wiring stay."""
        assert not isinstance(self.ranges, Named)
        nodes, skips = operators_of(model, self.select, self.operators, "Sigmoid")
        yield from skips
        for node in nodes:
            is_brief = dtype_of(node.outputs[0]) == ir.DataType.BFLOAT16
            if is_brief and (opset := opset_at(model, node)) < OPSET_OF_BFLOAT16:
                yield skip(node, f"is of bfloat16, which HardSigmoid of opset {opset} does not take")
                continue
            found = replacement_price(node.inputs[0], self.ranges, sigmoid, hard_sigmoid)
            mark(node, node.op_type)
            node.op_type = "HardSigmoid"
            node.attributes.clear()
            node.attributes["alpha"] = ir.AttrFloat32("alpha", float(np.float32(HARD_SIGMOID_ALPHA)))
            words = "nothing is known of its input" if found is None else str(found)
            yield Change("replace", label(node), f"Sigmoid → HardSigmoid(1/6, 1/2), {words}")
